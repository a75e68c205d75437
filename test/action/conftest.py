"""A small SmolVLA, built once for all tests of this folder that ask no other policy."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def smolvla_engines(tmp_path_factory):
    """Its engine directories, by lowering."""
    from smolvla_reference import FOLDER, LOWERINGS

    from edgellm_ros.builder.build import build_engine

    root = tmp_path_factory.mktemp("smolvla")
    return {lowering: build_engine(FOLDER, root / lowering, lowering=lowering) for lowering in LOWERINGS}


@pytest.fixture(scope="module")
def smolvla_runtime(smolvla_engines):
    from edgellm_ros.action.policy_runtime import PolicyRuntime

    with PolicyRuntime(smolvla_engines["onnxruntime"], threads=1) as opened:
        yield opened
