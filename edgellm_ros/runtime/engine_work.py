"""The frame around engine work: whoever watches it is told, and whatever goes wrong in it is a BackendError."""

from __future__ import annotations

from typing import Protocol

from ..errors import BackendError, EdgeLLMError


class StepObserver(Protocol):
    """Told when the engine starts to work and when it is done; ``step_ended`` may raise to abandon the step."""

    def step_started(self) -> None:
        """The engine starts to work."""
        ...

    def step_ended(self) -> None:
        """It is done.

        :raises StepTimeoutError: it took too long, and what it was for has been ended meanwhile.
        """
        ...


class EngineWork:
    """Tells the observer about engine work, and turns whatever goes wrong in it into a BackendError."""

    __slots__ = ("_observer",)

    def __init__(self, observer: StepObserver | None) -> None:
        self._observer = observer

    def __enter__(self) -> None:
        if self._observer is not None:
            self._observer.step_started()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._observer is not None:
            self._observer.step_ended()
        if isinstance(error, Exception) and not isinstance(error, EdgeLLMError):
            raise BackendError(f"the engine failed: {type(error).__name__}: {error}") from error
