"""PEFT folders: what is read of them, and what is refused by name."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from adapters_for_tests import PREFIX, write_adapter
from hypothesis import given
from hypothesis import strategies as st

from edgellm_ros.adapter_format import AdapterFormat, AdapterStack, AdapterTarget
from edgellm_ros.backends.base import DataType
from edgellm_ros.errors import EngineDirectoryError, RefusalCode, RequestError
from edgellm_ros.runtime.adapter_slots import AdapterSlots
from edgellm_ros.runtime.adapter_tensors import _as_element
from edgellm_ros.runtime.peft_folder import read_peft_folder

MODULE = "model.layers.0.self_attn"
FORM = AdapterFormat(
    4,
    2,
    (
        AdapterStack(6, (AdapterTarget(f"{MODULE}.q_proj", 8, 0.5), AdapterTarget(f"{MODULE}.k_proj", 4))),
        AdapterStack(8, (AdapterTarget(f"{MODULE}.o_proj", 6),)),
    ),
)


def weights_of(path):
    from safetensors.numpy import load_file

    return load_file(path / "adapter_model.safetensors")


@pytest.mark.parametrize("rslora", [False, True])
def test_weights_take_the_form_of_the_engine(tmp_path, rslora):
    path = write_adapter(tmp_path, FORM, 2, 0, use_rslora=rslora, lora_alpha=3)
    found, scaling = read_peft_folder(path, FORM), 3 / (2**0.5 if rslora else 2)
    tensors = weights_of(path)
    down, up = (array.reshape(2, 2, -1) for array in found.stacks[0])
    for place, (name, factor, start, stop) in enumerate((("q_proj", 0.5, 0, 8), ("k_proj", 1.0, 8, 12))):
        np.testing.assert_array_equal(down[:, place], tensors[f"{PREFIX}{MODULE}.{name}.lora_A.weight"])
        wanted = tensors[f"{PREFIX}{MODULE}.{name}.lora_B.weight"].T * np.float32(scaling * factor)
        np.testing.assert_allclose(up[:, place, start:stop], wanted, rtol=1e-6)
        assert np.count_nonzero(up[:, place]) == wanted.size


def test_what_an_adapter_leaves_out_is_zero(tmp_path):
    found = read_peft_folder(write_adapter(tmp_path, FORM, 4, 0, targets=lambda name: "o_proj" in name), FORM)
    assert not found.stacks[0][0].any() and not found.stacks[0][1].any() and found.stacks[1][1].all()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora is True"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 2}}, "alpha_pattern"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
        ({"r": 0}, "r is 0"),
        ({"r": 8}, "has rank 8; the engine was built for at most 4"),
        ({"lora_alpha": None}, "lora_alpha is None"),
        ({"lora_alpha": float("nan")}, "lora_alpha is nan"),
        ({"lora_alpha": 10**400}, "want a finite number"),
        ({"lora_alpha": 1e308}, "not finite when lora_alpha scales them"),
        ({"r": 10**400}, "want a whole number"),
        ({"use_rslora": "yes"}, "use_rslora is 'yes'"),
    ],
)
def test_unsupported_settings_are_refused_by_name(tmp_path, config, words):
    with pytest.raises(RequestError) as raised:
        read_peft_folder(write_adapter(tmp_path, FORM, 2, 0, **config), FORM)
    assert words in str(raised.value) and raised.value.code is RefusalCode.BAD_PARAMETER


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("model.embed_tokens.lora_embedding_A", (2, 6), "embed_tokens"),
        ("model.layers.0.mlp.up_proj.lora_A.weight", (2, 6), "changes 'layers.0.mlp.up_proj'"),
        ("model.vision_tower.layers.0.self_attn.q_proj.lora_A.weight", (2, 6), "vision_tower"),
        (f"{MODULE}.q_proj.lora_A.weight", (2, 7), "has [2, 7] for lora_A of model.layers.0.self_attn.q_proj"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(tmp_path, name, shape, words):
    path = write_adapter(tmp_path, FORM, 2, 0)
    from safetensors.numpy import save_file

    save_file({**weights_of(path), f"{PREFIX}{name}": np.ones(shape, np.float32)}, path / "adapter_model.safetensors")
    with pytest.raises(RequestError) as raised:
        read_peft_folder(path, FORM)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda path: (path / "adapter_config.json").unlink(), "adapter_config.json cannot be read"),
        (lambda path: (path / "adapter_config.json").write_text("[]"), "want an object"),
        (lambda path: (path / "adapter_model.safetensors").unlink(), "not as a pickled file"),
        (lambda path: (path / "adapter_model.safetensors").write_bytes(b"short"), "is no safetensors file"),
        (lambda path: (path / "adapter_model.safetensors").write_bytes(b"\xff" * 64), "longer than the file"),
    ],
)
def test_damaged_folders_are_refused(tmp_path, break_it, words):
    path = write_adapter(tmp_path, FORM, 2, 0)
    break_it(path)
    with pytest.raises(RequestError, match=words):
        read_peft_folder(path, FORM)


def header_of(name: str, **entry) -> bytes:
    text = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **entry}}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(64)


HEADERS = {
    "no tensor": (2).to_bytes(8, "little") + b"{}",
    "nested": (200_000).to_bytes(8, "little") + b"[" * 200_000,
    "infinite place": header_of("a", data_offsets=[0, float("inf")]),
    "place before the data": header_of("a", data_offsets=[-8, -4]),
    "place behind the data": header_of("a", data_offsets=[0, 4 * 10**30]),
    "swapped places": header_of("a", data_offsets=[8, 4]),
    "a size below zero": header_of("a", shape=[-1]),
    "a huge size": header_of("a", shape=[10**30]),
    "a type of another kind": header_of("a", dtype=["F32"]),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers_that_lie_are_refused_in_a_sentence(tmp_path, case):
    path = write_adapter(tmp_path, FORM, 2, 0)
    (path / "adapter_model.safetensors").write_bytes(HEADERS[case])
    with pytest.raises(RequestError, match="save the adapter again") as raised:
        read_peft_folder(path, FORM)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path, name):
    path = write_adapter(tmp_path, FORM, 2, 0)
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(RequestError, match="is no regular file"):
        read_peft_folder(path, FORM)


@pytest.mark.parametrize("folder", [None, 5, b"folder", "", "\0", "\ud800"], ids=repr)
def test_what_is_no_path_of_a_folder_is_refused(folder):
    with pytest.raises(RequestError):
        read_peft_folder(folder, FORM)


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    bad = {f"{PREFIX}model.layers.9.self_attn.q_proj.lora_A.weight": np.full((2, 6), np.nan, np.float32)}
    with pytest.raises(RequestError, match="not finite"):
        read_peft_folder(write_adapter(tmp_path, FORM, 2, 0, extra=bad), FORM)


def test_no_folder_is_told(tmp_path):
    with pytest.raises(RequestError, match="is no folder"):
        read_peft_folder(tmp_path / "nowhere", FORM)


def test_the_form_survives_config_json():
    assert AdapterFormat.from_config({"lora": json.loads(json.dumps(FORM.to_json()))}) == FORM
    assert AdapterFormat.from_config({}) is None


@pytest.mark.parametrize("content", [[], {"max_lora_rank": 0}, {**FORM.to_json(), "slots": "x"}])
def test_a_wrong_form_is_refused(content):
    with pytest.raises(EngineDirectoryError, match="lora is described wrongly"):
        AdapterFormat.from_config({"lora": content})


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), max_size=40), st.integers(1, 3))
def test_a_place_in_use_is_never_given_away(steps, count):
    """Against a plain model: who holds which place, and when each was last taken."""
    filled: dict[int, str] = {}
    slots = AdapterSlots(count, lambda name, slot: filled.__setitem__(slot, name))
    users: dict[str, int] = {}
    for name, arrives in steps:
        if arrives:
            in_use = {other for other, number in users.items() if number}
            possible = name in filled.values() or len(in_use) < count
            assert slots.available(name) == possible
            if possible:
                before = dict(filled)
                slot = slots.acquire(name)
                assert filled[slot] == name and not in_use & (set(before.values()) - set(filled.values()))
                users[name] = users.get(name, 0) + 1
            else:
                with pytest.raises(RequestError):
                    slots.acquire(name)
        elif users.get(name):
            slots.release(name)
            users[name] -= 1


def test_the_least_recently_used_place_goes_first():
    filled: dict[int, str] = {}
    slots = AdapterSlots(2, lambda name, slot: filled.__setitem__(slot, name))
    for name in ("a", "b", "a", "c"):
        slots.acquire(name)
        slots.release(name)
    assert set(filled.values()) == {"a", "c"}


def test_elements_are_rounded_to_the_type_of_the_graph():
    values = np.array([1.0, 1.00390625, 3.1415927], np.float32)
    bits = _as_element(values, DataType.BFLOAT16)
    assert (bits.astype(np.uint32) << 16).view(np.float32).tolist() == [1.0, 1.0, 3.140625]
    assert _as_element(values, DataType.FLOAT16).dtype == np.float16
