"""Pruned prompts answer as whole prompts in which nobody sees the tokens that were left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pruned_cases import FAMILIES as PRUNED
from pruned_cases import dropped
from vision_engines import LOWERINGS, reference
from vision_inputs import IMAGE, VIDEO_SEED, token_count
from vision_requests import check, request_of

import edgellm_ros.runtime.token_pruning as token_pruning
from edgellm_ros.runtime.context_cache import ContextCacheConfig
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.request import LLMGenerationResponse
from edgellm_ros.vision.media import MediaItem, PlacedItem, PromptMedia
from edgellm_ros.vision.pruner import PrunedPrompt, PruningOutcome, PruningReport, VisualPrunerConfig, quota

ANSWERS = json.loads((Path(__file__).parent.parent / "vision" / "pruned.json").read_text("utf-8"))
HALF = VisualPrunerConfig(enabled=True, reduction_ratio=0.5, min_visual_tokens=1)


@pytest.fixture
def drop_as_the_reference(monkeypatch) -> None:
    """Leave out what the reference masks, whatever the embeddings say."""

    def choose(backend: Any, embeddings: Any, spans: Any, config: VisualPrunerConfig) -> PrunedPrompt:
        prompt = [0] * embeddings.shape[0]
        for start, stop in spans:
            prompt[start:stop] = [IMAGE] * (stop - start)
        gone = set(dropped(prompt, IMAGE))
        before = prompt.count(IMAGE)
        keep = tuple(place for place in range(len(prompt)) if place not in gone)
        return PrunedPrompt(PruningReport(PruningOutcome.APPLIED, before, before - len(gone)), keep)

    monkeypatch.setattr(token_pruning, "prune_prompt", choose)


def pictured(family: str) -> list[dict[str, Any]]:
    """Prompts with still images."""
    return [row for row in reference(family)["answers"] if row["images"] and VIDEO_SEED not in row["images"]]


def cases(family: str) -> list[dict[str, Any]]:
    """Prompts with images, and how the reference answers them without some of their tokens."""
    rows = pictured(family)
    return [{**row, **answer} for row, answer in zip(rows, ANSWERS[family], strict=True)]


def run(runtime: LLMInferenceRuntime, rows: Sequence[dict[str, Any]], **options: Any) -> LLMGenerationResponse:
    response = LLMGenerationResponse()
    request = request_of(rows, **{"max_generate_length": 6, "visual_pruner": HALF, **options})
    assert runtime.handle_request(request, response), runtime.last_refusal
    assert response.messages == [""] * len(rows)
    return response


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("family", PRUNED)
def test_a_pruned_prompt_equals_the_masked_whole_one(open_family, drop_as_the_reference, family, lowering):
    runtime = open_family(family, lowering)
    rows = cases(family)
    for row in rows:
        check(run(runtime, [row]), [row])
    response = run(runtime, rows)
    check(response, rows)  # a ragged batch
    for row, report, count in zip(rows, response.pruning, response.input_token_counts, strict=True):
        visual = row["input_ids"].count(IMAGE)
        assert report == PruningReport(PruningOutcome.APPLIED, visual, visual - len(dropped(row["input_ids"], IMAGE)))
        assert count == len(row["input_ids"])
        gone = set(dropped(row["input_ids"], IMAGE))
        places = iter(np.flatnonzero(np.array(row["input_ids"]) == IMAGE).tolist())
        for seed, kept in zip(row["images"], report.kept, strict=True):  # what an overlay shows
            assert kept == tuple(token for token in range(token_count(family, seed)) if next(places) not in gone)


@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize("family", PRUNED)
def test_it_does_in_any_chunks(open_family, drop_as_the_reference, family, chunk):
    rows = cases(family)
    check(run(open_family(family, prefill_chunk=chunk), rows), rows)


@pytest.mark.parametrize("family", ["smolvlm", "qwen3_vl"])
def test_it_does_with_the_context_cache_and_never_takes_unpruned_blocks(open_family, drop_as_the_reference, family):
    runtime = open_family(family, context_cache=ContextCacheConfig(1 << 24))
    rows = cases(family)
    whole = pictured(family)
    off = VisualPrunerConfig()
    for _ in range(2):
        check(run(runtime, rows), rows)
        check(run(runtime, whole, visual_pruner=off, max_generate_length=10), whole)
    again = run(runtime, rows[1:])
    assert again.reused_token_counts[0] > 0
    check(again, rows[1:])


@pytest.mark.parametrize("family", ["smolvlm", "qwen3_vl"])
def test_blocks_of_another_choice_among_the_same_images_are_not_taken(open_family, monkeypatch, family):
    """Ids, images and counts are equal; only which tokens are left of the images differs."""

    def choose(backend: Any, embeddings: Any, spans: Any, config: VisualPrunerConfig) -> PrunedPrompt:
        halves = [((start + stop) // 2, (stop - start) // 2) for start, stop in spans]
        later = 0 if config.pivot_text_tokens == 1 else 1
        gone = {middle - later * size + index for middle, size in halves for index in range(size)}
        keep = tuple(place for place in range(embeddings.shape[0]) if place not in gone)
        before = sum(stop - start for start, stop in spans)
        return PrunedPrompt(PruningReport(PruningOutcome.APPLIED, before, before - len(gone)), keep)

    monkeypatch.setattr(token_pruning, "prune_prompt", choose)
    row = max(pictured(family), key=lambda row: len(row["input_ids"]))
    choices = [VisualPrunerConfig(enabled=True, pivot_text_tokens=count, min_visual_tokens=1) for count in (1, 2)]
    fresh = [run(open_family(family), [row], visual_pruner=choice) for choice in choices]
    assert fresh[0].logprobs != fresh[1].logprobs
    runtime = open_family(family, context_cache=ContextCacheConfig(1 << 24))
    for index in (0, 1, 0, 1):
        found = run(runtime, [row], visual_pruner=choices[index])
        assert found.output_ids == fresh[index].output_ids
        for one, other in zip(found.logprobs[0], fresh[index].logprobs[0], strict=True):
            wanted = {entry.token_id: entry.logprob for entry in other}
            assert all(abs(entry.logprob - wanted[entry.token_id]) < 1e-4 for entry in one if entry.token_id in wanted)
    assert found.reused_token_counts[0] > 0


@pytest.mark.parametrize("family", PRUNED)
def test_pruning_nothing_changes_no_bit(open_family, family):
    runtime = open_family(family)
    rows = pictured(family)
    plain = run(runtime, rows, visual_pruner=VisualPrunerConfig())
    nothing = run(runtime, rows, visual_pruner=VisualPrunerConfig(True, reduction_ratio=1e-6, min_visual_tokens=1))
    assert nothing.output_ids == plain.output_ids
    assert nothing.logprobs == plain.logprobs
    assert [report.outcome for report in plain.pruning] == [PruningOutcome.OFF] * 2
    assert [report.outcome for report in nothing.pruning] == [PruningOutcome.NOTHING_TO_DROP] * 2
    assert [report.before for report in nothing.pruning] == [row["input_ids"].count(IMAGE) for row in rows]


@pytest.mark.parametrize("family", PRUNED)
def test_the_real_choice_meets_the_quota_of_every_image_and_repeats(open_family, family):
    runtime = open_family(family)
    rows = cases(family)
    first, second = run(runtime, rows), run(runtime, rows)
    assert first.output_ids == second.output_ids
    for row, report in zip(rows, first.pruning, strict=True):
        ids = np.array(row["input_ids"])
        spans = token_pruning.runs(np.flatnonzero(ids == IMAGE).astype(np.int32))
        assert report.outcome is PruningOutcome.APPLIED
        assert report.after >= sum(quota(stop - start, 0.5) for start, stop in spans)
        assert report.after < report.before
    pruned = 2 * sum(report.before - report.after for report in first.pruning)
    assert runtime.rank.get_multimodal_metrics().pruned_image_tokens == pruned
    metrics = runtime.rank.get_prefill_metrics()
    assert metrics.pruned_tokens == pruned
    assert metrics.computed_tokens + metrics.reused_tokens + pruned == 2 * sum(first.input_token_counts)


def test_the_choice_sees_the_images_in_their_places(open_family, monkeypatch):
    runtime = open_family("smolvlm")
    (row,) = [row for row in reference("smolvlm")["answers"] if len(row["images"]) == 1]
    seen = []
    select = type(runtime.rank.backend).select_tokens

    def spy(self: Any, embeddings: Any, spans: Any, *pivots: int) -> np.ndarray:
        seen.append((embeddings.numpy().copy(), spans, pivots))
        return select(self, embeddings, spans, *pivots)

    monkeypatch.setattr(type(runtime.rank.backend), "select_tokens", spy)
    run(runtime, [row])
    ((embeds, (span,), pivots),) = seen
    image = np.array(reference("smolvlm")["embeddings"][row["images"][0]][0]).reshape(-1, embeds.shape[1])
    assert np.abs(embeds[span.start : span.stop] - image).max() < 1e-4
    assert pivots == (4, 4)


def test_settings_are_frozen_when_a_request_is_prepared_and_a_bad_one_changes_nothing(open_family):
    runtime = open_family("smolvlm")
    (row,) = [row for row in reference("smolvlm")["answers"] if len(row["images"]) == 1]
    assert runtime.rank.visual_pruner_active is False
    runtime.rank.set_visual_pruner_config(HALF)
    assert runtime.rank.visual_pruner_active is True
    prepared = runtime.prepare(request_of([row]))
    with pytest.raises(Exception, match="reduction_ratio is 2"):
        runtime.rank.set_visual_pruner_config({"enabled": True, "reduction_ratio": 2})
    assert runtime.rank.visual_pruner_config is HALF
    runtime.rank.set_visual_pruner_config(VisualPrunerConfig())
    response = LLMGenerationResponse()
    assert runtime.handle_request(prepared, response)
    assert response.pruning[0].applied
    assert run(runtime, [row], visual_pruner=None).pruning[0].outcome is PruningOutcome.OFF


def test_a_window_of_cache_slots_is_a_reason_to_leave_a_prompt_as_it_is(open_family):
    runtime = open_family("smolvlm")
    rows = pictured("smolvlm")
    runtime.rank.admission.pruner.window = True
    response = run(runtime, rows, max_generate_length=10)
    check(response, rows)
    assert {report.outcome for report in response.pruning} == {PruningOutcome.SLIDING_WINDOW}


def test_a_text_prompt_says_that_it_has_no_images(open_family):
    (row,) = [row for row in reference("smolvlm")["answers"] if not row["images"]]
    response = run(open_family("smolvlm"), [row], max_generate_length=10)
    check(response, [row])
    assert response.pruning == [PruningReport(PruningOutcome.NO_IMAGES)]


def test_positions_places_and_blocks_of_what_stays():
    item = MediaItem("image", np.empty(0), b"digest", "", "", 4)
    media = PromptMedia((PlacedItem(item, np.array([1, 2, 4, 5], np.int32)),), blocks=((1, 6),))
    keep = np.array([0, 2, 3, 5, 6])
    left = token_pruning.pruned_media(media, keep, 7)
    assert left.items[0].places.tolist() == [-1, 1, -1, 3]
    assert left.items[0].span == (1, 4)
    assert left.token_counts == (2,)
    assert left.positions.tolist() == [keep.tolist()] * 3
    assert left.delta == 2  # the next token is the fifth in the cache and the seventh in the prompt
    assert left.blocks == ((1, 4),)
    assert token_pruning.runs(media.items[0].places) == [(1, 3), (4, 6)]


def test_what_is_left_of_an_image_is_part_of_its_name():
    item = MediaItem("image", np.empty(0), b"digest", "", "", 3)
    names = {
        PlacedItem(item, np.array(places, np.int32)).digest
        for places in ([4, 5, 6], [-1, 4, 5], [4, -1, 5], [4, 5, -1], [-1, -1, 4])
    }
    assert len(names) == 5
    assert PlacedItem(item, np.array([4, 5, 6], np.int32)).digest == b"digest"
