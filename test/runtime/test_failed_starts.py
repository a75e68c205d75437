"""A runtime that cannot be made leaves nothing open: not its engines, and no backend that is its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("cv2")

from adapter_requests import engine as engine_with_adapters
from failing_backend import FailingBackend, fail_everywhere
from level_engines import level_engine

from edgellm_ros.engine_format import open_engine_directory
from edgellm_ros.errors import EngineDirectoryError, RequestError
from edgellm_ros.runtime import artifacts, executor, rank_model
from edgellm_ros.runtime.context_cache import ContextCacheConfig
from edgellm_ros.runtime.executor import ModelExecutor
from edgellm_ros.runtime.rank_runtime import LLMRankRuntime
from edgellm_ros.vision import runner
from edgellm_ros.vision.runner import VisionRunner
from edgellm_ros.vision.tower import Tower
from edgellm_ros.vision.visual_directory import open_visual_directory

CACHE = ContextCacheConfig(1 << 20)


@pytest.fixture(scope="module")
def path():
    return level_engine("qwen3_vl", "onnxruntime")


def test_an_engine_that_fails_to_open_closes_what_it_has_but_not_the_backend_of_others(path):
    backends = fail_everywhere(lambda backend: LLMRankRuntime(path, backend=backend, context_cache=CACHE))
    assert len(backends) > 10 and not any(backend.closes for backend in backends)


def test_a_backend_of_its_own_is_closed_once_with_it(path, monkeypatch):
    def made(backend):
        monkeypatch.setattr(artifacts, "open_backend", lambda name, **options: backend)
        return LLMRankRuntime(path, context_cache=CACHE)

    assert {backend.closes for backend in fail_everywhere(made)} == {1}


def test_the_backend_of_its_tower_is_closed_once_with_it(path, monkeypatch):
    ours = FailingBackend()

    def made(backend):
        monkeypatch.setattr(rank_model, "_tower_backend", lambda name, directory: backend)
        return LLMRankRuntime(path, backend=ours)

    assert {backend.closes for backend in fail_everywhere(made)} == {1}
    assert not ours.open and not ours.closes


@pytest.mark.parametrize(
    ("module", "name"),
    [
        *((rank_model, name) for name in ("VanillaDecoding", "PrefixReuse", "TokenPruner", "Admission")),
        *((runner, name) for name in ("check_fit", "device_images", "EncoderCache")),
        *((rank_model, name) for name in ("MediaFormat", "HiddenStates")),
        (executor, "check_embeddings"),
    ],
)
def test_a_part_that_no_backend_opens_may_fail_as_well(path, module, name, monkeypatch):
    backend, other = FailingBackend(), FailingBackend()

    def fails(*arguments, **options):
        raise EngineDirectoryError("it does not fit; build it again.")

    monkeypatch.setattr(artifacts, "open_backend", lambda name, **options: backend)
    monkeypatch.setattr(rank_model, "_tower_backend", lambda name, directory: other)
    monkeypatch.setattr(module, name, fails)
    with pytest.raises(EngineDirectoryError, match="it does not fit"):
        LLMRankRuntime(path)
    assert backend.closes == 1 and not backend.open and not other.open
    reached = module is runner or name in ("MediaFormat", "HiddenStates")  # the tower's own backend
    assert other.closes == reached


def test_an_adapter_that_does_not_load_leaves_nothing_open(tmp_path, monkeypatch):
    backend = FailingBackend()
    monkeypatch.setattr(artifacts, "open_backend", lambda name, **options: backend)
    with pytest.raises(RequestError, match="nowhere"):
        LLMRankRuntime(engine_with_adapters(tmp_path), lora_weights={"ours": tmp_path / "nowhere"})
    assert backend.closes == 1 and not backend.open


def test_the_executor_the_tower_and_its_runner_close_what_they_opened(path):
    visual = open_visual_directory(path / "visual")
    for make in (
        lambda backend: ModelExecutor(open_engine_directory(path), backend),
        lambda backend: VisionRunner(visual, backend),
        lambda backend: Tower(visual, backend),
    ):
        assert len(fail_everywhere(make)) > 1


def test_a_tower_of_other_rows_than_its_settings_tell_is_closed(path):
    visual = open_visual_directory(path / "visual")
    wider = replace(visual, tower=replace(visual.tower, hidden_size=visual.tower.hidden_size + 1))
    backend = FailingBackend()
    with pytest.raises(EngineDirectoryError, match="gives rows of"):
        Tower(wider, backend)
    assert backend.calls == 1 and not backend.open
