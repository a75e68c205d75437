"""A model as a list of nodes: families write it with the functions here, a lowering picks the nodes.

Weights are described, not read: their bands are streamed to disk when the graph is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine_format import GRAPH_FILE
from .elements import scalar
from .graph_parts import (
    AttentionShape,
    Dimension,
    Node,
    Parameter,
    Product,
    SharedTensor,
    StoredTensor,
    TensorInfo,
    Value,
)
from .input_moments import InputMoments
from .quantize import Precision, element_bands
from .weights import Weight

if TYPE_CHECKING:
    from .lowerings.base import Lowering

DATA_FILE = GRAPH_FILE + ".data"


@dataclass
class Graph:
    """A description under construction; ``shared`` names weights that lie in another file of the directory."""

    lowering: Lowering
    precision: Precision
    capacity: int  # positions of a cache, for engines that want to know
    shared: Mapping[str, SharedTensor] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[TensorInfo] = field(default_factory=list)
    outputs: list[TensorInfo] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    parameters: list[Parameter] = field(default_factory=list)
    references: list[tuple[StoredTensor, SharedTensor]] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)  # notes for the runtime, kept in the file
    moments: dict[str, InputMoments] = field(default_factory=dict)  # of matrices, by name; needed when they are written
    products: list[Product] = field(default_factory=list)  # in order
    remembered: dict[str, Value] = field(default_factory=dict)  # what a lowering computes once and uses in every layer
    blocks: bool = False  # some positions see each other in both directions: inputs tell what each of them sees
    _next: int = 0

    # the frame

    def keep_only(self, outputs: Sequence[str]) -> None:
        """Leave out every node, weight and constant that none of these outputs needs."""
        self.outputs = [info for info in self.outputs if info.name in outputs]
        needed = set(outputs)
        kept = []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs):
                needed.update(node.inputs)
                kept.append(node)
        self.nodes = kept[::-1]
        self.parameters = [
            parameter for parameter in self.parameters if any(tensor.name in needed for tensor in parameter.tensors)
        ]
        self.constants = {name: array for name, array in self.constants.items() if name in needed}
        self.references = [(stored, shared) for stored, shared in self.references if stored.name in needed]

    def input(self, name: str, dtype: str, shape: Sequence[Dimension]) -> Value:
        """Declare an input."""
        self.inputs.append(TensorInfo(name, dtype, tuple(shape)))
        return Value(name)

    def output(self, value: Value, name: str, dtype: str, shape: Sequence[Dimension]) -> None:
        """Give ``value``, an element, to the caller as the output ``name`` of type ``dtype``."""
        if dtype == self.element:
            self.nodes.append(Node("Identity", "", (value.name,), (name,), {}))
        else:
            self.nodes.append(Node("Cast", "", (value.name,), (name,), {"to": dtype}))
        self.outputs.append(TensorInfo(name, dtype, tuple(shape)))

    def declare_output(self, name: str, dtype: str, shape: Sequence[Dimension]) -> None:
        """Declare an output that a node writes under that very name (a cache, which may not pass through a copy)."""
        self.outputs.append(TensorInfo(name, dtype, tuple(shape)))

    @property
    def element(self) -> str:
        """What is computed with: a NumPy name, or bfloat16."""
        return self.precision.element

    def as_element(self, name: str) -> Value:
        """A float32 input as an element; once per graph."""
        if self.element == "float32":
            return Value(name)
        key = f"element {name}"
        if key not in self.remembered:
            (self.remembered[key],) = self.node("Cast", [Value(name)], to=self.element)
        return self.remembered[key]

    def node(
        self,
        operator: str,
        inputs: Sequence[Value | None],
        *,
        outputs: Sequence[str | None] = (None,),
        domain: str = "",
        **attributes: Any,
    ) -> tuple[Value, ...]:
        """Append an operator; an output that is None gets a fresh name, an empty name leaves it out."""
        names = tuple(self._fresh(operator) if name is None else name for name in outputs)
        self.nodes.append(
            Node(operator, domain, tuple(value.name if value else "" for value in inputs), names, attributes)
        )
        return tuple(Value(name) for name in names)

    def take_back(self, x: Value, operator: str) -> Node | None:
        """Remove the node that made ``x``, if it is of that kind, for another one to take over all its outputs.

        None where it is of another kind or reads a weight, or where another node has used its outputs already.
        """
        weights = {tensor.name for parameter in self.parameters for tensor in parameter.tensors}
        for index in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[index]
            if x.name in node.outputs:
                used = any(name in node.outputs for later in self.nodes[index + 1 :] for name in later.inputs)
                fits = node.operator == operator and not used and not weights.intersection(node.inputs)
                return self.nodes.pop(index) if fits else None
        return None

    def _fresh(self, operator: str) -> str:
        self._next += 1
        return f"{operator.lower()}_{self._next}"

    def constant(self, array: np.ndarray) -> Value:
        """A small tensor inside the graph; equal ones are stored once."""
        content = array.tobytes()
        digest = content.hex() if len(content) <= 64 else hashlib.sha256(content).hexdigest()
        name = f"constant_{array.dtype}_{'x'.join(map(str, array.shape))}_{digest}"
        self.constants[name] = array
        return Value(name)

    def parameter(self, weight: Weight) -> Value:
        """A weight as elements, in its own orientation."""
        stored = StoredTensor(weight.name, self.element, weight.shape)
        shared = self.shared.get(weight.name)
        if shared is not None:
            self.references.append((stored, shared))
        else:
            self.parameters.append(
                Parameter(
                    weight.name,
                    (stored,),
                    lambda: ((band,) for band in element_bands(weight, self.element)),
                    parts=weight.parts,
                )
            )
        return Value(stored.name)

    def transposed_parameter(self, weight: Weight) -> Value:
        """A matrix as elements [columns, rows]; one that lies in another file is turned by a node."""
        if weight.name in self.shared:
            return self.node("Transpose", [self.parameter(weight)], perm=[1, 0])[0]
        stored = StoredTensor(f"{weight.name}.transposed", self.element, weight.shape[::-1])
        self.parameters.append(
            Parameter(
                weight.name, (stored,), lambda: ((band.T,) for band in element_bands(weight, self.element)), axis=1
            )
        )
        return Value(stored.name)

    # what families use

    def linear(self, x: Value, weight: Weight, bias: Weight | None = None) -> Value:
        """``x @ weight.T + bias``; x [..., columns], weight [rows, columns], stored at the graph's precision."""
        self.products.append(Product(weight.name, weight.shape[1], x))
        return self.lowering.linear(self, x, weight, bias)

    def rms_norm(self, x: Value, weight: Weight, epsilon: float) -> Value:
        """Root-mean-square normalisation over the last axis, times ``weight``."""
        return self.lowering.rms_norm(self, x, weight, epsilon)

    def head_norm(self, x: Value, weight: Weight, epsilon: float, heads: int) -> Value:
        """``rms_norm`` of each head of x [B,S,heads*head_dim]; weight [head_dim]."""
        split = self.constant(np.array([0, 0, heads, weight.shape[0]], dtype=np.int64))
        joined = self.constant(np.array([0, 0, heads * weight.shape[0]], dtype=np.int64))
        (x,) = self.node("Reshape", [x, split])
        return self.node("Reshape", [self.rms_norm(x, weight, epsilon), joined])[0]

    def attention(self, query: Value, key: Value, value: Value, layer: int, shape: AttentionShape) -> Value:
        """Rotate queries and keys, append keys and values to the cache of ``layer``, and attend over it causally.

        All [B,S,heads*head_dim]; keys and values have ``shape.kv_heads`` heads. The queries are scaled already.
        """
        return self.lowering.attention(self, query, key, value, layer, shape)

    def gather_positions(self, x: Value, index: Value) -> Value:
        """X [B,S,D] at index int32 [B,R]: [B,R,D]."""
        return self.lowering.gather_positions(self, x, index)

    def silu(self, x: Value) -> Value:
        """``x * sigmoid(x)``, written so that engines that lack the operator fuse it."""
        return self.mul(x, self.node("Sigmoid", [x])[0])

    def gelu_tanh(self, x: Value) -> Value:
        """GELU in its tanh form."""
        return self.lowering.gelu_tanh(self, x)

    def softcap(self, x: Value, cap: float) -> Value:
        """``cap * tanh(x / cap)``: bounded, and nearly x where x is small."""
        (bounded,) = self.node("Tanh", [self.mul(x, self.constant(scalar(1 / cap, self.element)))])
        return self.mul(bounded, self.constant(scalar(cap, self.element)))

    def add(self, left: Value, right: Value) -> Value:
        """Sum."""
        return self.node("Add", [left, right])[0]

    def mul(self, left: Value, right: Value) -> Value:
        """Product."""
        return self.node("Mul", [left, right])[0]

    def split(self, x: Value, sizes: Sequence[int]) -> tuple[Value, ...]:
        """Cut the last axis into pieces of ``sizes``."""
        lengths = self.constant(np.array(sizes, dtype=np.int64))
        return self.node("Split", [x, lengths], outputs=[None] * len(sizes), axis=-1)
