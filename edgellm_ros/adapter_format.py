"""Room for low-rank adapters in an engine: what the builder leaves, and what the runtime fills.

An engine has ``slots`` places for adapters of up to ``rank``; each place is ``rank`` rows of L = slots * rank. Every
product of the model that adapters may change has two more inputs: ``lora_a_<i>`` [L, columns] and ``lora_b_<i>``
[L, rows]. One of several projections at once (queries, keys and values) has a target for each: ``lora_a_<i>x3``
[3 * L, columns] and ``lora_b_<i>x3`` [3 * L, rows], the rows of the targets in turns. ``lora_mask`` [B,L] is 1 on the
rows of the place that a sequence uses and 0 elsewhere (each of its numbers stands for all targets):

    y += ((x @ a.T) * mask) @ b

So sequences of one batch may use adapters of different ranks, and no weight is copied. Where L varies from run to run,
only the first places, up to the last in use, are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import EngineDirectoryError
from .json_values import finite_number, whole_number

CONFIG_KEY = "lora"
MASK = "lora_mask"
MOST_RANK, MOST_SLOTS = 256, 64


@dataclass(frozen=True)
class AdapterTarget:
    """A projection of the checkpoint; its weight is multiplied by ``factor`` where it is used."""

    module: str  # such as model.layers.0.self_attn.q_proj
    rows: int
    factor: float = 1.0


@dataclass(frozen=True)
class AdapterStack:
    """One product: projections of the same input, side by side."""

    columns: int
    targets: tuple[AdapterTarget, ...]

    @property
    def rows(self) -> int:
        """Numbers that the product gives."""
        return sum(target.rows for target in self.targets)


@dataclass(frozen=True)
class AdapterFormat:
    """Places and their size, and the products in the order of their inputs."""

    rank: int
    slots: int
    stacks: tuple[AdapterStack, ...] = ()

    @property
    def total_rows(self) -> int:
        """L where all places are read."""
        return self.rank * self.slots

    def to_json(self) -> dict[str, Any]:
        """What stands under ``CONFIG_KEY`` of config.json."""
        return {
            "max_lora_rank": self.rank,
            "slots": self.slots,
            "stacks": [
                {
                    "columns": stack.columns,
                    "targets": [
                        {"module": target.module, "rows": target.rows, "factor": target.factor}
                        for target in stack.targets
                    ],
                }
                for stack in self.stacks
            ],
        }

    @classmethod
    def from_config(cls, extra: Mapping[str, Any]) -> AdapterFormat | None:
        """That of an engine; None where it has no room for adapters.

        :raises EngineDirectoryError: it is described wrongly.
        """
        if CONFIG_KEY not in extra:
            return None
        content = extra[CONFIG_KEY]
        try:
            stacks = tuple(
                AdapterStack(
                    whole_number("columns", stack["columns"], 1),
                    tuple(
                        AdapterTarget(
                            str(target["module"]),
                            whole_number("rows", target["rows"], 1),
                            finite_number("factor", target["factor"]),
                        )
                        for target in stack["targets"]
                    ),
                )
                for stack in content["stacks"]
            )
            rank = whole_number("max_lora_rank", content["max_lora_rank"], 1, MOST_RANK)
            return cls(rank, whole_number("slots", content["slots"], 1, MOST_SLOTS), stacks)
        except (KeyError, TypeError, ValueError) as error:
            raise EngineDirectoryError(
                f"config.json: {CONFIG_KEY} is described wrongly ({error}); build the engine directory again."
            ) from None


def input_names(stack: int, targets: int) -> tuple[str, str]:
    """The inputs of one product."""
    suffix = f"{stack}x{targets}" if targets > 1 else str(stack)
    return f"lora_a_{suffix}", f"lora_b_{suffix}"


_INPUT = re.compile(r"lora_[ab]_\d+(?:x(\d+))?")


def free_sizes(name: str, batch: int, chunk: int) -> tuple[int, ...]:
    """What a probe takes for the varying dimensions of an input that it fills with zeros, in their order."""
    if name == MASK:
        return (batch, 1)
    adapter = _INPUT.fullmatch(name)
    if adapter is not None:
        return (int(adapter[1] or 1),)
    return (batch, chunk, 1, 1)
