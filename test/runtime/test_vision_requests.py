"""Prompts with images answer as transformers does: alone, in a ragged batch, joining one, with the context cache."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from vision_engines import LOWERINGS, engine, reference
from vision_inputs import FAMILIES, GRIDS, pixel_values, token_count
from vision_requests import GREEDY, MARKS, SeededProcessor, check, image, request_of, run

from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.errors import EngineDirectoryError, MisuseError, RefusalCode, RequestError
from edgellm_ros.runtime import rank_model
from edgellm_ros.runtime.context_cache import ContextCacheConfig
from edgellm_ros.runtime.media_marks import MediaFormat, MediaMarks
from edgellm_ros.runtime.request import (
    LLMGenerationRequest,
    LLMGenerationResponse,
    Message,
    Request,
)
from edgellm_ros.runtime.scheduler import RequestEngine
from edgellm_ros.runtime.scheduler_config import RequestEngineConfig
from edgellm_ros.vision.media import MediaItem
from edgellm_ros.vision.processor import Video
from edgellm_ros.vision.runner import VisionRunner
from edgellm_ros.vision.visual_directory import open_visual_directory


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_text_images_and_videos_answer_as_transformers(open_family, family, lowering):
    runtime = open_family(family, lowering)
    rows = reference(family)["answers"]
    for row in rows:
        check(run(runtime, [row]), [row])
    check(run(runtime, rows), rows)  # a ragged batch
    metrics = runtime.rank.get_multimodal_metrics()
    assert metrics.total_images == 2 * sum(len(row["images"]) for row in rows)
    assert runtime.rank.get_stage_times()["vision_encoder"].count == metrics.total_images
    assert metrics.total_image_tokens == 2 * sum(token_count(family, seed) for row in rows for seed in row["images"])


@pytest.mark.parametrize("chunk", [1, 5, 7])
@pytest.mark.parametrize("family", FAMILIES)
def test_images_cut_by_chunks_of_the_prompt_are_seen_whole(open_family, family, chunk):
    runtime = open_family(family, prefill_chunk=chunk)
    rows = reference(family)["answers"]
    check(run(runtime, rows), rows)
    assert runtime.rank.get_multimodal_metrics().total_images == sum(len(row["images"]) for row in rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_with_images_joins_a_running_batch(open_family, family):
    runtime = open_family(family, join_chunk=4, mixed_positions=64)
    rows = reference(family)["answers"]
    first, third = (runtime.prepare(request_of([row])) for row in (rows[1], rows[2]))
    text = runtime.prepare(request_of([rows[0]]))
    response = LLMGenerationResponse()
    joined: dict[int, LLMGenerationResponse] = {}

    def hook(boundary: Any) -> None:
        if boundary.resident_count() == 1 and not joined:
            boundary.admit_request(third, 5, 6)
            boundary.admit_request(text, 7, 8)
            joined[0] = LLMGenerationResponse()
        for index, result in boundary.take_completed_at_or_above(5).items():
            joined[index] = boundary.materialize_result(result)

    assert runtime.rank.handle_request(first, response, boundary_hook=hook)
    check(response, [rows[1]])
    check(joined[5], [rows[2]])
    check(joined[7], [rows[0]])


@pytest.mark.parametrize("family", FAMILIES)
def test_images_are_encoded_once_and_known_prefixes_with_them_are_reused(open_family, family):
    runtime = open_family(family, context_cache=ContextCacheConfig(1 << 22))
    rows = reference(family)["answers"]
    vision = runtime.rank.vision
    check(run(runtime, [rows[2]]), [rows[2]])
    assert (vision.metrics.encoded, vision.processor.processed) == (3, 3)
    again = run(runtime, [rows[2]])
    check(again, [rows[2]])
    reusable = family not in ("paligemma", "gemma3")  # there the prompt, or images that touch, see all of each other
    assert (again.reused_token_counts[0] >= 16) == reusable
    assert (vision.metrics.encoded, vision.processor.processed) == (3, 3)
    told = runtime.describe()["vision"]
    assert (told["encoded"], told["cache_items"], told["images"] >= 3) == (3, 3, True)
    check(run(runtime, [rows[1]]), [rows[1]])  # an image of the other prompt, elsewhere
    assert vision.metrics.encoded == 3
    other = {**rows[2], "images": [2, 0, 1]}
    other["images"] = [2, 0, 0] if not FAMILIES[family].grids else other["images"]
    if not FAMILIES[family].grids:  # equal ids, another image: nothing behind it may be reused
        found = run(runtime, [other])
        fresh = run(open_family(family), [other])
        assert found.output_ids == fresh.output_ids
        assert found.reused_token_counts[0] < again.reused_token_counts[0] or not reusable


@pytest.mark.parametrize("family", ["qwen2_5_vl", "smolvlm"])
def test_the_encoder_cache_keeps_to_its_budget_and_forgets_the_oldest(open_family, family):
    runtime = open_family(family)
    cache, rows = runtime.rank.vision.cache, reference(family)["answers"]
    run(runtime, [rows[2]])
    assert len(cache) == 3 and cache.hits == 0
    cache.budget_bytes = cache.nbytes - 1
    cache.put(b"x" * 16, runtime.rank.vision.encode(runtime.rank.vision.place(image(1))))
    assert cache.nbytes <= cache.budget_bytes and cache.evicted >= 1
    cache.budget_bytes = 1
    cache.put(b"y" * 16, runtime.rank.vision.tower.encode(*_inputs(family, 0)))
    assert b"y" * 16 not in cache  # larger than the whole budget
    cache.clear()
    run(runtime, [rows[1]])
    check(run(runtime, rows), rows)


def _inputs(family: str, seed: int) -> tuple[np.ndarray, Any]:
    values = pixel_values(family, seed)
    return (values, GRIDS[seed]) if FAMILIES[family].grids else (values[None], None)


@pytest.mark.parametrize("change", ["one token short", "one token more", "an image missing"])
def test_ids_with_another_number_of_image_tokens_are_refused(open_family, change):
    runtime = open_family("smolvlm")
    row = dict(reference("smolvlm")["answers"][1])
    place = row["input_ids"].index(262)
    ids = list(row["input_ids"])
    if change == "one token short":
        del ids[place]
    elif change == "one token more":
        ids.insert(place, 262)
    row |= {"input_ids": ids, "images": [] if change == "an image missing" else row["images"]}
    if change == "an image missing":  # without images the ids are what they are: text
        assert run(runtime, [row])
        return
    with pytest.raises(RequestError, match=r"tokens '<image>'"):
        runtime.prepare(request_of([row]))


@pytest.mark.parametrize("written", ["nothing", "<image> and <image>", "<video>"])
def test_a_template_that_writes_another_number_of_marks_is_refused(written):
    item = MediaItem("image", np.empty(0), b"", "<placeholder>", "<image>", 1)
    marks = MediaMarks(MediaFormat("<image>", "<video>"), [Message.of("user", item)], "{{ messages }}", str)
    assert marks.expand("one <image> here") == "one <placeholder> here"
    with pytest.raises(
        RequestError, match=r"the prompt as the template wrote it has the marks .* \['image'\] are given"
    ):
        marks.expand(written)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_puts_each_image_where_its_part_stands(open_family, family):
    runtime = open_family(family)
    mark = MARKS.get(family, "<|image_pad|>")
    messages = (
        Message("system", "Look."),
        Message.of("user", "a", image(1), f"b{mark}c", image(0)),
        Message("assistant", "d"),
        Message.of("user", image(2)),
    )
    prepared = runtime.prepare(LLMGenerationRequest(requests=[Request(messages)]))
    text = prepared.formatted_requests[0]
    token = runtime.rank.vision.processor.image_token
    one, two, three = (token * token_count(family, seed) for seed in (1, 0, 2))
    if FAMILIES[family].grids:
        assert "a<|vision_start|>" in text
    pieces = re.split(f"((?:{re.escape(token)})+)", text)[1::2]
    assert [piece for piece in pieces if piece != token] == [one, two, three] and f"b{mark}c" in text
    media = prepared.media[0]
    assert media.token_counts == tuple(token_count(family, seed) for seed in (1, 0, 2))
    ids = np.array(prepared.pre_tokenized_input_ids[0])
    assert (ids == 262).sum() == sum(media.token_counts)  # the mark in the user's own text is text
    response = LLMGenerationResponse()
    assert runtime.rank.handle_request(prepared, response)


def test_an_image_is_what_it_was_when_it_was_given(open_family):
    """The next frame of a camera goes into the same memory, and what was encoded is known by the old one's content."""
    family = "smolvlm"
    runtime = open_family(family, context_cache=ContextCacheConfig(1 << 22))
    buffer = image(1)
    asked = LLMGenerationRequest(requests=[Request((Message.of("user", "a", buffer),))], max_generate_length=4,
                                 sampling=GREEDY)  # fmt: skip
    wanted = LLMGenerationResponse()
    assert runtime.handle_request(asked, wanted)
    for again in range(2):
        buffer[:] = image(1)
        prepared = runtime.prepare(asked)
        buffer[:] = 2
        runtime.rank.vision.cache.clear()
        response = LLMGenerationResponse()
        assert runtime.rank.handle_request(prepared, response), runtime.rank.last_refusal
        assert response.output_ids == wanted.output_ids, again


def test_what_no_image_is_and_what_sees_none_are_refused(open_family, monkeypatch):
    runtime = open_family("smolvlm")
    with pytest.raises(RequestError, match="want text, an image as a NumPy array, or a Video"):
        Message.of("user", 3)  # type: ignore[arg-type]
    monkeypatch.setattr(runtime.rank, "vision", None)
    runtime.tokenizer.media_format = None
    with pytest.raises(RequestError, match="has no image tower") as caught:
        runtime.prepare(LLMGenerationRequest(requests=[Request((Message.of("user", "a", image(0)),))]))
    assert caught.value.code is RefusalCode.UNSUPPORTED


@pytest.mark.parametrize("family", ["smolvlm", "qwen2_5_vl"])
@pytest.mark.parametrize(("content", "sentence"), [
    (np.broadcast_to(np.uint8(0), (1 << 40, 1, 3)), "aspect ratio"),
    (np.broadcast_to(np.uint8(0), (60_000, 60_000, 3)), "larger than any that is served"),
    (np.full((4, 4, 3), None), "Image 0 is object"),
    (Video(7), "The frames of a video are int"),
    (Video([None]), "Image 0 is NoneType"),
    (Video([np.zeros((4, 4, 3), np.uint8)] * 2, "1"), "'1' seconds per frame"),
], ids=["a line", "a field", "objects", "no frames", "none", "no time"])  # fmt: skip
def test_what_is_no_image_or_video_is_refused_before_anything_reads_it(open_family, family, content, sentence):
    runtime = open_family(family)
    with pytest.raises(RequestError, match=sentence):
        runtime.prepare(LLMGenerationRequest(requests=[Request((Message.of("user", content, "what?"),))]))


@pytest.mark.parametrize(("key", "value", "sentence"), [
    ("image_token_id", None, "image_token_id is None; want a whole number"),
    ("video_token_id", "9", "video_token_id is '9'; want a whole number"),
    ("tokens_per_second", "fast", "tokens_per_second is 'fast'; want a finite number"),
    ("tokens_per_second", -2, "tokens_per_second is -2.0; want a number above 0, up to 1000"),
])  # fmt: skip
def test_a_tower_whose_positions_cannot_be_counted_is_not_opened(key, value, sentence):
    sound = open_visual_directory(engine("qwen2_5_vl", "onnxruntime") / "visual")
    config = json.loads(json.dumps(sound.config))
    (config["vision_config"] if key == "tokens_per_second" else config)[key] = value
    with pytest.raises(EngineDirectoryError, match=sentence):
        VisionRunner(replace(sound, config=config), CPUBackend(1), processor=SeededProcessor("qwen2_5_vl"))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_scheduler_answers_prompts_with_and_without_images_together(open_family, family):
    runtime = open_family(family, join_chunk=8, context_cache=ContextCacheConfig(1 << 22))
    rows = reference(family)["answers"]
    scheduler = RequestEngine(runtime, RequestEngineConfig(max_batch_size=3))
    try:
        handles = [scheduler.submit(request_of([rows[index]])) for index in (1, 2, 0, 2, 1)]
        for index, handle in zip((1, 2, 0, 2, 1), handles, strict=True):
            check(handle.get(timeout=60), [rows[index]])
    finally:
        scheduler.shutdown()
    assert runtime.rank.vision.metrics.encoded == 3


@pytest.mark.parametrize("family", ["qwen3_vl", "internvl"])
def test_a_tower_on_another_backend_gives_its_rows_to_the_model_s(open_family, family, monkeypatch):
    towers = []

    def elsewhere(name: str, directory: Any) -> CPUBackend:
        towers.append(CPUBackend(1))
        return towers[-1]

    monkeypatch.setattr(rank_model, "_tower_backend", elsewhere)
    runtime = open_family(family)
    rows = reference(family)["answers"]
    check(run(runtime, rows), rows)
    vision, made = runtime.rank.vision, []
    allocate = vision._backend.allocate
    monkeypatch.setattr(vision._backend, "allocate", lambda *given: made.append(allocate(*given)) or made[-1])
    vision.cache.clear()
    encoded = vision.encode(vision.place(image(0)))
    assert [encoded.embeddings, *encoded.planes] == made  # in the memory of the model's device, each of them
    runtime.close()
    with pytest.raises(MisuseError, match="this backend is closed"):
        towers[0].open_engine(runtime.rank.vision.directory.graph)
