"""Failures of the package ``tokenizers`` as errors of this one: they share no base, and some are no ``Exception``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .engine_format import TOKENIZER_FILE
from .errors import EdgeLLMError

_PANIC = "PanicException"  # of a library in Rust; a BaseException that no module exports


@contextmanager
def tokenizer_failures(kind: type[EdgeLLMError], found: str, advice: str) -> Iterator[None]:
    """Turn whatever the block's calls into ``tokenizers`` raise into one sentence.

    :raises EdgeLLMError: of the ``kind`` given: what was ``found`` of the file, the library's words, and ``advice``.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        raise kind(f"{TOKENIZER_FILE} {found} ({str(error).strip()}); {advice}.") from None
