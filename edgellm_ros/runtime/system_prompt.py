"""The older way of reuse: system prompts that were run once by name, and are kept until the runtime ends."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from ..backends.base import SamplingRow
from ..errors import BackendError
from .block_store import BLOCK_TOKENS
from .boundary import SlotSeed
from .executor import ModelExecutor
from .lora import Adapters
from .tokenizer import Tokenizer

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavedPrompt:
    """Ids of a system prompt, and copies of what a row held of them, in pieces."""

    token_ids: tuple[int, ...]
    pieces: tuple[Any, ...]


class SystemPromptStore:
    """Belongs to the thread that drives the runtime. Entries go by exact text and adapter, and none is ever dropped."""

    def __init__(self, executor: ModelExecutor, tokenizer: Tokenizer, adapters: Adapters) -> None:
        self._executor = executor
        self.adapters = adapters
        self.tokenizer = tokenizer
        self._saved: dict[tuple[str, str, int], SavedPrompt] = {}

    def __len__(self) -> int:
        return len(self._saved)

    @property
    def max_tokens(self) -> int:
        """The longest system prompt that can be kept."""
        return self._executor.limits.max_input_len

    def save(self, prompt: str, adapter: str = "", *, add_special_tokens: bool = False) -> bool:
        """Run a prompt in row 0, which must be free, and keep what comes of it; True where it is kept (already).

        ``add_special_tokens``: as the requests will be tokenised, for only equal ids are reused. An empty prompt needs
        nothing. False where it has no ids, or more than the engine takes.

        :raises BackendError: the engine or the copy failed.
        """
        key = (prompt, adapter, self.adapters.generation(adapter))
        if not prompt or key in self._saved:
            return True
        ids = tuple(self.tokenizer.encode(prompt, add_special_tokens=add_special_tokens))
        executor = self._executor
        if not ids or len(ids) > self.max_tokens:
            return False
        executor.start_row(0, SamplingRow(), ids)
        self.adapters.seat(adapter, 0)
        try:
            done = 0
            while done < len(ids):
                done, _ = executor.prefill(0, ids, done)
        finally:
            self.adapters.release(adapter)
        try:
            pieces = [
                executor.cache.export_block(0, start, min(BLOCK_TOKENS, len(ids) - start))
                for start in range(0, len(ids), BLOCK_TOKENS)
            ]
        except Exception as error:
            raise BackendError(f"a system prompt could not be copied: {type(error).__name__}: {error}") from error
        self._saved[key] = SavedPrompt(ids, tuple(pieces))
        return True

    def reuse(self, seed: SlotSeed, row: int) -> int:
        """Copy the system prompt of a sequence into its row; how many positions need not be computed, all but its last.

        0 where it is not kept, or where the prompt does not go on after it with equal ids.

        :raises BackendError: the copy failed.
        """
        scope = seed.cache.scope
        saved = self._saved.get((seed.system_prompt, scope.adapter, scope.adapter_generation)) if self._saved else None
        if saved is None:
            return 0
        count = len(saved.token_ids)
        if seed.prompt_ids[:count] != saved.token_ids or len(seed.prompt_ids) <= count:
            _LOG.warning(
                "a saved system prompt of %d tokens is not how the prompt begins, though its text is; all of it is "
                "computed.",
                count,
            )
            return 0
        try:
            for index, piece in enumerate(saved.pieces):
                self._executor.cache.import_block(row, index * BLOCK_TOKENS, piece)
        except Exception as error:
            raise BackendError(f"a saved system prompt could not be copied: {type(error).__name__}: {error}") from error
        return count - 1  # what follows may have merged with the last one, and a prompt needs one token to run
