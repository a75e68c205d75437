"""Compute one action chunk from a stored observation, without ROS."""

from __future__ import annotations

import argparse
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backends.registry import NAMES as BACKENDS
from ..errors import ObservationError, RequestError

if TYPE_CHECKING:
    from ..action.chunk import ActionChunk

MOST_BYTES = 1 << 30  # of an observation; a small archive may say that it holds far more than there is memory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("engine_dir", metavar="ENGINE_DIR", help="engine directory of a policy")
    parser.add_argument(
        "--observation",
        required=True,
        metavar="OBS.npz",
        help="arrays 'state' and one uint8 RGB [height, width, 3] for each camera, by its name or the last part of it; "
        "of a policy that drives 'history' [points, 3] and [frames, height, width, 3] for each camera",
    )
    parser.add_argument("--task", default="", metavar="TEXT", help="what the robot is to do")
    parser.add_argument("--noise", metavar="X0.npy", help="starting noise [horizon, padded] instead of a seed's")
    parser.add_argument("--noise-seed", type=int, metavar="N", help="seed of the starting noise (default: 5)")
    parser.add_argument("--steps", type=int, default=0, metavar="N", help="denoise steps (default: the policy's own)")
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="of what a policy says first (default: the policy's own)"
    )
    parser.add_argument(
        "--backend", default="auto", metavar="NAME", help=f"{', '.join(BACKENDS)} (default: %(default)s)"
    )
    parser.add_argument(
        "--threads", type=int, default=0, metavar="N", help="of the engines (default: all physical cores)"
    )
    parser.add_argument("--json", action="store_true", help="print the chunk as JSON")


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays of an .npz file; nothing in it is executed.

    :raises ObservationError: missing, no such file, larger than ``MOST_BYTES``, or with objects that are no plain
        arrays.
    """
    import numpy as np

    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MOST_BYTES:
            raise ValueError(f"it holds {size} bytes, want {MOST_BYTES} at most")
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except Exception as error:  # of a damaged file, which numpy and its unpackers have no class of their own for
        raise _unreadable(path, error, "numpy.savez") from None
    for name, array in found.items():
        if not isinstance(array, np.ndarray):
            raise ObservationError(f"{path} holds {name!r}, which is no array; write it with numpy.savez.")
    return found


def read_array(path: Path) -> Any:
    """The array of an .npy file. :raises ObservationError: missing, or no such file."""
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except Exception as error:  # see ``read_arrays``
        raise _unreadable(path, error, "numpy.save") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        raise ObservationError(f"{path} holds no array of numbers; write it with numpy.save.")
    return array


def _unreadable(path: Path, error: Exception, writer: str) -> ObservationError:
    if isinstance(error, OSError) and error.strerror:
        return ObservationError(f"{path} cannot be read ({error.strerror}); check the path.")
    kind = "npz" if writer.endswith("z") else "npy"
    return ObservationError(f"{path} cannot be read as an .{kind} file ({_reason(error)}); write it with {writer}.")


def _reason(error: Exception) -> str:
    """What numpy says of a file, without its advice to trust it."""
    if "pickle" in str(error):
        return "it holds no plain arrays"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def run(arguments: argparse.Namespace) -> int:
    """Compute and print; 0 when there is a chunk."""
    import numpy as np

    from ..action.observation import Observation
    from ..action.policy_runtime import PolicyRuntime
    from ..backends.registry import graph_libraries

    arrays = read_arrays(Path(arguments.observation))
    history = arrays.pop("ego_history", None)
    numbers = {"state": arrays.pop("state", None), "history": arrays.pop("history", history)}
    for name, array in numbers.items():
        if array is not None and array.dtype.kind not in "fiu":
            raise ObservationError(f"the array {name!r} is {array.dtype}; want numbers.")
    noise = read_array(Path(arguments.noise)) if arguments.noise else None
    with PolicyRuntime(arguments.engine_dir, backend=arguments.backend, threads=arguments.threads) as runtime:
        state = numbers["state"]
        if numbers["history"] is not None and runtime.manifest.driving is None:
            raise ObservationError(f"{arguments.observation} has a history, and this policy takes none: leave it out.")
        if state is None and runtime.manifest.state.width:
            raise ObservationError(f"{arguments.observation} has no array 'state'; want it and one for each camera.")
        if arguments.temperature is not None:
            if runtime.manifest.driving is None:
                raise RequestError("--temperature is of what a policy says first; this one says nothing: leave it out.")
            runtime.reasoning_sampling = replace(runtime.reasoning_sampling, temperature=arguments.temperature)
        chunk = runtime.compute(
            Observation(arrays, np.zeros(0) if state is None else state, history=numbers["history"]),
            arguments.task,
            noise=noise,
            noise_seed=arguments.noise_seed,
            denoise_steps=arguments.steps,
            on_text=(lambda text: None) if arguments.json else (lambda text: print(text, end="", flush=True)),
        )
        assert chunk is not None  # nothing cancels here
        names, units = runtime.manifest.action.names, runtime.manifest.action.units
        meaning = runtime.manifest.meaning.value
        libraries = graph_libraries(runtime.backend)
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
                    "libraries": libraries,
                    **_path(chunk),
                }
            )
        )
        return 0
    if chunk.reasoning:
        print()
    print("  ".join(f"{name} ({unit})" for name, unit in zip(names, units, strict=True)))
    for row in chunk.rows:
        print("  ".join(f"{value:.5g}" for value in row))
    print(f"seed {chunk.seed}, noise {chunk.noise_digest}, {chunk.timings['total_ms']:.0f} ms ({meaning})")
    return 0


def _path(chunk: ActionChunk) -> dict[str, Any]:
    """What a policy that drives adds: its reasoning, and the path in the vehicle's frame in m, rad and m/s."""
    if chunk.path is None:
        return {}
    path = chunk.path
    parts = {"positions": path.positions, "headings": path.headings, "speeds": path.speeds}
    return {"reasoning": chunk.reasoning, "path": {name: part.tolist() for name, part in parts.items()}}
