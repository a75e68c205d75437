"""Compute one action chunk from a stored observation, without ROS."""

from __future__ import annotations

import argparse
import json
import zipfile
from pathlib import Path
from typing import Any

from ..errors import ObservationError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("engine_dir", metavar="ENGINE_DIR", help="engine directory of a policy")
    parser.add_argument(
        "--observation",
        required=True,
        metavar="OBS.npz",
        help="arrays 'state' and one uint8 RGB [height, width, 3] for each camera, by its name or the last part of it",
    )
    parser.add_argument("--task", default="", metavar="TEXT", help="what the robot is to do")
    parser.add_argument("--noise", metavar="X0.npy", help="starting noise [horizon, padded] instead of a seed's")
    parser.add_argument("--noise-seed", type=int, metavar="N", help="seed of the starting noise (default: 5)")
    parser.add_argument("--steps", type=int, default=0, metavar="N", help="denoise steps (default: the policy's own)")
    parser.add_argument("--backend", default="auto", help="auto, onnxruntime, ... (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="of the engines (default: all physical cores)")
    parser.add_argument("--json", action="store_true", help="print the chunk as JSON")


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays of an .npz file; nothing in it is executed.

    :raises ObservationError: missing, no such file, or with objects that are no plain arrays.
    """
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("a single array")
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, MemoryError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ObservationError(
            f"{path} cannot be read as an .npz file ({reason}); write it with numpy.savez."
        ) from None


def read_array(path: Path) -> Any:
    """The array of an .npy file. :raises ObservationError: missing, or no such file."""
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ObservationError(f"{path} cannot be read as an .npy file ({reason}); write it with numpy.save.") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        raise ObservationError(f"{path} holds no array of numbers; write it with numpy.save.")
    return array


def run(arguments: argparse.Namespace) -> int:
    """Compute and print; 0 when there is a chunk."""
    from ..action.observation import Observation
    from ..action.policy_runtime import PolicyRuntime

    arrays = read_arrays(Path(arguments.observation))
    if "state" not in arrays:
        raise ObservationError(f"{arguments.observation} has no array 'state'; want it and one for each camera.")
    state = arrays.pop("state")
    if state.dtype.kind not in "fiu":
        raise ObservationError(f"the array 'state' is {state.dtype}; want numbers.")
    noise = read_array(Path(arguments.noise)) if arguments.noise else None
    with PolicyRuntime(arguments.engine_dir, backend=arguments.backend, threads=arguments.threads) as runtime:
        chunk = runtime.compute(
            Observation(arrays, state),
            arguments.task,
            noise=noise,
            noise_seed=arguments.noise_seed,
            denoise_steps=arguments.steps,
        )
        assert chunk is not None  # nothing cancels here
        names, units = runtime.manifest.action.names, runtime.manifest.action.units
        meaning = runtime.manifest.meaning.value
    if arguments.json:
        normalised = chunk.normalised
        print(
            json.dumps(
                {
                    "actions": chunk.rows.tolist(),
                    "actions_normalized": [] if normalised is None else normalised.astype(float).tolist(),
                    "names": names,
                    "units": units,
                    "meaning": meaning,
                    "step_time": chunk.step / 1e9,
                    "seed": chunk.seed,
                    "x0_digest": chunk.noise_digest,
                    "timings": chunk.timings,
                }
            )
        )
        return 0
    print("  ".join(f"{name} ({unit})" for name, unit in zip(names, units, strict=True)))
    for row in chunk.rows:
        print("  ".join(f"{value:.5g}" for value in row))
    print(f"seed {chunk.seed}, noise {chunk.noise_digest}, {chunk.timings['total_ms']:.0f} ms ({meaning})")
    return 0
