"""Write an engine directory from a Hugging Face folder, a .gguf file, or a model that an installed package carries."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from ..builder.adapters import AdapterLimits
from ..builder.build import Progress, build_engine
from ..builder.build_check import check_build
from ..builder.limits import DEFAULT_BATCH, DEFAULT_CAPACITY, DEFAULT_INPUT, WantedLimits
from ..builder.lowerings import LOWERINGS
from ..builder.tensorrt_build import DEFAULT_WORKSPACE, PlanOptions, check_compiler, check_lowering, compile_plan
from ..builder.wheel_models import WHEEL_MODELS
from ..errors import CheckpointError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help=f"Hugging Face folder, .gguf file, {' or '.join(WHEEL_MODELS)}"
    )
    parser.add_argument("output", metavar="OUT", help="engine directory to write")
    parser.add_argument(
        "--precision",
        default="fp32",
        metavar="NAME",
        help="fp32, fp16 or bf16 (for a GPU; bf16 for TensorRT), int8 or int4 (default: %(default)s)",
    )
    parser.add_argument(
        "--block-size", type=int, metavar="N", help="weights of int4 that share a scale: 32 (default) or 64"
    )
    parser.add_argument(
        "--no-calibration",
        action="store_true",
        help="int8 and int4: round without running a text through the model first, which needs the memory of an engine",
    )
    parser.add_argument(
        "--vision-precision",
        metavar="NAME",
        help="of the image tower: fp32, fp16, bf16 or int8 (default: that of the text, int8 for int4)",
    )
    parser.add_argument("--text-only", action="store_true", help="leave the image tower of the model out")
    parser.add_argument(
        "--check",
        action="store_true",
        help="say what would be built, and the disk and memory that it takes; read no weights and write nothing",
    )
    parser.add_argument(
        "--lowering", default="onnxruntime", choices=list(LOWERINGS), help="engine library that runs it"
    )
    parser.add_argument(
        "--plan", action="store_true", help="compile the TensorRT plan too, for the GPU of this machine"
    )
    parser.add_argument(
        "--workspace",
        type=int,
        metavar="MB",
        help=f"scratch memory that a kernel may take, with --plan (default: {DEFAULT_WORKSPACE >> 20})",
    )
    parser.add_argument(
        "--hidden-states",
        type=int,
        action="append",
        default=[],
        metavar="LAYER",
        help="let the engine give the states of this layer too, from 1 on; may be repeated",
    )
    parser.add_argument("--lora-rank", type=int, metavar="R", help="leave room for LoRA adapters of up to this rank")
    parser.add_argument(
        "--lora-slots",
        type=int,
        metavar="N",
        help="adapters that one batch may use at most, with --lora-rank (default: 4)",
    )
    parser.add_argument(
        "--lora-targets",
        metavar="q_proj,v_proj",
        help="projections that adapters may change, with --lora-rank; fewer make a step cheaper (default: all)",
    )
    parser.add_argument(
        "--weightless",
        action="store_true",
        help="leave the weights in CHECKPOINT (a folder; fp32), which the runtime then needs too",
    )
    parser.add_argument(
        "--random-weights",
        action="store_true",
        help="CHECKPOINT is a config.json: build an engine of its shape with random weights and a byte tokenizer",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the random weights (default: 0)")
    parser.add_argument(
        "--policy-settings",
        type=Path,
        metavar="YAML",
        help="names, units and meaning of a policy's numbers (default: policy_settings.yaml in its folder)",
    )
    parser.add_argument(
        "--policy-contract", metavar="NAME", help="robot that a policy of openpi is for: libero, droid or aloha"
    )
    parser.add_argument("--max-batch", type=int, metavar="N", help=f"sequences at a time (default: {DEFAULT_BATCH})")
    parser.add_argument("--max-input", type=int, metavar="N", help=f"tokens of a prompt (default: {DEFAULT_INPUT})")
    parser.add_argument(
        "--max-kv",
        type=int,
        metavar="N",
        help=f"tokens of a prompt and its answer (default: {DEFAULT_CAPACITY}, or the model's)",
    )


class ProgressLine:
    """One line a second on stderr, the first after a second; a terminal sees it rewritten in place."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 1.0
        self._shown = False

    def __call__(self, state: Progress) -> None:
        """Print if it is time."""
        now = time.monotonic()
        if now < self._next:
            return
        self._show(f"{state.stage}: {100 * state.done // max(1, state.total)} % of {state.total / 1e6:.0f} MB", now)

    def plan(self, what: str, seconds: float) -> None:
        """The same for work that knows no end."""
        now = time.monotonic()
        if now >= self._next:
            self._show(f"{what}: {seconds:.0f} s", now)

    def _show(self, text: str, now: float) -> None:
        self._next = now + 1.0
        self._shown = True
        print(f"\r{text}\033[K" if sys.stderr.isatty() else text, end="", file=sys.stderr, flush=True)
        if not sys.stderr.isatty():
            print(file=sys.stderr)

    def close(self) -> None:
        """End the line."""
        if self._shown and sys.stderr.isatty():
            print(file=sys.stderr)


def _limits(arguments: argparse.Namespace) -> WantedLimits:
    return WantedLimits(arguments.max_batch, arguments.max_input, arguments.max_kv)


def _adapter_limits(arguments: argparse.Namespace) -> AdapterLimits | None:
    slots, targets = arguments.lora_slots, arguments.lora_targets
    if arguments.lora_rank is None:
        for option, value in (("--lora-slots", slots), ("--lora-targets", targets)):
            if value is not None:
                raise CheckpointError(f"{option} is given without --lora-rank; add it.")
        return None
    names = () if targets is None else tuple(targets.replace(",", " ").split())
    if targets is not None and not names:
        raise CheckpointError("--lora-targets names no projection; name some, or leave it out for all.")
    return AdapterLimits(arguments.lora_rank, 4 if slots is None else slots, names)


def _random_seed(arguments: argparse.Namespace) -> int | None:
    """None where the weights are not random."""
    if not arguments.random_weights:
        if arguments.seed is not None:
            raise CheckpointError("--seed is given without --random-weights; add it.")
        return None
    return 0 if arguments.seed is None else int(arguments.seed)


def _plan_options(arguments: argparse.Namespace) -> PlanOptions | None:
    """None where no plan is compiled."""
    if not arguments.plan:
        if arguments.workspace is not None:
            raise CheckpointError("--workspace is given without --plan; add it.")
        return None
    check_lowering(arguments.lowering)
    return PlanOptions(DEFAULT_WORKSPACE if arguments.workspace is None else arguments.workspace << 20)


def run(arguments: argparse.Namespace) -> int:
    """Build; 0 when the directory stands."""
    limits, seed = _limits(arguments), _random_seed(arguments)
    plan = _plan_options(arguments)
    if not arguments.output:
        raise CheckpointError("OUT is empty; name the engine directory to write.")
    line = ProgressLine()
    start = time.monotonic()
    skipped = False

    def progress(state: Progress) -> None:
        nonlocal skipped
        skipped = state.stage == "already built"
        line(state)

    settings: dict[str, Any] = {
        "precision": arguments.precision,
        "limits": limits,
        "lowering": arguments.lowering,
        "block_size": arguments.block_size,
        "calibrate": not arguments.no_calibration,
        "vision_precision": arguments.vision_precision,
        "text_only": arguments.text_only,
        "hidden_states": arguments.hidden_states,
        "weightless": arguments.weightless,
        "lora": _adapter_limits(arguments),
        "random_seed": seed,
        "policy_settings": arguments.policy_settings,
        "policy_contract": arguments.policy_contract,
    }
    if arguments.check:
        print("\n".join(check_build(arguments.checkpoint, arguments.output, **settings).lines()))
        return 0
    api = check_compiler(arguments.lowering, arguments.precision) if plan else None
    try:
        path = build_engine(arguments.checkpoint, arguments.output, progress=progress, **settings)
        if api is not None:
            compile_plan(path, plan, line.plan, api=api)
    finally:
        line.close()
    done = "was built already" if skipped else f"built in {time.monotonic() - start:.1f} s"
    what = f"{arguments.precision} engine directory{' with its plan' if plan else ''}"
    print(f"{path}: {what}, {done}")
    return 0
