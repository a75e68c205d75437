"""A sandbox for chat templates that also bounds what they may cost.

Jinja's own sandbox keeps a template away from Python's objects, but not from looping for ever or from asking for more
text than the machine has memory. Here every turn of a loop, every call, filter and operator is charged to an account
that each rendering opens anew; what would make a large value out of small ones is refused before it is made.
"""

from __future__ import annotations

import functools
import inspect
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jinja2
import jinja2.nodes
import jinja2.runtime
import jinja2.sandbox
import jinja2.visitor

MAX_SECONDS = 2.0  # of one rendering on a processor; real templates take milliseconds
MAX_OPERATIONS = 2_000_000  # turns of loops, calls, filters, operators
MAX_SIZE = 1 << 26  # characters and entries of all values that one rendering makes
MAX_PARTS = 1 << 18  # entries of one nested value that is written out
MAX_BITS = 4096  # of a whole number
_GROWING = {
    "ljust", "rjust", "center", "zfill", "expandtabs", "replace", "join", "format", "format_map", "indent", "tojson",
    "sum", "slice", "batch", "translate", "wordwrap", "urlize",
}  # fmt: skip
_TICK, _CONCATENATE = "_edgellm_tick", "_edgellm_concatenate"


class _Account(threading.local):
    """What the rendering under way in this thread has cost."""

    open = False
    operations = 0
    size = 0
    end = 0.0

    @contextmanager
    def opened(self) -> Iterator[None]:
        self.open, self.operations, self.size = True, 0, 0
        self.end = time.thread_time() + MAX_SECONDS
        try:
            yield
        finally:
            self.open = False

    def charge(self, size: int = 0) -> None:
        if not self.open:  # Jinja folds constants while it compiles
            self.check(size)
            return
        self.operations += 1
        self.size += size
        self.check(self.size)
        if self.operations > MAX_OPERATIONS or (self.operations % 64 == 0 and time.thread_time() > self.end):
            raise jinja2.TemplateError("it does not come to an end")

    @staticmethod
    def check(size: int) -> None:
        if size > MAX_SIZE:
            raise jinja2.TemplateError("it makes too much text")


def _measure(value: Any) -> int:
    """About how many characters and entries a value has when it is written out; stops where that is too many."""
    total, parts, rest = 0, 0, [value]
    while rest and total <= MAX_SIZE:
        part = rest.pop()
        total += 1
        parts += 1
        if parts + len(rest) > MAX_PARTS:
            return MAX_SIZE + 1
        if isinstance(part, str | bytes):
            total += len(part)
        elif isinstance(part, Mapping):
            rest.extend(part.keys())
            rest.extend(part.values())
        elif isinstance(part, list | tuple | set | frozenset):
            rest.extend(part)
        elif isinstance(part, int):
            total += part.bit_length() >> 2
    return total


def _check_growth(values: tuple[Any, ...]) -> None:
    """Refuse an operation whose result could be a product of its operands that is too large."""
    sizes = []
    for value in values:
        size = _measure(value)
        if isinstance(value, int):
            size = abs(value)
        elif isinstance(value, str) and any(mark in value for mark in "%{"):  # widths in a format
            size += max((int(digits[:12]) for digits in re.findall("[0-9]+", value)), default=0)
        sizes.append(max(1, size))
    sizes.sort()
    largest = 1
    for size in sizes[-2:]:
        largest *= size
    _Account.check(largest)


class TemplateSandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Templates made here are rendered inside ``bounded``; outside it only single values are bounded."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, **options: Any) -> None:
        self._account = _Account()
        super().__init__(finalize=self._written, **options)
        for name, function in list(self.filters.items()):
            self.add_filter(name, function)
        self.filters[_TICK] = jinja2.pass_context(lambda _context, size: self._account.charge(size))
        self.filters[_CONCATENATE] = self._concatenate

    def bounded(self) -> Any:
        """A context manager that opens the account of one rendering in this thread."""
        return self._account.opened()

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Make ``function`` a filter whose results are charged."""
        skip = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def charged(*arguments: Any, **named: Any) -> Any:
            operands = (*arguments[skip:], *named.values())
            if name in _GROWING:
                _check_growth(operands)
            elif name in ("string", "pprint", "escape", "e", "forceescape", "upper", "lower", "capitalize", "title"):
                self._account.charge(_measure(operands))
            return self._charged(function(*arguments, **named))

        self.filters[name] = charged

    def call(self, context: jinja2.runtime.Context, callee: Any, *arguments: Any, **named: Any) -> Any:
        """Call for a template, where the sandbox allows it."""
        method = inspect.unwrap(callee) if callable(callee) else callee  # Jinja wraps str.format
        if getattr(method, "__name__", "") in _GROWING:
            _check_growth((getattr(method, "__self__", ""), *arguments, *named.values()))
        return self._charged(super().call(context, callee, *arguments, **named))

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator whose result may be much larger than its operands."""
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * abs(right) > MAX_BITS:
                raise jinja2.TemplateError("it makes too large a number")
        elif operator == "*" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right.bit_length() > MAX_BITS:
                raise jinja2.TemplateError("it makes too large a number")
        elif operator == "*" or (operator == "%" and isinstance(left, str)):
            operands = tuple(right.values()) if isinstance(right, Mapping) else right
            _check_growth((left, *operands) if isinstance(operands, tuple) else (left, operands))
        return self._charged(super().call_binop(context, operator, left, right))

    def _charged(self, value: Any) -> Any:
        self._account.charge(len(value) if isinstance(value, str | bytes | list | tuple | dict) else 0)
        return value

    def _written(self, value: Any) -> Any:
        self._account.charge(_measure(value))
        return value

    def _concatenate(self, values: list[Any]) -> str:
        self._account.charge(_measure(values))
        return "".join(map(str, values))

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        _Metering().visit(tree)
        tree.set_environment(self)
        return tree


class _Metering(jinja2.visitor.NodeTransformer):
    """Charges each turn of a loop and each call of a macro, and makes ``~`` a filter that can be charged."""

    def visit(self, node: Any, *arguments: Any, **named: Any) -> Any:
        """The node with its parts metered, or what takes its place."""
        self.generic_visit(node)
        line = {"lineno": node.lineno}
        if isinstance(node, jinja2.nodes.Concat):
            values = jinja2.nodes.List(node.nodes, **line)
            return jinja2.nodes.Filter(values, _CONCATENATE, [], [], None, None, **line)
        if isinstance(node, jinja2.nodes.For | jinja2.nodes.Macro | jinja2.nodes.CallBlock):
            size = sum(len(data.data) for data in node.find_all(jinja2.nodes.TemplateData))
            amount = jinja2.nodes.Const(size, **line)
            tick = jinja2.nodes.Filter(amount, _TICK, [], [], None, None, **line)
            node.body.insert(0, jinja2.nodes.ExprStmt(tick, **line))
        return node
