from __future__ import annotations

import math

import pytest

from edgellm_ros.ros.parameter_schema import ParameterEffect, ParameterType, read_schema, schema


def minimal(**entry: object) -> str:
    """A schema of one parameter ``x`` with these keys in place of the usual ones."""
    import json

    values = {"type": "int", "default_value": 1, "description": "One.", **entry}
    return json.dumps({"edgellm": {"x": values}})


@pytest.mark.parametrize("definition", schema().definitions, ids=lambda definition: definition.name)
def test_every_parameter_has_a_sentence_and_accepts_its_own_default(definition) -> None:
    assert definition.description.endswith(".")
    assert definition.convert(definition.default) == definition.default
    if definition.type in (ParameterType.INT, ParameterType.DOUBLE):
        assert definition.minimum is not None and definition.maximum is not None, "numbers have a range"


@pytest.mark.parametrize(
    ("name", "value", "converted"),
    [
        ("generation.temperature", 1, 1.0),
        ("generation.temperature", 0.0, 0.0),
        ("generation.temperature", 2, 2.0),
        ("generation.top_p", 1, 1.0),
        ("generation.seed", -1, -1),
        ("generation.seed", 2**31 - 1, 2**31 - 1),
        ("generation.stop", ["a", "b"], ("a", "b")),
        ("generation.stop", [], ()),
        ("generation.stop", None, ()),
        ("generation.stop", ["x"] * 16, ("x",) * 16),
        ("prompt.on_busy", "replace", "replace"),
        ("autostart", True, True),
    ],
)
def test_allowed_values_are_taken_in_the_parameters_own_type(name: str, value: object, converted: object) -> None:
    result = schema().by_name[name].convert(value)
    assert result == converted
    assert type(result) is type(converted)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("generation.temperature", -0.1, "generation.temperature is -0.1; want a number from 0 to 2."),
        ("generation.temperature", 2.1, "from 0 to 2"),
        ("generation.temperature", math.nan, "nan"),
        ("generation.temperature", math.inf, "inf"),
        ("generation.temperature", "1", "of type str; want a number"),
        ("generation.temperature", True, "of type bool; want a number"),
        ("generation.top_p", 0, "generation.top_p is 0; want a number above 0, to 1."),
        ("generation.top_p", 0.0, "above 0"),
        ("generation.seed", "7", "of type str; want a whole number"),
        ("generation.seed", 1.0, "of type float; want a whole number"),
        ("generation.seed", 2**31, "from -1 to 2147483647"),
        ("generation.stop", [""], "a list with an empty text"),
        ("generation.stop", ["x"] * 17, "a list of 17; want at most 16 entries"),
        ("generation.stop", [1], "a list with 1 of type int"),
        ("generation.stop", "x", "of type str; want a list of texts"),
        ("prompt.on_busy", "wait", "one of queue, replace, reject, drop_oldest"),
        ("prompt.queue_size", 0, "from 1 to 64"),
        ("generation.system_prompt", "ä" * 65537, "131074 bytes long; want at most 131072 bytes"),
        ("autostart", 1, "of type int; want true or false"),
    ],
)
def test_other_values_are_refused_with_a_sentence_that_names_the_parameter(
    name: str, value: object, reason: str
) -> None:
    with pytest.raises(ValueError) as caught:
        schema().by_name[name].convert(value)
    sentence = str(caught.value)
    assert reason in sentence
    assert sentence.startswith(name) and sentence.endswith(".")


def test_validators_decide_when_a_change_is_taken_up() -> None:
    effects = {name: definition.effect for name, definition in schema().by_name.items()}
    assert effects["autostart"] is ParameterEffect.START
    for name, effect in effects.items():
        groups = ("engine.", "fake.", "cache.", "cameras", "images.transport", "images.stamp_source")
        if name.startswith((*groups, "action.joint_names", "action.pairing")):
            assert effect is ParameterEffect.CONFIGURE
        elif name != "autostart":
            assert effect is ParameterEffect.REQUEST


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (minimal(default=1), "unknown keys"),
        (minimal(validation={"bound<>": [0, 1]}), "validator bound<>"),
        (minimal(validation={"bounds<>": [2, 3]}), "x is 1; want"),
        (minimal(type="float"), "float"),
    ],
    ids=["unknown key", "unknown validator", "default out of range", "unknown type"],
)
def test_mistakes_in_the_file_are_found_when_it_is_read(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_schema(text)
