"""What images cost: processors, the callbacks of cameras, and the token rate while cameras send.

    python -m benchmarks.images [processors] [cameras] [--engine DIR] [--rounds 5] [--output FILE]

``processors``: decoding and processing one 1280 by 720 rgb8 frame, one core, for published settings; as bytes, which
towers take, and normalised. ``cameras``: three raw cameras of 640 by 480 at 30 Hz from another process (see
``camera_load.py``), and the rate of ``--engine`` (a text engine) with the cameras off and on in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

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
    results: dict[str, dict[str, list[float]]] = {}
    if "processors" in options.parts:
        results["processors_ms"] = processors(options.rounds)
    if "cameras" in options.parts:
        if options.engine is None:
            parser.error("cameras needs --engine")
        from .camera_load import measure

        results["cameras"] = measure(options.engine, options.rounds)
    for part, rows in results.items():
        for name, values in rows.items():
            low, high = min(values), max(values)
            print(f"{part:14} {name:34} {statistics.median(values):10.3f}   ({low:.3f} to {high:.3f})")
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
