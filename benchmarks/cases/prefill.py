"""Reading a prompt of one sequence: tokens per second up to the first answer token."""

from __future__ import annotations

from collections.abc import Callable

from ..harness import Case, Metric
from ..workspace import Workspace

LENGTHS = (128, 512)


def make(precision: str, length: int) -> Callable[[Workspace], Case]:
    def case(workspace: Workspace) -> Case:
        peers = [workspace.llama_cpp({"int8": "q8_0", "fp32": "f32"}[precision])]
        if precision == "fp32":
            peers.append(workspace.torch())
        return Case(
            f"prefill_{length}_{precision}",
            workspace.ours(precision),
            (Metric("prefill_rate", "tokens/s"),),
            "prefill",
            {"prompt_tokens": length},
            tuple(peers),
        )

    return case


CASES = {
    f"prefill_{length}_{precision}": make(precision, length) for precision in ("int8", "fp32") for length in LENGTHS
}
