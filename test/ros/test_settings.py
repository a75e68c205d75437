from __future__ import annotations

import dataclasses

import pytest

from edgellm_ros.ros.parameter_schema import schema
from edgellm_ros.ros.parameters import Settings


def test_a_snapshot_has_exactly_the_parameters_of_the_schema() -> None:
    assert Settings.from_values({}).values() == schema().defaults()


def test_a_snapshot_survives_the_way_through_its_values() -> None:
    settings = Settings.from_values({"generation.temperature": 1, "generation.stop": ["a"], "autostart": True})
    assert Settings.from_values(settings.values()) == settings
    assert settings.generation.stop == ("a",)


def test_only_request_settings_that_differ_are_named_as_changed() -> None:
    values = {"engine.threads": 3, "generation.temperature": 0.7, "generation.seed": 5, "prompt.history_turns": 2}
    assert Settings.from_values(values).changed() == {"generation.seed": 5, "prompt.history_turns": 2}


def test_a_snapshot_cannot_be_changed() -> None:
    settings = Settings.from_values({})
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.generation.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "reason"),
    [({"generation.temprature": 1.0}, "generation.temprature is not a parameter"), ({"autostart": "yes"}, "autostart")],
)
def test_unknown_names_and_bad_values_are_refused(values: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Settings.from_values(values)


def test_seed_minus_one_draws_another_seed_each_time_and_others_are_kept() -> None:
    fresh = Settings.from_values({"generation.seed": -1}).generation
    drawn = {fresh.draw_seed() for _ in range(8)}
    assert len(drawn) > 1 and all(0 <= seed < 2**31 for seed in drawn)
    assert Settings.from_values({"generation.seed": 0}).generation.draw_seed() == 0


def test_sampling_reaches_the_runtime_unchanged() -> None:
    values = {"temperature": 0.3, "top_p": 0.8, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1}
    sampling = Settings.from_values({f"generation.{name}": value for name, value in values.items()}).generation.sampling
    assert {name: getattr(sampling, name) for name in values} == values
