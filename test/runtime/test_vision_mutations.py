"""Breaking a position, a place, a block or a plane of one image changes what the model says of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vision_engines import reference
from vision_inputs import FAMILIES
from vision_requests import TOLERANCE, request_of

from edgellm_ros.backends.base import DataType
from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.engine_format import RopeConfig
from edgellm_ros.runtime import row_media
from edgellm_ros.runtime.request import LLMGenerationResponse
from edgellm_ros.vision.media import EncodedMedia, PlacedItem, PromptMedia

NOTICED = 10 * TOLERANCE
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


def first_error(runtime: Any, family: str, change: Any = None) -> float:
    """How far the log probabilities of the first two tokens behind a prompt with one image are from the reference."""
    row = reference(family)["answers"][1]
    prepared = runtime.prepare(request_of([row], max_generate_length=2))
    if change is not None:
        prepared.media[0] = change(prepared.media[0])
    response = LLMGenerationResponse()
    assert runtime.rank.handle_request(prepared, response)
    logits = np.array(row["first_logits"])
    wanted = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    return max(abs(entry.logprob - wanted[entry.token_id]) for entry in response.logprobs[0][0])


def test_tables_of_three_axes_are_scaled_as_the_rope_says():
    """A rope that was stretched for longer contexts has a scale; no tiny model here does."""
    rope, backend = RopeConfig((1.0, 0.1, 0.01), scale=1.5), CPUBackend(1)
    tensors: Any = SimpleNamespace(bound={}, ropes={"full": rope})
    config: Any = SimpleNamespace(extra={"mrope_section": [1, 1, 1]}, rope={"full": rope})
    rows = row_media.RowMedia(backend, tensors, config, 1)
    rows.start(0, PromptMedia(positions=np.array([[3], [5], [7]], np.int32)))
    tables = {f"rope_{name}_full": backend.allocate((1, 1, 3), DataType.FLOAT32) for name in ("cos", "sin")}
    assert rows.rotate(0, 0, 1, tables)
    angles = np.array([3.0, 0.5, 0.07])
    for (_, table), wanted in zip(tables.items(), (np.cos(angles), np.sin(angles)), strict=True):
        assert np.abs(table.numpy()[0, 0] - 1.5 * wanted).max() < 1e-6
    backend.close()


def places_shifted(media: PromptMedia) -> PromptMedia:
    (placed,) = media.items
    return replace(media, items=(PlacedItem(placed.item, placed.places + 1),))


def one_position_changed(axis: int) -> Any:
    def change(media: PromptMedia) -> PromptMedia:
        positions = media.positions.copy()
        positions[axis, media.items[0].places[2]] += 1
        return replace(media, positions=positions)

    return change


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sound_prompt_is_near_the_reference_and_shifted_rows_are_not(open_family, family):
    runtime = open_family(family)
    assert first_error(runtime, family) < TOLERANCE
    assert first_error(runtime, family, places_shifted) > NOTICED


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["time", "row", "column"])
@pytest.mark.parametrize("family", QWEN)
def test_one_position_of_one_token_on_one_axis_is_noticed(open_family, family, axis):
    assert first_error(open_family(family), family, one_position_changed(axis)) > NOTICED


@pytest.mark.parametrize("family", QWEN)
def test_decoding_from_another_position_is_noticed(open_family, family):
    runtime = open_family(family)
    row = reference(family)["answers"][1]
    found = []
    for delta in (0, 1):
        prepared = runtime.prepare(request_of([row]))
        prepared.media[0] = replace(prepared.media[0], delta=prepared.media[0].delta + delta)
        response = LLMGenerationResponse()
        assert runtime.rank.handle_request(prepared, response)
        found.append(response.logprobs[0][1])
    sound, moved = ({entry.token_id: entry.logprob for entry in rows} for rows in found)
    assert max(abs(sound[token] - moved.get(token, 0.0)) for token in sound) > NOTICED


@pytest.mark.parametrize("family", QWEN)
def test_axes_in_another_order_are_noticed(open_family, family, monkeypatch):
    honest = row_media.rope_axes
    monkeypatch.setattr(row_media, "rope_axes", lambda extra, count: honest(extra, count)[::-1].copy())
    assert first_error(open_family(family), family) > NOTICED


@pytest.mark.parametrize("kind", ["missing", "swapped", "left behind"])
def test_planes_that_are_missing_swapped_or_left_behind_are_noticed(open_family, kind, monkeypatch):
    runtime = open_family("qwen3_vl")
    media, encode = runtime.rank.executor.media, runtime.rank.vision.encode
    if kind == "missing":
        empty = runtime.rank.backend.allocate((12, 32), encode_type(runtime))
        media.encode = lambda item: EncodedMedia(encode(item).embeddings, (encode(item).planes[0], empty))
    elif kind == "swapped":
        media.encode = lambda item: EncodedMedia(encode(item).embeddings, encode(item).planes[::-1])
    else:
        monkeypatch.setattr(media, "settle", lambda: None)
        first_error(runtime, "qwen3_vl")  # its planes stay, and meet the next prompt's text
        text = reference("qwen3_vl")["answers"][0]
        response = LLMGenerationResponse()
        assert runtime.handle_request(request_of([text]), response)
        assert response.output_ids[0] != text["output_ids"]
        return
    assert first_error(runtime, "qwen3_vl") > NOTICED


def encode_type(runtime: Any) -> Any:
    return runtime.rank.vision.tower.encode(np.zeros((16, 54), np.float32), (1, 4, 4)).embeddings.dtype


@pytest.mark.parametrize("family", ["paligemma", "gemma3"])
@pytest.mark.parametrize("lowering", ["onnxruntime", "tensorrt", "tensorrt_legacy"])
def test_a_block_one_token_short_is_noticed(open_family, family, lowering):
    runtime = open_family(family, lowering)
    assert first_error(runtime, family) < TOLERANCE

    def shorter(media: PromptMedia) -> PromptMedia:
        ((start, stop),) = media.blocks
        return replace(media, blocks=((start, stop - 1),))

    assert first_error(runtime, family, shorter) > NOTICED
    assert first_error(runtime, family, lambda media: replace(media, blocks=())) > NOTICED
