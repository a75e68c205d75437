"""The words that a policy reads: its task, and for some families its state in bins."""

from __future__ import annotations

import numpy as np

from ..errors import ObservationError
from .policy_manifest import Handoff, PolicyManifest, StateInput

STATE_BINS = 256


def state_bins(state: np.ndarray) -> np.ndarray:
    """int64 [n]: bins of a normalised state, 0 to 255 from -1 to 1; -1 below the range, as the models were trained."""
    edges = np.linspace(-1.0, 1.0, STATE_BINS + 1)[:-1]
    bins: np.ndarray = np.digitize(np.asarray(state), bins=edges) - 1
    return bins


def prompt_text(manifest: PolicyManifest, task: str, state: np.ndarray | None) -> str:
    """The prompt as the policy was trained on it.

    :raises ObservationError: the policy reads its state as words, and there is none.
    """
    if manifest.plain_words:
        task = "".join(sign for sign in task.lower() if sign.isalnum() or sign.isspace() or sign == "_")
    if manifest.spaced_words:
        task = task.strip().replace("_", " ").replace("\n", " ")
    if manifest.handoff is Handoff.CONTEXT or manifest.driving is not None:
        return task
    if manifest.state_input is not StateInput.PROMPT_BINS:
        return manifest.prompt_format.format(task=task.rstrip("\n"))
    if state is None:
        raise ObservationError("the policy reads its state in the prompt; give the normalised state.")
    words = " ".join(map(str, state_bins(state)))
    return manifest.prompt_format.format(task=task, state=words)
