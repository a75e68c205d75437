"""What a build will make, known before a weight is read: the graph, every file and its size."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from ..adapter_format import CONFIG_KEY, AdapterFormat
from ..engine_format import CONFIG_FILE, EMBEDDING_FILE, GRAPH_FILE, BuilderLimits, EngineConfig
from ..errors import CheckpointError
from .adapters import AdapterLimits, AdapterRoom
from .calibration import Calibration, Findings
from .checkpoint import Checkpoint
from .embedding_file import embedding_header, embedding_size
from .families import read_config
from .families.base import DecoderConfig
from .families.decoder import EMBEDDING, build_decoder, decoder_tensors, may_be_left_out
from .families.text_part import check_text_alone
from .graph import DATA_FILE, Graph
from .graph_parts import SharedTensor
from .limits import WantedLimits, choose_limits
from .lowerings import lowering as find_lowering
from .onnx_writer import GraphFiles, lay_out
from .policy_build import PolicyPlan, plan_policy
from .policy_checkpoint import PolicyCheckpoint
from .policy_settings import PolicySettings
from .quantize import Precision
from .quantize import precision as find_precision
from .smoothing import Smoothing, smoothing
from .text_checkpoint import text_checkpoint
from .tokenizer_check import check_tokenizer_files
from .vision_build import VisionPlan, find_vision_precision, plan_vision
from .weight_bindings import weight_bindings
from .weights import Weight, checkpoint_weight

CAREFUL_SHARE = 12  # one in so many down projections keeps eight bits where the rest has four: those of large inputs


def dump_json(content: Mapping[str, object]) -> bytes:
    """As the JSON files of an engine directory are written."""
    return json.dumps(content, indent=1, ensure_ascii=False).encode("utf-8", "replace")  # folders have any name


@dataclass(frozen=True)
class BuildPlan:
    """Everything about an engine directory that is known before a weight is read.

    ``calibration`` and ``smoothing`` are there where the engine is to be calibrated, and smoothed.
    """

    checkpoint: Checkpoint
    graph: Graph
    graph_files: GraphFiles
    embedding: Weight
    config: EngineConfig
    tokenizer_files: Mapping[str, bytes]
    make_graph: Callable[[Precision], Graph]
    calibration: Calibration | None = None
    smoothing: Smoothing | None = None
    vision: VisionPlan | None = None
    policy: PolicyPlan | None = None
    weightless: bool = False

    @property
    def answers(self) -> bool:
        """Whether there is a language model that can generate text; a policy may have only the start of one."""
        return self.policy is None or self.policy.language.answers

    @property
    def passing_bytes(self) -> int:
        """Bytes that a build writes and removes again."""
        files = self.calibration.files if self.calibration else None
        return files.data_size + len(files.model) if files else 0

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of every file but the manifest."""
        text = {GRAPH_FILE: len(self.graph_files.model), DATA_FILE: self.graph_files.data_size}
        embedding = {EMBEDDING_FILE: embedding_size(self.embedding.shape, self.graph.precision.embedding)}
        if self.weightless:
            text, embedding = {GRAPH_FILE: text[GRAPH_FILE]}, {}
        return {
            **(text if self.answers else {}),
            **embedding,
            CONFIG_FILE: len(dump_json(self.config.to_json())),
            **{name: len(content) for name, content in self.tokenizer_files.items()},
        }

    def calibrated(self, findings: Findings) -> BuildPlan:
        """The same engine, with what a calibration has found put into its weights."""
        if self.smoothing is not None:
            self.smoothing.find(findings.squares)
        stored = self.graph.precision
        if stored.bits == 4:
            inputs = {name: float(squares.mean()) for name, squares in findings.squares.items() if _is_down(name)}
            stored = _careful(stored, self.config.num_hidden_layers, sorted(inputs, key=lambda name: -inputs[name]))
        graph = self.make_graph(stored)
        for name, moments in findings.moments.items():
            graph.moments[name] = self.smoothing.moments(name, moments) if self.smoothing else moments
        return replace(self, graph=graph, graph_files=lay_out(graph, str(self.config.extra["family"])))


def _is_down(name: str) -> bool:
    return name.endswith("mlp.down_proj.weight")


def _careful(stored: Precision, layers: int, downs: list[str]) -> Precision:
    """With eight bits for the last layer, and for the first few of ``downs`` beside it."""
    last = f"model.layers.{layers - 1}."
    others = [name for name in downs if not name.startswith(last)][: layers // CAREFUL_SHARE]
    return replace(stored, careful=(last, *others))


def check_tensors(config: DecoderConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """:raises CheckpointError: a tensor is missing, of another shape, or one that the graph would leave out."""
    wanted = decoder_tensors(config)
    for name, shape in wanted.items():
        if name not in shapes:
            raise CheckpointError(f"the checkpoint lacks tensor {name!r} of shape {list(shape)}; fetch it again.")
        if shapes[name] != shape:
            raise CheckpointError(
                f"tensor {name!r} has the shape {list(shapes[name])}; its configuration wants {list(shape)}."
            )
    for name in shapes:
        if name not in wanted and not may_be_left_out(config, name):
            raise CheckpointError(
                f"the checkpoint holds tensor {name!r} that this architecture does not use; a graph without it would "
                "give other answers: check config.json."
            )


def check_layers(layers: Collection[int], count: int) -> None:
    """:raises CheckpointError: a number that is no layer of the model."""
    for layer in layers:
        if not isinstance(layer, int) or isinstance(layer, bool) or not 1 <= layer <= count:
            raise CheckpointError(f"hidden states of layer {layer!r} are wanted; the model has layers 1 to {count}.")


def plan_build(
    checkpoint: Checkpoint,
    *,
    precision: str,
    limits: BuilderLimits | WantedLimits | None,
    lowering: str,
    block_size: int | None = None,
    hidden_states: Collection[int] = (),
    lora: AdapterLimits | None = None,
    vision_precision_name: str | None = None,
    text_only: bool = False,
    policy_settings: PolicySettings | None = None,
    calibrate: bool = True,
    weightless: bool = False,
) -> BuildPlan:
    """Check the checkpoint and describe the engine; reads no weights.

    ``calibrate``: what a text shows about the inputs of matrices decides how these are rounded. With ``lora`` they are
    not smoothed, for adapters expect inputs as they were in training. A ``weightless`` engine leaves them in the
    checkpoint.

    :raises CheckpointError: the checkpoint or a setting is refused.
    """
    target, stored = find_lowering(lowering), find_precision(precision, block_size)
    if precision not in target.precisions:
        raise CheckpointError(
            f"precision is {precision!r}; the lowering {lowering} has {', '.join(target.precisions)}."
        )
    vision = policy = None
    tower_precision = find_vision_precision(vision_precision_name, precision)
    if isinstance(checkpoint, PolicyCheckpoint):
        if lora is not None:
            raise CheckpointError("room for adapters is asked for in a policy, which has none; leave lora_rank out.")
        policy = plan_policy(checkpoint, target, tower_precision, policy_settings)
        part = policy.language
        vision = plan_vision(part.vision, target, tower_precision, part.tower, levels=part.levels)
        checkpoint = policy.language.text
    elif policy_settings is not None and policy_settings.contract:
        raise CheckpointError("a policy's contract is named for a model that is no policy; leave policy_contract out.")
    elif not text_only:
        vision = plan_vision(checkpoint, target, tower_precision)
    checkpoint = text_checkpoint(checkpoint, whole=vision is not None)
    config = read_config(checkpoint.config)
    if vision is not None:
        tower = vision.config["tower"]
        answers = policy is None or policy.language.answers  # else there is no graph that such a mask is for
        config = replace(config, deepstack=tower.get("deepstack_planes", 0), blocks="blocks" in tower and answers)
    elif policy is None:
        check_text_alone(config)
        if vision_precision_name is not None:
            raise CheckpointError(
                f"vision precision is {vision_precision_name}, and no image tower is built; leave vision_precision out."
            )
    limits = choose_limits(config, limits, policy.language.limits if policy else None)
    check_tensors(config, checkpoint.shapes)
    check_layers(hidden_states, config.num_hidden_layers)
    for token in checkpoint.eos_token_ids:
        if token >= config.vocab_size:
            raise CheckpointError(f"eos_token_id is {token}; want an id below {config.vocab_size}.")
    calibrate = calibrate and (policy is None or policy.language.answers)
    if stored.bits == 4:
        downs = [f"model.layers.{layer}.mlp.down_proj.weight" for layer in range(config.num_hidden_layers)]
        stored = _careful(stored, config.num_hidden_layers, downs)
    weights: Mapping[str, Weight] = {name: checkpoint_weight(checkpoint, name) for name in decoder_tensors(config)}
    embedding = weights[EMBEDDING]
    smooths = calibrate and lora is None and stored.bits <= 8 and target.rounds_inputs
    smoothed = smoothing(config, weights) if smooths else None
    used = smoothed.weights if smoothed else weights
    capacity = limits.max_kv_cache_capacity

    room: list[AdapterRoom] = []  # one for each graph; all alike

    def make_graph(stored: Precision) -> Graph:
        if lora is not None:
            room.append(AdapterRoom(lora))
        shared = SharedTensor(EMBEDDING_FILE, len(embedding_header(embedding.shape, stored.embedding)))
        graph = Graph(target, stored, capacity, {EMBEDDING: shared} if stored.embedding == stored.element else {})
        graph.blocks = config.blocks
        build_decoder(graph, config, used, hidden_states, room[-1] if room else None)
        return graph

    calibrated = calibrate and (stored.bits == 4 or smoothed is not None)
    graph = make_graph(stored)
    tokenizer_files = checkpoint.tokenizer_files()
    check_tokenizer_files(tokenizer_files)
    engine_config = _engine_config(config, checkpoint.eos_token_ids, limits, stored, room[-1].format if room else None)
    if weightless:
        bindings = weight_bindings(checkpoint, graph, embedding)
        engine_config = replace(engine_config, extra={**engine_config.extra, **bindings})
    return BuildPlan(
        checkpoint=checkpoint,
        graph=graph,
        graph_files=lay_out(graph, config.family),
        embedding=embedding,
        config=engine_config,
        tokenizer_files=tokenizer_files,
        make_graph=make_graph,
        calibration=Calibration(config, used, stored) if calibrated else None,
        smoothing=smoothed,
        vision=vision,
        policy=policy,
        weightless=weightless,
    )


def _engine_config(
    config: DecoderConfig,
    eos_token_ids: tuple[int, ...],
    limits: BuilderLimits,
    stored: Precision,
    adapters: AdapterFormat | None,
) -> EngineConfig:
    return EngineConfig(
        model=config.name,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        kv_layers=config.kv_layers,
        kv_cache_dtype=stored.element,
        rope=config.rope,
        eos_token_id=eos_token_ids,
        limits=limits,
        embedding_scale=config.embedding_scale,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        max_position_embeddings=config.max_position_embeddings,
        extra={
            **config.extra,
            "family": config.family,
            "intermediate_size": config.intermediate_size,
            "num_key_value_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
            "tie_word_embeddings": config.tied,
            **({"sliding_window": config.window} if config.window else {}),
            **({CONFIG_KEY: adapters.to_json()} if adapters is not None else {}),
        },
    )
