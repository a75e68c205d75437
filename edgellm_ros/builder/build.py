"""From a checkpoint to an engine directory, in one call."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from .. import __version__
from ..action.policy_manifest import ACTION_DIRECTORY
from ..engine_format import (
    CONFIG_FILE,
    EMBEDDING_FILE,
    FORMAT_VERSION,
    GRAPH_FILE,
    MANIFEST_FILE,
    VISUAL_DIRECTORY,
    BuilderLimits,
    EngineConfig,
    Manifest,
)
from ..errors import CheckpointError
from .checkpoint import Checkpoint, open_checkpoint
from .embedding_file import embedding_header, embedding_size, write_embedding
from .engine_directory import holds_build, writing
from .families import read_config
from .families.base import DecoderConfig
from .families.decoder import EMBEDDING, build_decoder, decoder_tensors, may_be_left_out
from .graph import DATA_FILE, Graph, SharedTensor
from .lowerings import lowering as find_lowering
from .onnx_writer import GraphFiles, check_packages, lay_out, write_weights
from .policy_build import PolicyPlan, plan_policy
from .policy_checkpoint import PolicyCheckpoint
from .policy_settings import PolicySettings, read_policy_settings
from .quantize import precision as find_precision
from .random_weights import open_random_checkpoint
from .text_checkpoint import text_checkpoint
from .vision_build import VisionPlan, find_vision_precision, plan_vision, write_vision
from .weights import Weight, checkpoint_weight

DEFAULT_BATCH, DEFAULT_INPUT, DEFAULT_CAPACITY = 4, 1024, 4096


@dataclass(frozen=True)
class Progress:
    """How far a build is: what it does, bytes done of all bytes of that stage."""

    stage: str
    done: int
    total: int


ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True)
class BuildPlan:
    """Everything about an engine directory that is known before a weight is read."""

    checkpoint: Checkpoint
    graph: Graph
    graph_files: GraphFiles
    embedding: Weight
    config: EngineConfig
    tokenizer_files: Mapping[str, bytes]
    vision: VisionPlan | None = None
    policy: PolicyPlan | None = None

    @property
    def answers(self) -> bool:
        """Whether there is a language model that can generate text; a policy may have only the start of one."""
        return self.policy is None or self.policy.language.answers

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of every file but the manifest."""
        text = {GRAPH_FILE: len(self.graph_files.model), DATA_FILE: self.graph_files.data_size}
        return {
            **(text if self.answers else {}),
            EMBEDDING_FILE: embedding_size(self.embedding.shape, self.graph.element),
            CONFIG_FILE: len(_dump(self.config.to_json())),
            **{name: len(content) for name, content in self.tokenizer_files.items()},
        }


def _dump(content: Mapping[str, object]) -> bytes:
    return json.dumps(content, indent=1, ensure_ascii=False).encode()


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


def choose_limits(config: DecoderConfig, limits: BuilderLimits | None) -> BuilderLimits:
    """The given limits, or the default ones cut to what the model was trained for.

    :raises CheckpointError: the cache would hold more positions than that.
    """
    maximum = config.max_position_embeddings
    if limits is None:
        capacity = min(DEFAULT_CAPACITY, maximum)
        return BuilderLimits(DEFAULT_BATCH, min(DEFAULT_INPUT, capacity), capacity)
    if limits.max_kv_cache_capacity > maximum:
        raise CheckpointError(
            f"max_kv_cache_capacity is {limits.max_kv_cache_capacity}; the model was trained for {maximum} positions: "
            "ask for no more."
        )
    return limits


def check_layers(layers: Collection[int], count: int) -> None:
    """:raises CheckpointError: a number that is no layer of the model."""
    for layer in layers:
        if not isinstance(layer, int) or isinstance(layer, bool) or not 1 <= layer <= count:
            raise CheckpointError(f"hidden states of layer {layer!r} are wanted; the model has layers 1 to {count}.")


def plan_build(
    checkpoint: Checkpoint,
    *,
    precision: str,
    limits: BuilderLimits | None,
    lowering: str,
    block_size: int | None = None,
    hidden_states: Collection[int] = (),
    vision_precision_name: str | None = None,
    text_only: bool = False,
    policy_settings: PolicySettings | None = None,
) -> BuildPlan:
    """Check the checkpoint and describe the engine; reads no weights.

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
        policy = plan_policy(checkpoint, target, tower_precision, policy_settings)
        vision = plan_vision(policy.language.vision, target, tower_precision, policy.language.tower)
        checkpoint = policy.language.text
    elif not text_only:
        vision = plan_vision(checkpoint, target, tower_precision)
    checkpoint = text_checkpoint(checkpoint, whole=vision is not None)
    config = read_config(checkpoint.config)
    if vision is not None:
        config = replace(config, deepstack=vision.config["tower"].get("deepstack_planes", 0))
    limits = choose_limits(config, limits)
    check_tensors(config, checkpoint.shapes)
    weights = {name: checkpoint_weight(checkpoint, name) for name in decoder_tensors(config)}
    embedding = weights[EMBEDDING]
    shared = SharedTensor(EMBEDDING_FILE, len(embedding_header(embedding.shape, stored.element)))
    graph = Graph(target, stored, limits.max_kv_cache_capacity, {EMBEDDING: shared})
    check_layers(hidden_states, config.num_hidden_layers)
    build_decoder(graph, config, weights, hidden_states)
    for token in checkpoint.eos_token_ids:
        if token >= config.vocab_size:
            raise CheckpointError(f"eos_token_id is {token}; want an id below {config.vocab_size}.")
    engine = EngineConfig(
        model=config.name,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        kv_layers=config.kv_layers,
        kv_cache_dtype=stored.element,
        rope=config.rope,
        eos_token_id=checkpoint.eos_token_ids,
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
        },
    )
    files = lay_out(graph, config.family)
    return BuildPlan(checkpoint, graph, files, embedding, engine, checkpoint.tokenizer_files(), vision, policy)


def _fingerprint(plan: BuildPlan, progress: ProgressCallback) -> str:
    """Digest over the checkpoint, the graph and the settings: equal means the same engine."""
    total, done = plan.checkpoint.weight_bytes, 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        progress(Progress("reading the checkpoint", done, total))

    checksum = hashlib.sha256(f"{FORMAT_VERSION} {__version__} {plan.graph.precision.name}".encode())
    checksum.update(plan.checkpoint.digest(step).encode())
    checksum.update(hashlib.sha256(plan.graph_files.model).digest())
    checksum.update(_dump(plan.config.to_json()))
    for name, content in sorted(plan.tokenizer_files.items()):
        checksum.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    if plan.policy is not None:
        checksum.update(plan.policy.digest().encode())
    if plan.vision is not None:
        checksum.update(hashlib.sha256(plan.vision.files.model).digest())
        checksum.update(f"{plan.vision.graph.precision.name} {json.dumps(plan.vision.config)}".encode())
    return checksum.hexdigest()


def _write_file(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _write(plan: BuildPlan, fingerprint: str, directory: Path, progress: ProgressCallback) -> None:
    vision = plan.vision
    total = plan.graph_files.data_size if plan.answers else 0
    total += embedding_size(plan.embedding.shape, plan.graph.element)
    total += 0 if vision is None else vision.files.data_size
    total += 0 if plan.policy is None else sum(plan.policy.sizes.values())
    done = 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        progress(Progress("writing weights", done, total))

    if plan.answers:
        write_weights(plan.graph, plan.graph_files, directory / DATA_FILE, step)
        _write_file(directory / GRAPH_FILE, plan.graph_files.model)
    write_embedding(plan.embedding, directory / EMBEDDING_FILE, step, plan.graph.element)
    _write_file(directory / CONFIG_FILE, _dump(plan.config.to_json()))
    for name, content in plan.tokenizer_files.items():
        _write_file(directory / name, content)
    sizes = {name: (directory / name).stat().st_size for name in plan.sizes}
    if vision is not None:
        source = (plan.checkpoint.source, plan.checkpoint.licence, fingerprint)
        written = write_vision(vision, directory / VISUAL_DIRECTORY, source, _write_file, step)
        sizes |= {f"{VISUAL_DIRECTORY}/{name}": size for name, size in written.items()}
    if plan.policy is not None:
        written = plan.policy.write(directory / ACTION_DIRECTORY, _write_file, step)
        sizes |= {f"{ACTION_DIRECTORY}/{name}": size for name, size in written.items()}
    manifest = Manifest(
        lowering=plan.graph.lowering.name,
        precision=plan.graph.precision.name,
        builder_version=__version__,
        source=plan.checkpoint.source,
        licence=plan.checkpoint.licence,
        fingerprint=fingerprint,
        files=sizes,
    )
    _write_file(directory / MANIFEST_FILE, _dump(manifest.to_json()))


def _open(source: Path | str, random_seed: int | None) -> Checkpoint:
    if random_seed is not None:
        return open_random_checkpoint(Path(source), random_seed)
    return open_checkpoint(source)


def build_engine(
    source: Path | str,
    output: Path | str,
    *,
    precision: str = "fp32",
    limits: BuilderLimits | None = None,
    progress: ProgressCallback | None = None,
    lowering: str = "onnxruntime",
    random_seed: int | None = None,
    block_size: int | None = None,
    hidden_states: Collection[int] = (),
    vision_precision: str | None = None,
    text_only: bool = False,
    policy_settings: Path | None = None,
) -> Path:
    """Build ``output`` from a Hugging Face folder, a ``.gguf`` file or a name of ``WHEEL_MODELS``; returns its path.

    With ``random_seed`` only a ``config.json`` is read of ``source``, and the weights are random.

    What is there already and equal is left as it is; another engine directory is replaced in one step. Peak memory
    does not grow with the model. ``block_size`` is that of int4, 32 or 64. ``limits`` defaults to batch 4, input 1024,
    cache 4096 or what the model allows. ``hidden_states`` names layers, from 1 on, whose states the engine gives too.

    A vision-language model gets its image tower under ``visual``, at ``vision_precision`` (fp32, fp16 or int8; that of
    the text, int8 where the text has fewer bits), unless it is ``text_only``. A policy gets its action engines under
    ``action``, at the precision of the image tower; ``policy_settings`` is a YAML file that names its numbers.

    :raises CheckpointError: the checkpoint or a setting is refused.
    :raises EngineDirectoryError: ``output`` cannot be written.
    :raises MissingPackageError: the extra [build] is not installed.
    """
    check_packages()
    report = progress or (lambda state: None)
    place = Path(output).absolute()
    with closing(_open(source, random_seed)) as checkpoint:
        plan = plan_build(
            checkpoint,
            precision=precision,
            limits=limits,
            lowering=lowering,
            block_size=block_size,
            hidden_states=hidden_states,
            vision_precision_name=vision_precision,
            text_only=text_only,
            policy_settings=read_policy_settings(policy_settings),
        )
        fingerprint = _fingerprint(plan, report)
        if holds_build(place, fingerprint):
            report(Progress("already built", 1, 1))
            return place
        needed = sum(sum(part.sizes.values()) for part in (plan, plan.vision, plan.policy) if part is not None)
        with writing(place, fingerprint, needed) as directory:
            _write(plan, fingerprint, directory, report)
    return place
