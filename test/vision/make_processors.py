"""Writes processors.npz and processors.json: what transformers' own image processors give for the same pictures.

Of every case a sample of values is kept, at places that a seed names; grids, shapes, rows and columns in full.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
import transformers
from pictures import picture
from processor_cases import CASES, LETTERBOXES, SAMPLES, VIDEOS, Case
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as size_of_a_frame  # of videos too
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as size_among_frames
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

HERE = Path(__file__).resolve().parent


def reference(case: Case) -> dict[str, Any]:
    settings = dict(case.image)
    if case.reference == "GotOcr2":
        settings.setdefault("min_patches", case.config.get("min_dynamic_patch", 1))
        settings.setdefault("max_patches", case.config.get("max_dynamic_patch", 12))
        settings["crop_to_patches"] = True
        if isinstance(settings["size"], int):
            settings["size"] = {"height": settings["size"], "width": settings["size"]}
    module = {"SmolVLM": "smolvlm", "Idefics3": "idefics3", "Qwen2VL": "qwen2_vl", "GotOcr2": "got_ocr2"}
    name = module.get(case.reference, "siglip")
    library = __import__(f"transformers.models.{name}.image_processing_pil_{name}", fromlist=["x"])
    processor = getattr(library, f"{case.reference}ImageProcessorPil")(**settings)
    pictures = [picture(*size) for size in case.sizes]
    if case.reference in ("SmolVLM", "Idefics3"):
        answers = [processor([one], return_row_col_info=True, return_tensors="np") for one in pictures]
        pixels = np.concatenate([answer["pixel_values"][0] for answer in answers])
        return {
            "pixels": pixels,
            "rows": [int(answer["rows"][0][0]) for answer in answers],
            "columns": [int(answer["cols"][0][0]) for answer in answers],
        }
    answer = processor(pictures, return_tensors="np")
    facts: dict[str, Any] = {"pixels": answer["pixel_values"]}
    if "image_grid_thw" in answer:
        facts["grids"] = answer["image_grid_thw"].tolist()
    if "num_patches" in answer:
        facts["tiles"] = [int(count) for count in answer["num_patches"]]
    return facts


def video_sizes(name: str, limits: dict[str, Any], videos: Any) -> list[list[int]]:
    """Height and width of the frames, of which Qwen3-VL alone counts how many there are."""
    image = next(case for case in CASES if case.name == name).image
    size = limits.get("size", {})
    low, high = limits.get("min_pixels", size.get("shortest_edge")), limits.get("max_pixels", size.get("longest_edge"))
    rest = {"factor": image["patch_size"] * image["merge_size"], "min_pixels": low, "max_pixels": high}
    if name.startswith("qwen3"):
        return [list(size_among_frames(*video, temporal_factor=2, **rest)) for video in videos]
    return [list(size_of_a_frame(*video[1:], **rest)) for video in videos]


def letterbox(image: np.ndarray, height: int, width: int, centred: bool) -> np.ndarray:
    """What lerobot's SmolVLA (left and top padded) and pi (centred) do with one image."""
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None].to(torch.float32) / 255
    ratio = max(image.shape[1] / width, image.shape[0] / height)
    size = int(image.shape[0] / ratio), int(image.shape[1] / ratio)
    if image.shape[:2] != (height, width):
        pixels = functional.interpolate(pixels, size=size, mode="bilinear", align_corners=False)
    down, across = height - pixels.shape[2], width - pixels.shape[3]
    if centred:
        pixels = functional.pad(pixels, (across // 2, across - across // 2, down // 2, down - down // 2))
    else:
        pixels = functional.pad(pixels, (across, 0, down, 0))
    return (pixels * 2 - 1)[0].numpy()


def main() -> None:
    marks = ("<fake_token_around_image>", "<image>", "<global-img>")
    prompts = {
        f"{rows},{columns}": get_image_prompt_string(rows, columns, 2, *marks) for rows, columns in ((0, 0), (2, 3))
    }
    values, facts = {}, {"transformers": transformers.__version__, "smolvlm_prompts": prompts}
    facts["videos"] = {video[0]: video_sizes(*video) for video in VIDEOS}
    for case in CASES:
        found = reference(case)
        pixels = np.ascontiguousarray(found.pop("pixels"), np.float32)
        places = np.random.Generator(np.random.PCG64(len(case.name))).integers(0, pixels.size, SAMPLES)
        values[case.name] = pixels.reshape(-1)[places]
        facts[case.name] = {**found, "shape": list(pixels.shape)}
    for name, _, size, centred, sizes in LETTERBOXES:
        pixels = np.stack([letterbox(picture(*one), *size, centred) for one in sizes])
        places = np.random.Generator(np.random.PCG64(len(name))).integers(0, pixels.size, SAMPLES)
        values[name] = pixels.reshape(-1)[places]
    np.savez_compressed(HERE / "processors.npz", **values)
    (HERE / "processors.json").write_text(json.dumps(facts, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
