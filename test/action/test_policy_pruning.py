"""Chunks of which visual tokens were left out: as if nobody attended to them, at the places that all had."""

from __future__ import annotations

import numpy as np
import pytest
from policy_checkpoints import observation, scaled_error
from smolvla_reference import ARRAYS, LOWERINGS

from edgellm_ros.action import policy_engines
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.vision.pruner import PruningOutcome, PruningReport, VisualPrunerConfig

PRUNER = VisualPrunerConfig(enabled=True, reduction_ratio=0.5, min_visual_tokens=1)
CAMERAS = ("top", "wrist", "side")


def compute_pruned(opened, **options):
    options = {"noise": ARRAYS["pruned_noise"], "visual_pruner": PRUNER, **options}
    return opened.compute(observation(ARRAYS, "pruned", CAMERAS), "touch the ring", **options)


def choose(keep):
    """Stands in for the backend's choice: these rows of the prefix stay, and all words."""
    return lambda embeddings, spans, *pivots: np.append(keep, np.arange(12, embeddings.shape[0])).astype(np.int32)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_pruned_chunk_equals_one_in_which_nobody_attends_to_what_was_dropped(smolvla_engines, lowering, monkeypatch):
    with PolicyRuntime(smolvla_engines[lowering], threads=1) as opened:
        keep = np.setdiff1d(np.arange(12), ARRAYS["pruned_dropped"])
        monkeypatch.setattr(opened.backend, "select_tokens", choose(keep))
        chunk = compute_pruned(opened)
        assert scaled_error(chunk.normalised, ARRAYS["pruned_normalised"]) < 1e-5
        assert scaled_error(chunk.rows, ARRAYS["pruned_actions"]) < 1e-5
        assert chunk.pruning == PruningReport(PruningOutcome.APPLIED, 12, 6)
        monkeypatch.setattr(opened.backend, "select_tokens", choose(np.arange(12)))
        assert np.array_equal(compute_pruned(opened).rows, compute_pruned(opened, visual_pruner=None).rows)


def test_a_pruned_chunk_takes_tokens_of_every_camera_and_repeats(smolvla_runtime):
    whole = compute_pruned(smolvla_runtime, visual_pruner=None)
    first, second = (compute_pruned(smolvla_runtime) for _ in range(2))
    assert np.array_equal(first.rows, second.rows) and not np.array_equal(first.rows, whole.rows)
    assert whole.pruning.outcome is PruningOutcome.OFF and first.pruning.after == 6


@pytest.mark.parametrize("what", ["positions", "actions"])
def test_positions_that_close_up_over_dropped_tokens_change_the_chunk(smolvla_engines, monkeypatch, what):
    place = policy_engines.PolicyEngines._place

    def closed(self, engine, positions, ends):
        moved = np.arange(len(positions)) if positions[0] < 12 else positions - (6 if what == "actions" else 0)
        place(self, engine, moved if what == "positions" or positions[0] >= 12 else positions, ends)

    monkeypatch.setattr(policy_engines.PolicyEngines, "_place", closed)
    with PolicyRuntime(smolvla_engines["onnxruntime"], threads=1) as opened:
        monkeypatch.setattr(
            opened.backend, "select_tokens", choose(np.setdiff1d(np.arange(12), ARRAYS["pruned_dropped"]))
        )
        assert scaled_error(compute_pruned(opened).normalised, ARRAYS["pruned_normalised"]) > 1e-3
