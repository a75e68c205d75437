"""Measure the mean and deviation of joint states and commands over expert rollouts; writes statistics.json."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from training.tabletop.rollouts import HORIZON, choose_ticks, roll

WORLDS, SEED = 600, 20

if __name__ == "__main__":
    generator = np.random.default_rng(SEED)
    rollout = roll(generator, WORLDS)
    pairs = choose_ticks(generator, rollout, 9)
    states = np.stack([rollout.ticks[tick].joints[row] for tick, row in pairs])
    chunks = np.concatenate([rollout.commands[tick : tick + HORIZON, row] for tick, row in pairs])
    statistics = {
        "state_mean": states.mean(0).round(4).tolist(),
        "state_std": states.std(0).round(4).tolist(),
        "action_mean": chunks.mean(0).round(4).tolist(),
        "action_std": chunks.std(0).round(4).tolist(),
    }
    Path(__file__).with_name("statistics.json").write_text(json.dumps(statistics, indent=2) + "\n")
    print(statistics)
