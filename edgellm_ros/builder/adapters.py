"""Room for low-rank adapters in a graph: the nodes that add what an adapter changes in a product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..adapter_format import MASK, MOST_RANK, MOST_SLOTS, AdapterFormat, AdapterStack, AdapterTarget, input_names
from ..errors import CheckpointError
from .graph import Graph
from .graph_parts import Dimension, Value

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class AdapterLimits:
    """What is asked for: adapters of up to ``rank``, ``slots`` of them in one batch, on the projections ``targets``.

    Without ``targets`` there is room in all projections; with them a step costs less.

    :raises CheckpointError: a number or name that there cannot be room for.
    """

    rank: int
    slots: int = 4
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value, most in (("lora_rank", self.rank, MOST_RANK), ("lora_slots", self.slots, MOST_SLOTS)):
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise CheckpointError(f"{name} is {value!r}; want a whole number from 1 to {most}.")
        for target in self.targets:
            if target not in PROJECTIONS:
                raise CheckpointError(f"lora_targets has {target!r}; want some of {', '.join(PROJECTIONS)}.")

    def concerns(self, modules: Sequence[str]) -> bool:
        """Whether a product of these projections gets room."""
        return not self.targets or any(module.rpartition(".")[2] in self.targets for module in modules)


@dataclass
class AdapterRoom:
    """Collects the products of one graph; see ``adapter_format``."""

    limits: AdapterLimits
    stacks: list[AdapterStack] = field(default_factory=list)

    @property
    def format(self) -> AdapterFormat:
        """What the runtime needs to know."""
        return AdapterFormat(self.limits.rank, self.limits.slots, tuple(self.stacks))

    def add(self, graph: Graph, x: Value, y: Value, columns: int, targets: Sequence[AdapterTarget]) -> Value:
        """``y`` plus what the adapters change; y is the product of x [B,S,columns] with the targets' weights."""
        if not self.limits.concerns([target.module for target in targets]):
            return y
        stack = AdapterStack(columns, tuple(targets))
        count = len(stack.targets)
        names = input_names(len(self.stacks), count)
        self.stacks.append(stack)
        down, up = (
            graph.input(name, graph.element, [self._rows(graph, count), width])
            for name, width in zip(names, (columns, stack.rows), strict=True)
        )
        (down,) = graph.node("Transpose", [down], perm=[1, 0])
        (inner,) = graph.node("MatMul", [x, down])
        inner = graph.mul(inner, self._mask(graph, count))
        return graph.add(y, graph.node("MatMul", [inner, up])[0])

    def _rows(self, graph: Graph, count: int) -> Dimension:
        if graph.lowering.varying_adapter_rows:
            return "adapter_rows" if count == 1 else f"adapter_rows_{count}"
        return self.format.total_rows * count

    def _mask(self, graph: Graph, count: int) -> Value:
        """The mask [B,1,L*count], each of its numbers ``count`` times in a row; once per graph and count."""
        key = f"adapter mask {count}"
        if key not in graph.remembered:
            if not any(info.name == MASK for info in graph.inputs):
                graph.input(MASK, "float32", ["batch", self._rows(graph, 1)])
            axis = graph.constant(np.array([2 if count > 1 else 1], dtype=np.int64))
            (mask,) = graph.node("Unsqueeze", [graph.as_element(MASK), axis])
            if count > 1:
                (mask,) = graph.node("Concat", [mask] * count, axis=2)
                (mask,) = graph.node("Reshape", [mask, graph.constant(np.array([0, 1, -1], dtype=np.int64))])
            graph.remembered[key] = mask
        return graph.remembered[key]
