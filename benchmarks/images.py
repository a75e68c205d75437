"""What images cost: processors, the callbacks of cameras, and the token rate while cameras send.

    python -m benchmarks.images [processors] [cameras] [--engine DIR] [--rounds 5] [--output FILE]

``processors``: decoding and processing one 1280 by 720 rgb8 frame, one core, for published settings; as bytes, which
towers take, and normalised. ``cameras``: three raw cameras of 640 by 480 at 30 Hz from another process (see
``camera_load.py``), and the rate of ``--engine`` (a text engine) with the cameras off and on in turns.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .harness import Metric, Row, device_name
from .run import write

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
SMOLVLM = {**HALF, "max_image_size": {"longest_edge": 512}, "resample": 1}
PATCHES = {**HALF, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "smolvlm_one_view": ("smolvlm", {**SMOLVLM, "size": {"longest_edge": 2048}, "do_image_splitting": False}),
    "smolvlm_one_view_of_512": ("smolvlm", {**SMOLVLM, "size": {"longest_edge": 512}, "do_image_splitting": False}),
    "smolvlm_13_tiles": ("smolvlm", {**SMOLVLM, "size": {"longest_edge": 2048}, "do_image_splitting": True}),
    "qwen2_5_vl": ("qwen2_5_vl", {**PATCHES, "min_pixels": 3136, "max_pixels": 12845056}),
    "paligemma": ("paligemma", {**HALF, "resample": 3, "size": {"height": 224, "width": 224}, "image_seq_length": 256}),
    "smolvla": ("smolvla", {}),
}
HEIGHT, WIDTH = 720, 1280


def processors(rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each round, processors in turns."""
    import cv2
    import numpy as np

    from edgellm_ros.vision.decode import RawImage, decode_raw
    from edgellm_ros.vision.processor import Processor, open_processor

    cv2.setNumThreads(1)
    opened: dict[str, Processor] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (family, image) in PROCESSORS.items():
            place = Path(folder) / name
            place.mkdir()
            config = {"model_type": family, "resize_imgs_with_padding": [512, 512]}
            (place / "config.json").write_text(json.dumps(config))
            (place / "preprocessor_config.json").write_text(json.dumps(image))
            (place / "processor_config.json").write_text('{"image_seq_len": 64}')
            opened[f"{name}_normalised"] = open_processor(place)
            if family != "smolvla":  # whose pixels are blended in 32-bit numbers
                opened[name] = open_processor(place, normalise=False)
    random = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    frame = RawImage(HEIGHT, WIDTH, "rgb8", False, 3 * WIDTH, cv2.GaussianBlur(random, (0, 0), 3).tobytes())
    times: dict[str, list[float]] = {name: [] for name in opened}
    for _ in range(rounds + 1):
        for name, processor in opened.items():
            start = time.perf_counter()
            processor.process([decode_raw(frame)])
            times[name].append(1000 * (time.perf_counter() - start))
    return {name: values[1:] for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["processors"], help="processors, cameras")
    parser.add_argument("--engine", type=Path, help="a text engine, for cameras")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    versions = {name: importlib.metadata.version(name) for name in ("edgellm_ros", "numpy", "opencv-python-headless")}

    def add(case: str, unit_of: Callable[[str], str], found: Mapping[str, list[float]]) -> None:
        for name, values in found.items():
            metric, value = Metric(name, unit_of(name)), statistics.median(values)
            rows.append(Row(case, metric, value, tuple(values), device=device_name(1), versions=versions))
            print(f"{case:16} {name:34} {value:10.3f} {metric.unit}   ({min(values):.3f} to {max(values):.3f})")

    if "processors" in options.parts:
        add("image processors", lambda _: "ms", processors(options.rounds))
    if "cameras" in options.parts:
        if options.engine is None:
            parser.error("cameras needs --engine")
        from .camera_load import measure

        add("three cameras", camera_unit, measure(options.engine, options.rounds))
    if options.output is not None:
        write(options.output, rows)


def camera_unit(name: str) -> str:
    """Of a metric of ``camera_load``, which its name ends with."""
    ends = {"ms_per_message": "ms", "_per_second": "1/s", "percent": "%"}
    return next((unit for end, unit in ends.items() if name.endswith(end)), "")


if __name__ == "__main__":
    main()
