"""lerobot's own chunks of a small SmolVLA, and the same observations given to a policy of ours."""

from __future__ import annotations

from policy_checkpoints import observation, reference

FOLDER, ARRAYS, CASES = reference("smolvla")
LOWERINGS = ("onnxruntime", "tensorrt", "tensorrt_legacy")


def compute(runtime, case, **options):
    row = CASES[case]
    options = {"noise": ARRAYS[f"{case}_noise"], "denoise_steps": row["steps"], **options}
    return runtime.compute(observation(ARRAYS, case, row["cameras"], 7), row["task"], **options)
