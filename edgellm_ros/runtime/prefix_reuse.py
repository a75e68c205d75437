"""When a sequence takes part in reuse: before its prompt is run, once it has run, and when it leaves its row."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Items

from ..errors import BackendError, Refusal, RefusalCode, RequestError
from .boundary import SlotSeed
from .context_cache import ContextCache
from .generation import GenerationContext
from .request import FinishReason, LLMGenerationRequest
from .sequence import Sequence
from .system_prompt import SystemPromptStore

_LOG = logging.getLogger(__name__)
_ENDED_BY_ITSELF = (FinishReason.END_ID, FinishReason.LENGTH, FinishReason.STOP_WORDS)


class PrefixReuse:
    """Belongs to the thread that drives the runtime. Either the context cache reuses prefixes, or the older store of
    system prompts does.
    """

    def __init__(self, context_cache: ContextCache | None, system_prompts: SystemPromptStore) -> None:
        self.context_cache = context_cache
        self.system_prompts = system_prompts

    def check(self, request: LLMGenerationRequest, *, several_ranks: bool = False) -> None:
        """:raises RequestError: the request wants what does not go with the context cache, or that is poisoned."""
        cache = self.context_cache
        if cache is None:
            return
        if cache.refusal is not None:
            raise RequestError(cache.refusal.message, cache.refusal.code)
        if request.save_system_prompt_kv_cache:
            raise RequestError(
                "save_system_prompt_kv_cache is set and the context cache is on, which reuses system prompts by "
                "itself; leave it off.",
                RefusalCode.UNSUPPORTED,
            )
        if several_ranks:
            raise RequestError(
                "token_broadcast is given and the context cache is on; it serves one rank: switch it off.",
                RefusalCode.UNSUPPORTED,
            )

    def save_system_prompt(self, prompt: str, adapter: str = "") -> Refusal | None:
        """Keep a system prompt by name, see ``LLMRankRuntime``; why not, where it cannot be kept.

        :raises BackendError: the engine failed.
        """
        store = self.system_prompts
        if not prompt:
            return None
        if self.context_cache is not None:
            sentence = "the context cache is on and reuses system prompts by itself; switch it off to keep them."
            return Refusal(RefusalCode.UNSUPPORTED, sentence)
        try:
            store.adapters.check(adapter)
        except RequestError as error:
            return error.refusal
        # Without a template a prompt begins with the tokens that begin any text.
        if store.save(prompt, adapter, add_special_tokens=store.tokenizer.chat_template is None):
            return None
        sentence = f"the system prompt has no tokens or more than max_input_len {store.max_tokens}; change it."
        return Refusal(RefusalCode.INPUT_TOO_LONG, sentence)

    def save_system_prompts(self, seeds: Items[SlotSeed], *, add_special_tokens: bool) -> None:
        """Keep the system prompt of each of these, before they have rows; what cannot be kept is computed as always."""
        for seed in seeds:
            try:
                saved = self.system_prompts.save(
                    seed.system_prompt, seed.lora_weights_name, add_special_tokens=add_special_tokens
                )
            except BackendError as error:
                _LOG.warning("a system prompt could not be kept: %s", error)
            else:
                if not saved:
                    _LOG.warning("a system prompt has no tokens, or too many to be kept.")

    def begin(self, sequence: Sequence, row: int) -> bool:
        """Called before the first chunk of a prompt, once: its row then holds what is known of it.

        False where the sequence has ended instead, since the cache is not safe to use any more.
        """
        if sequence.prompt_begun:
            return True
        sequence.prompt_begun = True
        seed = sequence.running_seed
        try:
            if self.context_cache is not None:
                sequence.reused_length = self.context_cache.reuse(seed.prompt_ids, row, seed.cache)
            else:
                sequence.reused_length = self.system_prompts.reuse(seed, row)
        except BackendError as error:
            sequence.fail(error.refusal)
            return False
        sequence.committed_length = sequence.reused_length
        return True

    def keep_prompts(self, context: GenerationContext) -> None:
        """Called between steps: prompts that have run are known to all sequences from now on."""
        if self.context_cache is None:
            return
        for row, sequence in enumerate(context.sequences):
            if not sequence.prompt_kept and sequence.prefilled:
                self._keep_prompt(sequence, row, self.context_cache)

    def _keep_prompt(self, sequence: Sequence, row: int, cache: ContextCache) -> None:
        first, seed = sequence.first, sequence.running_seed
        if sequence.generate_length or (first is not None and not first.not_finite):
            sequence.prompt_kept = True
            cache.publish(seed.prompt_ids, seed.cache.prompt_limit(sequence.prompt_length), row, seed.cache)

    def keep_sequence(self, sequence: Sequence, row: int) -> None:
        """Called when an ended sequence leaves its row: its history is known from now on, if it ended by itself."""
        cache, policy = self.context_cache, sequence.running_seed.cache
        if cache is None:
            return
        if sequence.finish_reason in _ENDED_BY_ITSELF:
            limit = policy.committed_limit(sequence.prompt_length, sequence.committed_length)
            cache.publish(sequence.token_ids, limit, row, policy)
        elif sequence.finish_reason is FinishReason.ERROR and sequence.reused_length and not sequence.generate_length:
            # Not one token after a prefix that was not computed: it may be the cause.
            cache.forget(sequence.running_seed.prompt_ids, sequence.reused_length, policy)
