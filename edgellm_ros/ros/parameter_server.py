"""The parameters on a node: declared from the schema, checked before anything is set, read as one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.exceptions import InvalidParameterValueException
from rclpy.node import Node
from rclpy.parameter import Parameter

from ..errors import EdgeLLMError, RefusalCode
from .given_parameters import dropped_values
from .parameter_rules import RULES
from .parameter_schema import ParameterDefinition, ParameterEffect, ParameterType, schema
from .parameters import Settings

_BEFORE_A_CHANGE = {
    "active": "deactivate and clean up the node",
    "inactive": "clean up the node",
}


def descriptor(definition: ParameterDefinition) -> ParameterDescriptor:
    """What ``ros2 param describe`` shows of a parameter."""
    constraints = [definition.effect.value]
    if definition.exclusive_minimum or definition.choices or definition.minimum is None:
        constraints = [text for text in (definition.range_text, *constraints) if text]
    message = ParameterDescriptor(
        name=definition.name,
        description=definition.description,
        additional_constraints="; ".join(constraints),
        read_only=definition.effect is ParameterEffect.START,
        dynamic_typing=True,  # or rclpy refuses 1 where a double is wanted before anyone is asked
    )
    low, high = definition.minimum, definition.maximum
    if low is not None and high is not None:
        if definition.type is ParameterType.INT:
            message.integer_range = [IntegerRange(from_value=int(low), to_value=int(high))]
        else:
            message.floating_point_range = [FloatingPointRange(from_value=float(low), to_value=float(high))]
    return message


class ParameterServer:
    """Belongs to the executor's thread, as all parameter calls of a node do."""

    def __init__(self, node: Node, lifecycle: Callable[[], str]) -> None:
        """Declare everything; ``lifecycle`` gives the label of the node's state.

        :raises EdgeLLMError: a value given at start is refused; the sentence names it.
        """
        self._node = node
        self.lifecycle = lifecycle
        self.unserved: Callable[[str, Any], str | None] = lambda _name, _value: None  # why an engine has no use for it
        self._declaring = True
        node.add_on_set_parameters_callback(self._check)
        for definition in schema().definitions:
            default = definition.default
            value = list(default) if isinstance(default, tuple) else default
            try:
                node.declare_parameter(definition.name, value, descriptor(definition))
            except InvalidParameterValueException as error:
                given = self._overrides()[definition.name].value
                raise EdgeLLMError(_refusal_of(definition, given) or str(error), RefusalCode.BAD_PARAMETER) from None
        self._declaring = False
        for names, bad in RULES:
            if reason := bad(self._values(names, {})):
                raise EdgeLLMError(reason, RefusalCode.BAD_PARAMETER)

    def settings(self) -> Settings:
        """All values as they are now."""
        return Settings.from_values({name: self._node.get_parameter(name).value for name in schema().by_name})

    def unknown_overrides(self) -> list[str]:
        """One sentence for each value given at start that no parameter of the node takes."""
        sentences = []
        for name in self._overrides():
            if self._node.has_parameter(name) or name.startswith("qos_overrides."):
                continue
            hint = schema().nearest(name)
            sentences.append(f"The parameter {name} was given but this node has no such parameter; {hint}")
        return sentences

    def dropped_overrides(self, command_line: Sequence[str]) -> list[str]:
        """One sentence for each value given at start that ROS passed over for one of a named node.

        :raises EdgeLLMError: ROS has dropped a value for an earlier one of another type.
        """
        node, kept = self._node, {name: parameter.value for name, parameter in self._overrides().items()}
        dropped = dropped_values(command_line, node.get_name(), node.get_namespace(), kept, schema().by_name.keys())
        for value in dropped:
            if value.by_type:
                raise EdgeLLMError(str(value), RefusalCode.BAD_PARAMETER)
        return [str(value) for value in dropped]

    def _overrides(self) -> Mapping[str, Any]:
        return getattr(self._node, "_parameter_overrides", {})  # rclpy tells them in no other way

    def _check(self, parameters: Sequence[Parameter]) -> SetParametersResult:
        """Say whether all of them may be set; sets nothing."""
        for parameter in parameters:
            definition = schema().by_name.get(parameter.name)
            if definition is None:
                continue  # of ROS itself: use_sim_time, qos_overrides
            reason = (
                self._too_late(definition)
                or _refusal_of(definition, parameter.value, self._declaring)
                or self.unserved(parameter.name, parameter.value)
            )
            if reason:
                return SetParametersResult(successful=False, reason=reason)
        for names, bad in RULES:
            changes = {parameter.name: parameter.value for parameter in parameters if parameter.name in names}
            if changes and not self._declaring and (reason := bad(self._values(names, changes))):
                return SetParametersResult(successful=False, reason=reason)
        return SetParametersResult(successful=True)

    def _values(self, names: Sequence[str], changes: Mapping[str, Any]) -> dict[str, Any]:
        return {name: changes[name] if name in changes else self._node.get_parameter(name).value for name in names}

    def _too_late(self, definition: ParameterDefinition) -> str | None:
        state = self.lifecycle()
        if self._declaring or definition.effect is ParameterEffect.REQUEST or state == "unconfigured":
            return None
        before = _BEFORE_A_CHANGE.get(state, "bring the node to unconfigured")
        return (
            f"{definition.name} is read when the node is configured and the node is {state}; "
            f"{before}, set it, and configure again."
        )


def _refusal_of(definition: ParameterDefinition, value: Any, declaring: bool = True) -> str | None:
    if value is None and not declaring:  # "not set" would remove the parameter
        return f"{definition.name} cannot be removed; set it to a value."
    try:
        definition.convert(value)
    except ValueError as error:
        return str(error)
    return None
