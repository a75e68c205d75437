"""Image towers and policies on OpenVINO against the answers of transformers and lerobot."""

from __future__ import annotations

import numpy as np
import pytest
from openvino_choice import compute_in_float32, prefer_openvino
from policy_checkpoints import observation, reference, scaled_error
from tiny_families import TINY_FAMILIES
from vision_engines import TOLERANCE, distance_of_images, engine, tower_outputs
from vision_inputs import FAMILIES

from edgellm_ros import LLMGenerationRequest, LLMGenerationResponse, LLMInferenceRuntime, Request, SamplingParameters
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.backends.registry import graph_libraries
from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_weights import write_random_checkpoint
from edgellm_ros.engine_format import VISUAL_DIRECTORY, BuilderLimits

pytest.importorskip("openvino")

from edgellm_ros.backends.openvino_backend import OpenVINOBackend


@pytest.fixture(autouse=True)
def preferred(monkeypatch):
    prefer_openvino(monkeypatch)


@pytest.fixture
def libraries(monkeypatch):
    """What backends say when they close."""
    found: dict[str, str] = {}
    close = OpenVINOBackend.close

    def noting(self):
        found.update(self.libraries())
        close(self)

    monkeypatch.setattr(OpenVINOBackend, "close", noting)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_towers_give_what_transformers_gives(monkeypatch, libraries, family):
    compute_in_float32(monkeypatch)
    assert distance_of_images(engine(family, "onnxruntime") / VISUAL_DIRECTORY, family, OpenVINOBackend) < TOLERANCE
    assert "times as fast" in libraries["visual.onnx"]


@pytest.mark.parametrize("family", FAMILIES)
def test_towers_in_the_precision_of_this_processor_stay_near(libraries, family):
    visual = engine(family, "onnxruntime") / VISUAL_DIRECTORY
    (ours,), (exact,) = (tower_outputs(visual, family, (1,), kind) for kind in (OpenVINOBackend, CPUBackend))
    for a, b in zip(ours, exact, strict=True):
        assert np.sum(a * b) >= 0.999 * np.linalg.norm(a) * np.linalg.norm(b)
    assert "times as fast" in libraries["visual.onnx"]


@pytest.mark.parametrize("family", ["smolvla", "pi05", "groot"])
def test_policies_give_what_lerobot_gives(monkeypatch, libraries, tmp_path, family):
    compute_in_float32(monkeypatch)
    folder, arrays, cases = reference(family)
    (tmp_path / "robot.yaml").write_text("embodiment: libero_sim\n" if family == "groot" else "{}\n")
    path = build_engine(folder, tmp_path / "engine", policy_settings=tmp_path / "robot.yaml")
    case, row = next((name, row) for name, row in cases.items() if row.get("embodiment", "libero_sim") == "libero_sim")
    with PolicyRuntime(path, backend="openvino", threads=1) as runtime:
        runtime.warm_up()
        for _ in range(2):
            chunk = runtime.compute(
                observation(arrays, case, row["cameras"], 7),
                row["task"],
                noise=arrays[f"{case}_noise"],
                denoise_steps=row["steps"],
            )
            assert scaled_error(chunk.normalised, arrays[f"{case}_normalised"]) < 1e-5
    assert {"visual.onnx", "prefix.onnx", "action.onnx"} <= set(libraries)
    assert all("times as fast" in library for library in libraries.values()), libraries


def test_a_text_model_stays_where_its_caches_are(tmp_path):
    checkpoint = write_random_checkpoint(tmp_path / "checkpoint", TINY_FAMILIES["llama"])
    path = build_engine(checkpoint, tmp_path / "engine", limits=BuilderLimits(1, 32, 32))
    answers = []
    for backend in ("onnxruntime", "openvino"):
        with LLMInferenceRuntime(path, backend=backend, threads=1) as runtime:
            runtime.warm_up()
            response = LLMGenerationResponse()
            request = LLMGenerationRequest(
                [Request(ignore_eos=True)],
                sampling=SamplingParameters(temperature=0.0),
                max_generate_length=8,
                pre_tokenized_input_ids=[[5, 6, 7]],
            )
            assert runtime.handle_request(request, response), runtime.last_refusal
            answers.append(response.output_ids)
            assert graph_libraries(runtime.rank.backend) == {}
    assert answers[0] == answers[1]
