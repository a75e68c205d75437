"""A tokenizer is read before it is carried along: an engine directory without a sound one answers nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..engine_format import CHAT_TEMPLATE_FILE, TOKENIZER_FILE
from ..errors import CheckpointError
from ..tokenizer_failures import tokenizer_failures

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def read_tokenizer(files: Mapping[str, bytes]) -> Tokenizer:
    """The tokenizer among the files of a checkpoint.

    :raises CheckpointError: it cannot be loaded.
    """
    from tokenizers import Tokenizer

    with tokenizer_failures(CheckpointError, "is no tokenizer that can be loaded", "fetch it again"):
        return Tokenizer.from_str(files[TOKENIZER_FILE].decode())


def check_tokenizer_files(files: Mapping[str, bytes]) -> None:
    """:raises CheckpointError: a tokenizer that cannot be loaded, or a chat template that is no text."""
    if TOKENIZER_FILE in files:
        read_tokenizer(files)
    try:
        files.get(CHAT_TEMPLATE_FILE, b"").decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{CHAT_TEMPLATE_FILE} is not UTF-8 text ({error}); fetch it again.") from None
