"""A tokenizer is read before it is carried along: an engine directory without a sound one answers nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..chat_template import ChatTemplate
from ..engine_format import TOKENIZER_FILE
from ..errors import CheckpointError, EngineDirectoryError
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
    """:raises CheckpointError: a tokenizer that cannot be loaded."""
    if TOKENIZER_FILE in files:
        read_tokenizer(files)


def check_chat_template(content: bytes, place: str) -> bytes:
    """The content; ``place`` says in which file of the checkpoint it stands.

    :raises CheckpointError: it is no text, or not what a runtime would load.
    """
    try:
        ChatTemplate(content.decode())
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{place} is not UTF-8 text ({error}); fetch it again.") from None
    except EngineDirectoryError as error:
        raise CheckpointError(f"{place}: {error}") from None
    return content
