"""Requests with images and videos that stand for seeds, and whether answers are those of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from vision_inputs import FAMILIES, GRIDS, SECONDS_PER_PATCH, VIDEO_SEED, pixel_values, token_count

from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.request import (
    LLMGenerationRequest,
    LLMGenerationResponse,
    Message,
    Request,
    SamplingParameters,
)
from edgellm_ros.vision.processor import ProcessedImages, Video

GREEDY = SamplingParameters(temperature=0.0)
TOLERANCE = 1e-4
MARKS = {"smolvlm": "<image>", "paligemma": "<image>", "gemma3": "<start_of_image>", "internvl": "<IMG_CONTEXT>"}


class SeededProcessor:
    """An image is a seed, in its first value; its pixel values are those that the reference was made with."""

    def __init__(self, family: str) -> None:
        self.family = family
        self.image_mark = self.image_token = MARKS.get(family, "<|image_pad|>")
        if family == "gemma3":
            self.image_token = "<image_soft_token>"
        self.processed = 0

    def process(self, images: Sequence[np.ndarray]) -> ProcessedImages:
        seeds = [int(image.flat[0]) for image in images]
        self.processed += len(seeds)
        grids = FAMILIES[self.family].grids
        values = [pixel_values(self.family, seed) for seed in seeds]
        counts = tuple(token_count(self.family, seed) for seed in seeds)
        return ProcessedImages(
            {"pixel_values": np.concatenate(values) if grids else np.stack(values)},
            tuple(len(value) if grids else 1 for value in values),
            counts,
            tuple(self.image_token * count for count in counts),
            np.array([GRIDS[seed] for seed in seeds]) if grids else None,
        )

    def process_video(self, video: Video) -> ProcessedImages:
        """See ``VideoProcessor``; the frames of one video are given for the seed of it."""
        (seed,) = {int(frame.flat[0]) for frame in video.frames}
        processed = self.process([video.frames[0]])
        return replace(processed, placeholders=(self.video_token * token_count(self.family, seed),))

    video_mark = video_token = "<|video_pad|>"


def image(seed: int) -> np.ndarray:
    return np.full((2 + seed, 4, 3), seed, dtype=np.uint8)


def content(seed: int) -> np.ndarray | Video:
    """An image, or a video of two frames for each of its temporal patches."""
    if seed != VIDEO_SEED:
        return image(seed)
    return Video([image(seed)] * 2 * GRIDS[seed][0], seconds_per_frame=SECONDS_PER_PATCH / 2)


def request_of(rows: Sequence[dict[str, Any]], **options: Any) -> LLMGenerationRequest:
    return LLMGenerationRequest(
        requests=[
            Request((Message.of("user", "x", *(content(seed) for seed in row["images"])),), ignore_eos=True)
            for row in rows
        ],
        pre_tokenized_input_ids=[list(row["input_ids"]) for row in rows],
        sampling=GREEDY,
        num_logprobs=50,
        **{"max_generate_length": 10, **options},
    )


def run(runtime: LLMInferenceRuntime, rows: Sequence[dict[str, Any]], **options: Any) -> LLMGenerationResponse:
    response = LLMGenerationResponse()
    assert runtime.handle_request(request_of(rows, **options), response), runtime.last_refusal
    assert response.messages == [""] * len(rows)
    return response


def check(response: LLMGenerationResponse, rows: Sequence[dict[str, Any]]) -> None:
    for place, row in enumerate(rows):
        logits = np.array(row["first_logits"])
        wanted = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        found = response.logprobs[place][0]
        assert max(abs(entry.logprob - wanted[entry.token_id]) for entry in found) < TOLERANCE
        assert response.output_ids[place] == row["output_ids"]
