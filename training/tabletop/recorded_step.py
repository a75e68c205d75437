"""Loss and gradients of one batch; on a GPU a few hundred small kernels, so they are recorded once and replayed.

Eager launches take about 0.2 s of a processor that the data workers want too; the kernels themselves a third of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.tabletop.losses import Objective

WARM = 3  # eager passes before the recording, as torch asks for

Batch = dict[str, Tensor]


class PlainStep:
    """The loss's parts after ``backward``; gradients are those of this batch alone."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.device_type = next(objective.parameters()).device.type

    def __call__(self, motion: Batch, question: Batch) -> dict[str, Tensor]:
        self.objective.zero_grad(set_to_none=True)
        with torch.autocast(self.device_type, torch.bfloat16, enabled=self.device_type == "cuda"):
            loss, parts = self.objective(motion, question)
        loss.backward()
        return dict(parts)


class RecordedStep:
    """The same as a CUDA graph over buffers of the first batch's shapes; random numbers go on from replay to replay."""

    def __init__(self, objective: Objective, motion: Batch, question: Batch) -> None:
        self.step = PlainStep(objective)
        self.buffers = [{name: value.clone() for name, value in batch.items()} for batch in (motion, question)]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM):
                self.step(*self.buffers)
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        # The thread that fills the rings copies meanwhile: its calls are not this recording's.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.parts = self.step(*self.buffers)

    def __call__(self, motion: Batch, question: Batch) -> dict[str, Tensor]:
        for buffer, batch in zip(self.buffers, (motion, question), strict=True):
            for name, value in batch.items():
                buffer[name].copy_(value)
        self.graph.replay()
        return self.parts


def step_of(objective: Objective, motion: Batch, question: Batch, *, plain: bool) -> PlainStep | RecordedStep:
    """Recorded where there is a GPU, unless it shall be ``plain``."""
    on_gpu = next(objective.parameters()).device.type == "cuda"
    return RecordedStep(objective, motion, question) if on_gpu and not plain else PlainStep(objective)
