"""pi0 and pi0.5 from openpi's PyTorch conversion: the same tensors, other numbers in and out (see the contracts)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...action.dimensions import Dimensions
from ...action.normalization import EpsilonRule, Normalization, NormalizationKind
from ...action.policy_manifest import ImageFit, PolicyManifest, StateInput
from ...errors import CheckpointError, PolicyError
from ...json_values import shown
from ..families.config_values import require, whole_number
from ..openpi_layout import choose_statistics, read_statistics, statistics_files
from ..policy_checkpoint import PolicyCheckpoint
from ..policy_settings import PolicySettings
from . import pi, pi_files
from .base import PolicyFamily
from .openpi_contracts import CONTRACTS, Contract, find_contract

EPSILON = 1e-6  # openpi adds it to every deviation and range, in both directions
PROMPT_TOKENS = {"pi0": 48, "pi05": 200}
_STATISTICS = {
    "pi0": (NormalizationKind.MEAN_STD, ("mean", "std")),
    "pi05": (NormalizationKind.RANGE, ("q01", "q99")),
}
_FEATURES = {"state": "state", "action": "actions"}  # as norm_stats.json calls them
_SAID_BY_CONTRACT = ("meaning", "step_time", "optional_cameras", "embodiment")


def _family(model: pi.PiConfig) -> str:
    return "pi05" if model.adaptive else "pi0"


def parse(checkpoint: PolicyCheckpoint, settings: PolicySettings) -> pi.PiConfig:
    """See ``PolicyFamily``."""
    config = checkpoint.config
    for key in ("paligemma_variant", "action_expert_variant"):
        if "lora" in str(config.get(key)):
            raise CheckpointError(
                f"config.json: {key} is {shown(config[key])}, with adapters that openpi's conversion leaves out; merge "
                "them into the weights first."
            )
    width = whole_number(config, "action_dim")
    sizes = {"chunk_size": whole_number(config, "action_horizon"), "max_state_dim": width, "max_action_dim": width}
    model = pi_files.read_model(checkpoint, sizes)
    require(config, "pi05", model.adaptive, "so the tensors say")
    return model


def manifest(checkpoint: PolicyCheckpoint, model: pi.PiConfig, settings: PolicySettings) -> PolicyManifest:
    """See ``PolicyFamily``."""
    family, files = _family(model), statistics_files(checkpoint.path)
    asset = next(iter(files)) if len(files) == 1 else ""
    contract = find_contract(settings.contract, family, model.horizon, asset, str(checkpoint.path))
    limit = PROMPT_TOKENS[family]
    require(checkpoint.config, "max_token_len", limit, "so the family was trained")
    in_prompt = model.adaptive and contract.state_in_prompt
    require(checkpoint.config, "discrete_state_input", in_prompt, "so the contract says")
    for key in _SAID_BY_CONTRACT:
        if key in settings.stated:
            raise CheckpointError(f"the policy settings have {key}, which the contract says already; leave it out.")
    size = pi_files.tower(checkpoint, model).settings()["image_size"]
    try:
        return pi_files.flow_manifest(
            checkpoint,
            model,
            state=_dimensions(checkpoint, contract, "state", family, model.padded_state, settings),
            action=_dimensions(checkpoint, contract, "action", family, model.padded_action, settings),
            meaning=contract.meaning,
            execute_steps=contract.execute_steps,
            step_time=contract.step_time,
            cameras=contract.cameras,
            image_size=(size, size),
            image_fit=ImageFit.PAD_CENTRE_SMOOTH,
            empty_cameras=0,
            prompt_tokens=limit,
            spaced_words=True,
            delta_dimensions=contract.deltas[family],
            adapter=contract.adapter,
            embodiment=next(name for name, row in CONTRACTS.items() if row is contract),
            **_prompt(in_prompt, model.adaptive),
        )
    except PolicyError as error:
        raise CheckpointError(f"{checkpoint.path}: {error}") from None


def _prompt(in_prompt: bool, adaptive: bool) -> Mapping[str, Any]:
    if in_prompt:
        return {"state_input": StateInput.PROMPT_BINS, "prompt_format": pi_files.PROMPT}
    state = StateInput.NONE if adaptive else StateInput.SUFFIX_TOKEN
    return {"state_input": state, "prompt_format": pi_files.TASK}


def _dimensions(
    checkpoint: PolicyCheckpoint, contract: Contract, part: str, family: str, padded: int, settings: PolicySettings
) -> Dimensions:
    """Names (the settings may say them otherwise), units and statistics of ``state`` or ``action``."""
    own = contract.dimensions(part)
    names, units = settings.names_and_units(part, len(own))
    if settings.units.get(part) and units != tuple(own.values()):
        raise CheckpointError(
            f"the policy settings have the {part} units {', '.join(units)}; the contract has "
            f"{', '.join(own.values())}: leave them out, and convert what the robot reports."
        )
    kind, rows = _STATISTICS[family]
    file = choose_statistics(checkpoint.path, contract.asset)
    low, high = read_statistics(file, _FEATURES[part], rows, len(own))
    statistics = Normalization(kind, low, high, EPSILON, EpsilonRule.ALWAYS)
    return Dimensions(names if settings.names.get(part) else tuple(own), tuple(own.values()), padded, statistics)


def _openpi(family: PolicyFamily) -> PolicyFamily:
    """The same graphs, read from openpi's files."""
    name = f"openpi_{family.name}"
    return PolicyFamily(
        name,
        (name,),
        parse,
        family.stored_name,
        family.may_be_left_out,
        family.graphs,
        manifest,
        family.language,
        tuple(CONTRACTS),
    )


OPENPI_PI0, OPENPI_PI05 = _openpi(pi_files.PI0), _openpi(pi_files.PI05)
