"""Train the tabletop policy from seeds, in pieces of as few minutes as there are.

    python -m training.tabletop.train --out OUT --total-minutes T --minutes M [--resume CHECKPOINT]
    python -m torch.distributed.run --nproc-per-node GPUS -m training.tabletop.train …      # batch sizes are per GPU

Data is made on the fly by worker processes and kept in a ring on the device. The schedule goes by the training time
that all pieces have spent together, so a run may be cut into pieces of minutes; each piece ends with a whole checkpoint
(``--whole``) and a light one (``OUT/light.*``), which ``--save-every`` writes on the way too, for a run that is cut.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from training.tabletop.checkpoints import load, save_light, save_whole
from training.tabletop.closed_loop import TorchPolicy, evaluate, own_states
from training.tabletop.feed import Feed
from training.tabletop.losses import Objective
from training.tabletop.recorded_step import PlainStep, RecordedStep, step_of
from training.tabletop.sizes import Sizes
from training.tabletop.text import IMAGE, Codec

FOLDER = Path(__file__).resolve().parent
STATISTICS = json.loads((FOLDER / "statistics.json").read_text())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--whole", type=Path, default=None, help="file of the whole checkpoint")
    parser.add_argument("--resume", type=Path, default=None, help="a whole checkpoint or a folder with light.*")
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument(
        "--total-minutes", type=float, required=True, help="training time of all pieces; sets the schedule"
    )
    parser.add_argument("--minutes", type=float, required=True, help="of this piece, start included")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--questions", type=int, default=384)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--decay", type=float, default=0.999, help="of the running mean of the weights")
    parser.add_argument("--again", action="store_true", help="start the rate's schedule anew with this piece")
    parser.add_argument("--workers", type=int, default=0, help="data processes for each GPU; 0: all cores but one")
    parser.add_argument("--ring", type=int, default=300_000)
    parser.add_argument("--first", type=int, default=20_000, help="samples to wait for before the first step")
    parser.add_argument("--own-every", type=int, default=0, help="steps between the policy's own rollouts; 0: none")
    parser.add_argument("--own-worlds", type=int, default=96)
    parser.add_argument("--evaluate", type=int, default=0, help="episodes at the end, for each GPU")
    parser.add_argument("--reserve", type=float, default=25.0, help="seconds kept for checkpoints and evaluation")
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--save-every", type=float, default=0.0, help="minutes between light checkpoints; 0: none")
    parser.add_argument("--plain", action="store_true", help="record no CUDA graph of the step")
    return parser.parse_args()


def rate_at(step: int, progress: float, options: argparse.Namespace, resumed_at: int) -> float:
    """Warm-up, then a cosine to 1 %; a short new warm-up after a resume without the optimiser's state."""
    warm = min(1.0, (step + 1) / options.warmup)
    if resumed_at:
        warm = min(warm, (step - resumed_at + 1) / 150)
    return float(options.rate * warm * (0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))))


def share_gradients(parameters: list[torch.nn.Parameter], count: int) -> None:
    """Replace every gradient by its mean over all processes, in one exchange."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    pieces = (flat / count).split([gradient.numel() for gradient in gradients])
    torch._foreach_copy_(gradients, [piece.view_as(g) for piece, g in zip(pieces, gradients, strict=True)])


def agree(value: float, device: torch.device) -> float:
    """The first process's value; all processes must ask at the same step."""
    if not dist.is_initialized():
        return value
    shared = torch.tensor(value, device=device, dtype=torch.float64)
    dist.broadcast(shared, 0)
    return float(shared.item())


def main() -> None:
    begin = time.time()
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    workers = options.workers or max(1, (os.cpu_count() or 2) // processes - 1)
    sizes = Sizes()
    state = load(options.resume) if options.resume else {}
    run = int(state.get("run", -1)) + 1
    share = Path(tempfile.mkdtemp()) / "own_states.npz"
    feed = Feed([options.seed, run, rank], workers, FOLDER / "tokenizer", sizes.image_tokens, share)
    codec = Codec(FOLDER / "tokenizer", sizes.image_tokens)
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if processes > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(options.seed * 1000 + run)
    torch.backends.cuda.matmul.allow_tf32 = True
    feed.connect(device, options.ring)
    mean = torch.tensor([STATISTICS["state_mean"], STATISTICS["action_mean"]])
    deviation = torch.tensor([STATISTICS["state_std"], STATISTICS["action_std"]])
    objective = Objective(sizes, codec.ids[IMAGE], mean, deviation)
    average = Objective(sizes, codec.ids[IMAGE], mean, deviation)
    if state:
        objective.load_state_dict({key: value.float() for key, value in state["weights"].items()})
        average.load_state_dict({key: value.float() for key, value in state["mean"].items()})
    else:
        average.load_state_dict(objective.state_dict())
    objective.to(device)
    average.to(device).requires_grad_(False)
    wide = [p for p in objective.parameters() if p.ndim >= 2]
    thin = [p for p in objective.parameters() if p.ndim < 2]
    groups = [{"params": wide, "weight_decay": 0.05}, {"params": thin, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=options.rate, betas=(0.9, 0.95), fused=device.type == "cuda")
    if "optimiser" in state:
        optimiser.load_state_dict(state["optimiser"])
    step, earlier = int(state.get("step", 0)), float(state.get("spent", 0.0))
    resumed_at = step if state and "optimiser" not in state else 0
    del state
    # Weights were drawn alike in every process; noise and batches are each process's own.
    torch.manual_seed((options.seed * 1000 + run) * 64 + rank + 1)
    generator = torch.Generator(device).manual_seed((options.seed * 7919 + run) * 64 + rank)
    log = ((options.out if rank == 0 else share.parent) / "train.jsonl").open("a")

    def note(**values: object) -> None:
        head = {"run": run, "rank": rank, "step": step, "seconds": round(time.time() - begin, 1)}
        line = json.dumps({**head, **values})
        if rank == 0 or "event" in values:
            print(line, flush=True)
        log.write(line + "\n")
        log.flush()

    def policy() -> TorchPolicy:
        return TorchPolicy(average.policy, STATISTICS, codec)

    def state_now() -> dict[str, Any]:
        modules = {"weights": objective, "mean": average, "optimiser": optimiser}
        counts = {"step": step, "run": run, "spent": spent}
        return {name: module.state_dict() for name, module in modules.items()} | counts

    feed.wait(min(options.first, options.ring // 2))
    note(event="start", produced=feed.produced, parameters=sum(p.numel() for p in objective.policy.parameters()))
    means, lives = list(average.parameters()), list(objective.parameters())
    take: PlainStep | RecordedStep | None = None
    saved_at = marked = time.time()
    produced, pace = feed.produced, step
    sums: dict[str, torch.Tensor] = {}
    spent, total, clock = earlier, 60.0 * options.total_minutes, time.time()
    allowed = 60.0 * options.minutes - options.reserve - (clock - begin)
    while True:
        if step % 10 == 0:
            # The first process's clock decides, so that all processes take the same steps.
            spent = agree(earlier + time.time() - clock, device)
            if spent >= total or spent - earlier >= allowed:
                break
        for group in optimiser.param_groups:
            progress = (spent - earlier) / (total - earlier) if options.again else spent / total
            group["lr"] = rate_at(step, progress, options, resumed_at)
        motion = feed.motions.draw(options.batch, generator)
        question = feed.questions.draw(options.questions, generator)
        if take is None:
            take = step_of(objective, motion, question, plain=options.plain)
        parts = take(motion, question)
        if processes > 1:
            share_gradients(lives, processes)
        norm = torch.nn.utils.clip_grad_norm_(lives, 1.0)
        optimiser.step()
        decay = min(options.decay, (1.0 + step) / (10.0 + step))
        torch._foreach_lerp_(means, lives, 1.0 - decay)
        step += 1
        for name, value in {**parts, "norm": norm.detach()}.items():
            sums[name] = sums.get(name, torch.zeros((), device=device)) + value
        if step % options.log_every == 0:
            values = {name: round(float(value) / options.log_every, 5) for name, value in sums.items()}
            sums, passed = {}, time.time() - marked
            fresh = round((feed.produced - produced) / passed)
            note(**values, steps_per_second=round((step - pace) / passed, 2), samples_per_second=fresh)
            marked, produced, pace = time.time(), feed.produced, step
        if options.own_every and step % options.own_every == 0:
            started = time.time()
            rng = np.random.default_rng([options.seed, run, rank, step])
            states = own_states(policy(), rng, options.own_worlds)
            states.save(share)
            note(event="own states", count=states.worlds.count, took=round(time.time() - started, 1))
        if rank == 0 and options.save_every and time.time() - saved_at >= 60.0 * options.save_every:
            save_light(options.out, state_now())
            saved_at = time.time()
            note(event="saved")
    feed.close()
    if rank == 0:
        save_light(options.out, state_now())
        if options.whole:
            save_whole(options.whole, state_now())
        note(event="saved")
    if options.evaluate:
        first = rank * options.evaluate
        note(event="evaluated", **evaluate(policy(), options.evaluate, options.evaluate, seed=first))
    if processes > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
