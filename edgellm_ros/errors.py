"""Every way this package says no: one enumeration of codes and one small exception hierarchy.

A message is one sentence: what was found, what was wanted, what to do. Codes are used alike in exceptions, in
``last_refusal``, in reports, in diagnostics and in tests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

_LONGEST = 1200  # characters of a message; no sentence of this package has as many without what it quotes
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


class RefusalCode(str, Enum):
    """Why a request, an engine directory, a checkpoint or a setting was refused."""

    OVERLAP = "overlap"  # another request is open on this runtime
    UNPREPARED = "unprepared"  # the request was not tokenised before it reached a rank runtime
    BAD_REQUEST = "bad_request"  # a field of the request is of the wrong type or out of range
    EMPTY_PROMPT = "empty_prompt"  # blank text, or nothing left after tokenising
    INPUT_TOO_LONG = "input_too_long"  # longer than the engine, the cache or a setting allows
    NO_ROOM = "no_room"  # the prompt fits but leaves no room to generate one token
    BATCH_TOO_LARGE = "batch_too_large"
    NO_CAPACITY = "no_capacity"  # retry when a row is free
    SPECIAL_TOKENS = "special_tokens"  # control tokens in user text where the policy is to reject them
    BAD_CHANNEL = "bad_channel"  # a stream channel is finished, attached already, or their number is wrong
    BAD_GUIDE = "bad_guide"  # a guide that does not compile, or cannot go on
    UNKNOWN_ADAPTER = "unknown_adapter"
    UNSUPPORTED = "unsupported"  # this engine or build cannot do what was asked
    QUEUE_FULL = "queue_full"
    BUSY = "busy"
    SHUTTING_DOWN = "shutting_down"
    NOT_ACTIVE = "not_active"  # the node is not in its active state
    DISABLED = "disabled"  # paused through ~/enable
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"  # a newer request took its place
    DEADLINE = "deadline"  # the request ran out of its time
    STEP_TIMEOUT = "step_timeout"  # the engine did not finish one step in time
    ENGINE_FAILED = "engine_failed"  # the engine raised, or gave numbers that are not finite
    BAD_ENGINE_DIRECTORY = "bad_engine_directory"
    BAD_CHECKPOINT = "bad_checkpoint"
    BAD_PARAMETER = "bad_parameter"
    BAD_IMAGE = "bad_image"  # an encoding, a size or data that cannot be decoded
    NO_IMAGES = "no_images"  # a camera has sent nothing, nothing recent, or nothing that pairs with the others
    BAD_POLICY = "bad_policy"  # a policy manifest that is missing, incomplete or disagrees with its engine
    BAD_OBSERVATION = "bad_observation"  # a joint, camera or number that the policy needs is missing or unusable
    STALE_OBSERVATION = "stale_observation"  # older than its limit
    NOT_FINITE = "not_finite"  # an action chunk holds NaN or infinity
    LATE_CHUNK = "late_chunk"  # every action of a chunk was due before it was ready
    MISSING_PACKAGE = "missing_package"


@dataclass(frozen=True)
class Refusal:
    """A code and one sentence for a person; what ``last_refusal`` holds."""

    code: RefusalCode
    message: str

    def __str__(self) -> str:
        return f"{self.code.value}: {self.message}"


def one_sentence(message: str) -> str:
    """A message as one line that every log and terminal can carry, however long what it quotes is.

    Its end stays, for there it says what to do.
    """
    text = _UNPRINTABLE.sub(lambda found: " " if found.group() in "\n\t\r" else "\ufffd", message)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 300]} ... {text[-295:]}"


class EdgeLLMError(Exception):
    """Base of all errors of this package; ``code`` says which kind, ``str()`` is one sentence."""

    default_code = RefusalCode.BAD_REQUEST

    def __init__(self, message: str, code: RefusalCode | None = None) -> None:
        super().__init__(one_sentence(message))
        self.code = code or self.default_code

    @property
    def refusal(self) -> Refusal:
        """The same as a value."""
        return Refusal(self.code, str(self))


class RequestError(EdgeLLMError, ValueError):
    """A request that cannot be served as it is."""


class InputTooLongError(RequestError):
    """A prompt beyond a limit; its message starts with ``EDGELLM_INPUT_TOO_LONG:``."""

    default_code = RefusalCode.INPUT_TOO_LONG

    def __init__(self, message: str) -> None:
        super().__init__(f"EDGELLM_INPUT_TOO_LONG: {message}")


class SubmitError(EdgeLLMError):
    """The scheduler did not take the request (queue full, shutting down)."""

    default_code = RefusalCode.QUEUE_FULL


class EngineDirectoryError(EdgeLLMError):
    """An engine directory that fails a check."""

    default_code = RefusalCode.BAD_ENGINE_DIRECTORY


class CheckpointError(EdgeLLMError):
    """A checkpoint or build setting that the builder refuses."""

    default_code = RefusalCode.BAD_CHECKPOINT


class BackendError(EdgeLLMError):
    """The device or its engine library failed."""

    default_code = RefusalCode.ENGINE_FAILED


class StepTimeoutError(BackendError):
    """One engine step took longer than the watchdog allows."""

    default_code = RefusalCode.STEP_TIMEOUT


class PolicyError(EdgeLLMError, ValueError):
    """A policy manifest, its statistics or its engine cannot drive this robot."""

    default_code = RefusalCode.BAD_POLICY


class ObservationError(EdgeLLMError, ValueError):
    """What the robot reports cannot be given to the policy."""

    default_code = RefusalCode.BAD_OBSERVATION


class ChunkError(EdgeLLMError, ValueError):
    """An action chunk that must not move the robot."""

    default_code = RefusalCode.NOT_FINITE


class MissingPackageError(EdgeLLMError, ImportError):
    """An optional package is needed; the message says which and how to get it."""

    default_code = RefusalCode.MISSING_PACKAGE


class MisuseError(EdgeLLMError, RuntimeError):
    """The caller broke the contract of a call (a bug in the caller, not bad input)."""
