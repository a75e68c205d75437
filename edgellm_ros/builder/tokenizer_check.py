"""A tokenizer is read before it is carried along: an engine directory without a sound one answers nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..engine_format import CHAT_TEMPLATE_FILE, TOKENIZER_FILE
from ..errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def read_tokenizer(files: Mapping[str, bytes]) -> Tokenizer:
    """The tokenizer among the files of a checkpoint.

    :raises CheckpointError: it cannot be loaded.
    """
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(files[TOKENIZER_FILE].decode())
    except Exception as error:  # the exceptions of tokenizers share no base but this
        raise CheckpointError(
            f"{TOKENIZER_FILE} is no tokenizer that can be loaded ({str(error).strip()}); fetch it again."
        ) from None


def check_tokenizer_files(files: Mapping[str, bytes]) -> None:
    """:raises CheckpointError: a tokenizer that cannot be loaded, or a chat template that is no text."""
    if TOKENIZER_FILE in files:
        read_tokenizer(files)
    try:
        files.get(CHAT_TEMPLATE_FILE, b"").decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{CHAT_TEMPLATE_FILE} is not UTF-8 text ({error}); fetch it again.") from None
