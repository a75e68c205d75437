"""A policy that cannot be made leaves nothing open: not its engines, and not the backend that it opened itself."""

from __future__ import annotations

import pytest

pytest.importorskip("onnxruntime")

from failing_backend import FailingBackend, fail_everywhere
from policy_checkpoints import build_references

from edgellm_ros.action import policy_runtime
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.errors import BackendError, EngineDirectoryError

FAMILIES = ("smolvla", "groot", "alpamayo")  # one for each kind of engines


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    return build_references(tmp_path_factory.mktemp("policies"), FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_fails_to_open_its_engines_are_closed_and_a_backend_of_others_is_not(engines, family):
    backends = fail_everywhere(lambda backend: PolicyRuntime(engines[family], backend=backend))
    assert len(backends) > 10 and not any(backend.closes for backend in backends)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_backend_of_its_own_is_closed_once_with_it(engines, family, monkeypatch):
    def made(backend):
        monkeypatch.setattr(policy_runtime, "open_backend", lambda name, **options: backend)
        return PolicyRuntime(engines[family])

    assert {backend.closes for backend in fail_everywhere(made)} == {1}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("part", ["Tokenizer.from_directory", "Denoiser"])
def test_a_part_that_no_backend_opens_may_fail_as_well(engines, family, part, monkeypatch):
    def fails(*arguments):
        raise EngineDirectoryError("it is missing; put it there.")

    backend = FailingBackend()
    monkeypatch.setattr(policy_runtime, "open_backend", lambda name, **options: backend)
    monkeypatch.setattr(f"{policy_runtime.__name__}.{part}", fails)
    with pytest.raises(EngineDirectoryError, match="it is missing"):
        PolicyRuntime(engines[family])
    assert backend.closes == 1 and not backend.open


def test_a_backend_that_does_not_open_is_told_as_it_is(engines, monkeypatch):
    def fails(name, **options):
        raise BackendError("no such device.")

    monkeypatch.setattr(policy_runtime, "open_backend", fails)
    with pytest.raises(BackendError, match="no such device"):
        PolicyRuntime(engines["smolvla"])
