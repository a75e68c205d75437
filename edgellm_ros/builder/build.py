"""From a checkpoint to an engine directory, in one call."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import __version__
from ..action.fingerprints import Fingerprints, tokenizer_digest
from ..action.policy_manifest import ACTION_DIRECTORY
from ..engine_format import CONFIG_FILE, EMBEDDING_FILE, GRAPH_FILE, VISUAL_DIRECTORY, BuilderLimits
from ..engine_manifest import FORMAT_VERSION, MANIFEST_FILE, Manifest
from ..file_sample import file_samples
from .adapters import AdapterLimits
from .build_plan import BuildPlan, dump_json, plan_build
from .checkpoint import Checkpoint, open_checkpoint
from .embedding_file import write_embedding
from .engine_directory import holds_build, writing
from .graph import DATA_FILE
from .limits import WantedLimits
from .onnx_writer import check_packages, write_weights
from .policy_settings import read_policy_settings, settings_file
from .random_policy import open_random
from .vision_build import write_vision


@dataclass(frozen=True)
class Progress:
    """How far a build is: what it does, bytes done of all bytes of that stage."""

    stage: str
    done: int
    total: int


ProgressCallback = Callable[[Progress], None]


def _checkpoint_digest(checkpoint: Checkpoint, progress: ProgressCallback) -> str:
    total, done = checkpoint.weight_bytes, 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        progress(Progress("reading the checkpoint", done, total))

    return checkpoint.digest(step)


def _fingerprint(plan: BuildPlan, checkpoint: str) -> str:
    """Digest over the checkpoint, the graph and the settings: equal means the same engine."""
    checksum = hashlib.sha256(f"{FORMAT_VERSION} {__version__} {plan.graph.precision.name}".encode())
    checksum.update(checkpoint.encode())
    if plan.calibration is not None:
        checksum.update(plan.calibration.fingerprint())
    checksum.update(hashlib.sha256(plan.graph_files.model).digest())
    checksum.update(dump_json(plan.config.to_json()))
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


def _write(plan: BuildPlan, found: Fingerprints, directory: Path, progress: ProgressCallback) -> None:
    vision = plan.vision
    total = plan.graph_files.data_size if plan.answers else 0
    total += plan.sizes.get(EMBEDDING_FILE, 0)
    total += 0 if vision is None else vision.files.data_size
    total += 0 if plan.policy is None else sum(plan.policy.sizes.values())
    done = 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        progress(Progress("writing weights", done, total))

    if plan.calibration is not None:
        plan = _calibrated(plan, directory / "calibration", progress)
    if plan.answers:
        _write_file(directory / GRAPH_FILE, plan.graph_files.model)
    if plan.answers and not plan.weightless:
        write_weights(plan.graph, plan.graph_files, directory / DATA_FILE, step)
    if not plan.weightless:
        write_embedding(plan.embedding, directory / EMBEDDING_FILE, step, plan.graph.precision.embedding)
    _write_file(directory / CONFIG_FILE, dump_json(plan.config.to_json()))
    for name, content in plan.tokenizer_files.items():
        _write_file(directory / name, content)
    sizes = {name: (directory / name).stat().st_size for name in plan.sizes}
    if vision is not None:
        source = (plan.checkpoint.source, plan.checkpoint.licence, found.build)
        written = write_vision(vision, directory / VISUAL_DIRECTORY, source, _write_file, step)
        sizes |= {f"{VISUAL_DIRECTORY}/{name}": size for name, size in written.items()}
    if plan.policy is not None:
        written = plan.policy.write(directory / ACTION_DIRECTORY, found, _write_file, step)
        sizes |= {f"{ACTION_DIRECTORY}/{name}": size for name, size in written.items()}
    manifest = Manifest(
        lowering=plan.graph.lowering.name,
        precision=plan.graph.precision.name,
        builder_version=__version__,
        source=plan.checkpoint.source,
        licence=plan.checkpoint.licence,
        fingerprint=found.build,
        files=sizes,
        samples=file_samples(directory, sizes),
    )
    _write_file(directory / MANIFEST_FILE, dump_json(manifest.to_json()))


def _calibrated(plan: BuildPlan, folder: Path, progress: ProgressCallback) -> BuildPlan:
    """The plan after its calibration, for which ``folder`` is there for a while."""
    calibration, done = plan.calibration, 0
    if calibration is None:
        return plan

    def step(count: int) -> None:
        nonlocal done
        done += count
        progress(Progress("calibrating", done, calibration.files.data_size))

    folder.mkdir()
    findings = calibration.run(folder, plan.tokenizer_files, step)
    shutil.rmtree(folder)
    return plan.calibrated(findings)


def open_source(source: Path | str, random_seed: int | None) -> Checkpoint:
    """A checkpoint, or random weights for a configuration where there is a seed."""
    if random_seed is not None:
        return open_random(Path(source), random_seed)
    return open_checkpoint(source)


def build_engine(
    source: Path | str,
    output: Path | str,
    *,
    precision: str = "fp32",
    limits: BuilderLimits | WantedLimits | None = None,
    progress: ProgressCallback | None = None,
    lowering: str = "onnxruntime",
    random_seed: int | None = None,
    block_size: int | None = None,
    hidden_states: Collection[int] = (),
    lora: AdapterLimits | None = None,
    vision_precision: str | None = None,
    text_only: bool = False,
    policy_settings: Path | None = None,
    policy_contract: str | None = None,
    calibrate: bool = True,
    weightless: bool = False,
) -> Path:
    """Build ``output`` from a Hugging Face folder, a ``.gguf`` file or a name of ``WHEEL_MODELS``; returns its path.

    With ``random_seed`` only a ``config.json`` is read of ``source``, and the weights are random.

    What is there already and equal is left as it is; another engine directory is replaced in one step. Peak memory
    does not grow with the model, but for the calibration of int8 and int4, which runs the model at eight bits.
    ``block_size`` is that of int4, 32 or 64. ``limits`` defaults to batch 4, input 1024, cache 4096 or what the model
    allows. ``hidden_states`` names layers, from 1 on, whose states the engine gives too. ``lora`` leaves room for
    adapters. A ``weightless`` engine (fp32, of a folder) is read together with its checkpoint.

    A vision-language model gets its image tower under ``visual``, at ``vision_precision`` (fp32, fp16 or int8; that of
    the text, int8 where the text has fewer bits), unless it is ``text_only``. A policy gets its action engines under
    ``action``, at the precision of the image tower; ``policy_settings`` is a YAML file that names its numbers
    (``policy_settings.yaml`` in the checkpoint's folder where none is given), and ``policy_contract`` the robot that a
    checkpoint of openpi is for.

    :raises CheckpointError: the checkpoint or a setting is refused.
    :raises EngineDirectoryError: ``output`` cannot be written.
    :raises MissingPackageError: the extra [build] is not installed.
    """
    check_packages()
    report = progress or (lambda state: None)
    place = Path(output).absolute()
    with closing(open_source(source, random_seed)) as checkpoint:
        plan = plan_build(
            checkpoint,
            precision=precision,
            limits=limits,
            lowering=lowering,
            block_size=block_size,
            hidden_states=hidden_states,
            lora=lora,
            vision_precision_name=vision_precision,
            text_only=text_only,
            policy_settings=read_policy_settings(settings_file(source, policy_settings), policy_contract),
            calibrate=calibrate and random_seed is None,
            weightless=weightless,
        )
        digest = _checkpoint_digest(checkpoint, report)
        fingerprint = _fingerprint(plan, digest)
        found = Fingerprints(checkpoint=digest, tokenizer=tokenizer_digest(plan.tokenizer_files), build=fingerprint)
        if holds_build(place, fingerprint):
            report(Progress("already built", 1, 1))
            return place
        parts = (part for part in (plan, plan.vision, plan.policy) if part is not None)
        needed = plan.passing_bytes + sum(sum(part.sizes.values()) for part in parts)
        # what is not finite is refused in a sentence, to which NumPy's warnings add nothing
        with writing(place, fingerprint, needed) as directory, np.errstate(all="ignore"):
            _write(plan, found, directory, report)
    return place
