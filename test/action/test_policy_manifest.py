"""The policy manifest: read back as written, and refused where it cannot drive a robot."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edgellm_ros.action.dimensions import Dimensions
from edgellm_ros.action.fingerprints import Fingerprints
from edgellm_ros.action.normalization import IDENTITY, Normalization, NormalizationKind
from edgellm_ros.action.policy_manifest import (
    POLICY_FILE,
    ActionMeaning,
    CameraSlot,
    FlowResult,
    Handoff,
    ImageFit,
    PolicyManifest,
    StateInput,
    SuffixMask,
    read_policy_manifest,
)
from edgellm_ros.action.solver import FlowDirection
from edgellm_ros.action.time_embedding import Waves, sinusoids
from edgellm_ros.errors import ObservationError, PolicyError


def manifest(**changes):
    statistics = Normalization(NormalizationKind.MEAN_STD, (0.0, 1.0), (1.0, 2.0), 1e-8)
    fields = {
        "family": "smolvla",
        "policy": "test",
        "state": Dimensions(("shoulder", "elbow"), ("rad", "rad"), 32, statistics),
        "action": Dimensions(("shoulder", "elbow"), ("rad", "rad"), 32, statistics),
        "meaning": ActionMeaning.JOINT_POSITION,
        "horizon": 50,
        "execute_steps": 50,
        "step_time": 1 / 30,
        "cameras": (CameraSlot("observation.images.top"), CameraSlot("observation.images.wrist", required=False)),
        "image_size": (512, 512),
        "image_fit": ImageFit.PAD_LEFT_TOP,
        "image_tokens": 64,
        "empty_cameras": 0,
        "handoff": Handoff.PREFIX_KV,
        "direction": FlowDirection.DOWN,
        "result": FlowResult.VELOCITY,
        "state_input": StateInput.PREFIX_TOKEN,
        "suffix_mask": SuffixMask.CAUSAL,
        "denoise_steps": 10,
        **changes,
    }
    return PolicyManifest(**fields)


def test_it_is_read_back_as_it_was_written(tmp_path):
    written = manifest(delta_dimensions=(1,), prompt_format="Task: {task}", fingerprints=Fingerprints("ab" * 32))
    (tmp_path / POLICY_FILE).write_text(json.dumps(written.to_json()))
    assert read_policy_manifest(tmp_path) == written


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("horizon", 0, "horizon is 0; want a whole number from 1"),
        ("execute_steps", 51, "execute_steps is 51; want a whole number from 1 to 50"),
        ("denoise_steps", 101, "denoise_steps is 101"),
        ("step_time", 0.0, "step_time is 0.0; want seconds above 0"),
        ("step_time", float("nan"), "step_time is nan"),
        ("image_size", (0, 512), "image_size is 0"),
        ("cameras", (CameraSlot("a.top"), CameraSlot("b.top")), "two cameras share a name"),
        ("delta_dimensions", (2,), "delta_dimensions is 2; want a whole number from 0 to 1"),
        ("delta_dimensions", (1.0,), r"delta_dimensions is 1\.0"),
        ("delta_dimensions", (0, 0), "want none twice"),
        ("image_size", (512, 512, 3), "want height and width"),
        ("rope_theta", 0.0, "rope_theta is 0.0; want a number above 0"),
        ("prompt_format", "go\n", "want text with {task}, in this order and once each"),
        ("prompt_format", "{task}{task}", "want text with {task}"),
        ("prompt_format", "{task.__class__}", "want text with {task}"),
        ("prompt_format", "{task:>999999999}", "want text with {task}"),
        ("prompt_format", "{task!r}", "want text with {task}"),
        ("prompt_format", "{task", "want text with {task}"),
        ("prompt_format", "{0}", "want text with {task}"),
        ("prompt_format", "{state} {task}", "want text with {task}"),
        ("network_rows", 49, "network_rows is 49; want a whole number from 50"),
        ("image_crop", 0.0, "image_crop is 0.0; want a share above 0"),
        ("time_waves", (Waves(4, 0.0, 1.0),), "a number of time_waves is 0.0"),
        ("rope_section", (3, -1), "rope_section is -1"),
    ],
)
def test_values_out_of_range_are_named(key, value, sentence):
    with pytest.raises(PolicyError, match=sentence):
        manifest(**{key: value})


@pytest.mark.parametrize(
    ("changes", "sound", "unsound"),
    [
        ({"state_input": StateInput.PROMPT_BINS}, "{task}, {state}", "{task}"),
        ({"handoff": Handoff.CONTEXT}, "{images} {task}!", "{task} {images}"),
    ],
)
def test_a_prompt_has_a_place_for_what_its_policy_reads(changes, sound, unsound):
    assert manifest(**changes, prompt_format=sound).prompt_format == sound
    with pytest.raises(PolicyError, match="prompt_format"):
        manifest(**changes, prompt_format=unsound)


def test_dimensions_agree_with_their_statistics_and_the_network():
    with pytest.raises(PolicyError, match="statistics are for 2 dimensions; the policy has 3"):
        Dimensions(("a", "b", "c"), ("rad",) * 3, 32, Normalization(NormalizationKind.RANGE, (0.0, 0.0), (1.0, 1.0)))
    with pytest.raises(PolicyError, match="33 dimensions do not fit in the 32"):
        Dimensions(tuple(map(str, range(33))), ("rad",) * 33, 32, IDENTITY)
    with pytest.raises(PolicyError, match="no name twice"):
        Dimensions(("a", "a"), ("rad", "rad"), 32, IDENTITY)


def test_values_are_padded_with_zeros_behind():
    padded = Dimensions(("a", "b"), ("rad", "m"), 5, IDENTITY).pad(np.ones((3, 2)))
    assert padded.shape == (3, 5) and padded[:, :2].all() and not padded[:, 2:].any() and padded.dtype == np.float32


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"contract_version": 1}, "contract_version 1; this version reads 2: build it again"),
        ({"horizon": None}, "horizon is None"),
        ({"meaning": "levitation"}, "bad value"),
        ({"surprise": 1}, "bad value"),
        ({"state": None}, "bad value"),
        ({"cameras": [{"name": "top"}]}, "lacks the key 'key'"),
        ({"fingerprints": "abc"}, "bad value"),
        ({"fingerprints": {"weights": "ab" * 32}}, "bad value"),
        ({"fingerprints": {"tokenizer": "AB" * 32}}, "the fingerprint 'AB.* of the tokenizer; want 64 hexadecimal"),
        ({"fingerprints": {"build": 7}}, "the fingerprint 7 of the build; want 64 hexadecimal digits"),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path, change, sentence):
    (tmp_path / POLICY_FILE).write_text(json.dumps({**manifest().to_json(), **change}))
    with pytest.raises(PolicyError, match=sentence):
        read_policy_manifest(tmp_path)


def test_a_missing_file_or_key_is_one_sentence(tmp_path):
    with pytest.raises(PolicyError, match=r"policy\.json"):
        read_policy_manifest(tmp_path)
    for key in manifest().to_json():
        content = manifest().to_json()
        del content[key]
        (tmp_path / POLICY_FILE).write_text(json.dumps(content))
        with pytest.raises(PolicyError, match=POLICY_FILE):
            read_policy_manifest(tmp_path)


def test_cameras_are_found_by_full_name_and_by_its_last_component():
    policy = manifest()
    given = ["wrist", "observation.images.top"]
    assert [slot.name for slot in policy.present_cameras(given)] == ["top", "wrist"]
    assert [slot.name for slot in policy.present_cameras(["top"])] == ["top"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["wrist"], "camera 'top' is missing"),
        ([], "camera 'top' is missing"),
        (["top", "left"], "no camera 'left'; its cameras are top, wrist"),
        (["top", "observation.images.top"], "camera 'top' is given twice"),
    ],
)
def test_missing_and_unknown_cameras_are_refused(given, sentence):
    with pytest.raises(ObservationError, match=sentence):
        manifest().present_cameras(given)


def test_waves_of_every_network_are_those_of_its_own_formula():
    times = np.array([0.0, 0.3, 750.0])
    periods = 4e-3 * 1000 ** np.linspace(0, 1, 6)  # the pi line: sines, then cosines
    angles = times[:, None] * 2 * np.pi / periods
    wanted = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    assert np.abs(sinusoids(times, (Waves.of_periods(12, 4e-3, 4.0),)) - wanted).max() < 1e-6
    angles = times[:, None] * np.exp(-np.log(1e4) * np.arange(6) / 5)  # GR00T's transformer: cosines first
    wanted = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    assert np.abs(sinusoids(times, (Waves(6, 1.0, 1e-4, cosines_first=True),)) - wanted).max() < 1e-6
    both = sinusoids(times, (Waves(6, 1.0, 1e-4, cosines_first=True), Waves(3, 2.0, 8.0, scale=2**0.5)))
    assert both.shape == (3, 18) and np.allclose(both[:, :12], wanted, atol=1e-6)
    assert np.allclose(both[:, 12:15], 2**0.5 * np.sin(times[:, None] * [2, 4, 8]), atol=1e-6)
