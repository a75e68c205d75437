"""Every tensor that an engine reads or writes, allocated once at the limits and bound by name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..backends.base import Backend, DataType, EmbeddingTable, Engine, RopeKind, Tensor
from ..engine_format import EMBEDDING_FILE, EngineConfig
from ..errors import EngineDirectoryError
from .adapter_tensors import AdapterTensors

HIDDEN_STATES = "hidden_states_"  # before the number of a layer
DEEPSTACK = "deepstack_"  # before the number of a plane


class Per(Enum):
    """What a tensor of a call has one entry for; B rows, S positions each, logits of R positions each."""

    POSITION = "position"  # [B,S]
    ROW = "row"  # [B]
    WANTED = "wanted"  # [B,R]


@dataclass(frozen=True)
class Form:
    """How a tensor's shape follows from the size of a call; ``width`` 0: no dimension beyond those of ``per``."""

    per: Per
    width: int = 0
    dtype: DataType = DataType.INT32

    def shape(self, batch: int, chunk: int, wanted: int) -> tuple[int, ...]:
        """Its shape in a call."""
        lead = {Per.POSITION: (batch, chunk), Per.ROW: (batch,), Per.WANTED: (batch, wanted)}[self.per]
        return (*lead, self.width) if self.width else lead


def tensor_forms(config: EngineConfig) -> dict[str, Form]:
    """Every tensor that this version serves, by name; an engine has some of them."""
    forms = {
        "inputs_embeds": Form(Per.POSITION, config.hidden_size, DataType.FLOAT32),
        "past_length": Form(Per.ROW),
        "query_length": Form(Per.ROW),
        "last_token_index": Form(Per.WANTED),
        "attend_start": Form(Per.POSITION),
        "attend_end": Form(Per.POSITION),
        "logits": Form(Per.WANTED, config.vocab_size, DataType.FLOAT32),
    }
    states = Form(Per.POSITION, config.hidden_size, DataType.FLOAT32)
    forms |= {f"{HIDDEN_STATES}{layer}": states for layer in range(1, config.num_hidden_layers + 1)}
    forms |= {f"{DEEPSTACK}{plane}": states for plane in range(config.num_hidden_layers)}
    for kind, rope in config.rope.items():
        half = Form(Per.POSITION, len(rope.inverse_frequency), DataType.FLOAT32)
        forms[f"rope_cos_{kind}"] = forms[f"rope_sin_{kind}"] = half
    return forms


class EngineTensors:
    """The tensors of one engine, for calls of up to ``positions`` (B * S), ``rows`` (B) and ``wanted`` (B * R).

    :raises EngineDirectoryError: the graph has a tensor that this version does not know, or of another width.
    """

    def __init__(
        self,
        backend: Backend,
        engine: Engine,
        config: EngineConfig,
        *,
        positions: int,
        rows: int,
        wanted: int,
        adapters: AdapterTensors | None = None,
    ) -> None:
        self._backend = backend
        self.adapters = adapters
        forms = tensor_forms(config)
        names = {*engine.inputs, *engine.outputs} - (adapters.names if adapters is not None else set())
        _check_names(engine, forms, names)
        self.forms = {name: form for name, form in forms.items() if name in names}
        self.bound: dict[str, Tensor] = {}
        for name, form in self.forms.items():
            most = {Per.POSITION: positions, Per.ROW: rows, Per.WANTED: wanted}[form.per]
            tensor = backend.allocate(form.shape(most, 1, 1), form.dtype)
            engine.bind(name, tensor)
            self.bound[name] = tensor
        self.token_ids = backend.allocate((positions,), DataType.INT32)  # of the call, and what it sampled
        self.positions = backend.allocate((positions,), DataType.INT32)
        self.ropes = {
            kind: RopeKind(kind, tuple(rope.inverse_frequency), rope.scale) for kind, rope in config.rope.items()
        }

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """Layers whose states the engine gives, from 1 on."""
        return tuple(sorted(int(name.removeprefix(HIDDEN_STATES)) for name in self.bound if HIDDEN_STATES in name))

    def shapes(self, batch: int, chunk: int, wanted: int, adapter_rows: int = 0) -> dict[str, tuple[int, ...]]:
        """The shape of every bound tensor in a call that reads so many rows of the adapters."""
        shapes = {name: form.shape(batch, chunk, wanted) for name, form in self.forms.items()}
        return shapes if self.adapters is None else shapes | self.adapters.shapes(batch, adapter_rows)

    def view(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A bound int32 tensor as one of ``shape``; where the graph has none of that name, its values go nowhere."""
        tensor = self.bound.get(name)
        return (tensor or self._backend.allocate(shape, DataType.INT32)).prefix(shape)


def _check_names(engine: Engine, forms: dict[str, Form], names: set[str]) -> None:
    unknown = sorted(names - set(forms))
    if unknown:
        raise EngineDirectoryError(
            f"the graph has {unknown[0]!r}, which this version does not serve; build the engine directory again."
        )
    if "logits" not in engine.outputs:
        raise EngineDirectoryError("the graph has no output 'logits'; build the engine directory again.")
    for name, spec in {**engine.inputs, **engine.outputs}.items():
        width = forms[name].width if name in names else 0
        if len(spec.shape) == 3 and spec.shape[2] not in (-1, width):
            raise EngineDirectoryError(
                f"{name!r} of the graph holds {spec.shape[2]} numbers a position and config.json wants {width}; "
                "build the engine directory again."
            )


def check_embeddings(table: EmbeddingTable, config: EngineConfig) -> None:
    """:raises EngineDirectoryError: the table has another size than the engine wants."""
    rows, width = table.shape
    if rows < config.vocab_size or width != config.hidden_size:
        raise EngineDirectoryError(
            f"{EMBEDDING_FILE} holds [{rows}, {width}] and config.json wants [{config.vocab_size}, "
            f"{config.hidden_size}]; build the engine directory again."
        )


def cache_dtype(name: str) -> DataType:
    """The element type that ``kv_cache_dtype`` names.

    :raises EngineDirectoryError: it names none.
    """
    names = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
    try:
        return DataType(names.get(name, name))
    except ValueError:
        raise EngineDirectoryError(
            f"config.json: kv_cache_dtype is {name!r}; want fp32, fp16, bf16 or int8: build the engine directory again."
        ) from None
