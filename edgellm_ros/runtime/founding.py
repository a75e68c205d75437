"""The sequences that open a batch: all are seated, or none, and then their prompts run one after the other."""

from __future__ import annotations

import time

from ..errors import MisuseError
from .admission import Admission
from .generation import GenerationContext
from .hidden_states import EMBEDDINGS_LAYER, HiddenStates
from .request import LLMGenerationRequest
from .token_pruning import unpruned


def seat_founders(
    context: GenerationContext,
    admission: Admission,
    request: LLMGenerationRequest,
    founder_request_id: int,
    queued: float,
) -> None:
    """Check every sequence of a request, then give each a row and its channel.

    :raises RequestError: one of them cannot be served.
    :raises MisuseError: ``founder_request_id`` with more than one sequence.
    """
    count = len(request.requests)
    if founder_request_id and count != 1:
        raise MisuseError(f"founder_request_id is given with {count} sequences; want one.")
    seeds = [admission.make_checked_seed(request, index, index, queued) for index in range(max(1, count))]
    if request.save_system_prompt_kv_cache:
        admission.reuse.save_system_prompts(seeds, add_special_tokens=not request.apply_chat_template)
    sequences = [admission.new_sequence(seed, founder_request_id or seed.original_index + 1) for seed in seeds]
    for row, sequence in enumerate(sequences):
        admission.seat(sequence, row)
    context.sequences.extend(sequences)
    for sequence in sequences:
        sequence.attach()


def prefill_founders(
    context: GenerationContext, admission: Admission, hidden_states: HiddenStates, layer: int | None = None
) -> None:
    """Run the prompts; the first token of each waits in ``Sequence.first``.

    With a ``layer``, its hidden states and the input embeddings are kept.

    :raises RankLostError: a rank is gone.
    """
    if layer is not None:
        prompts = [sequence.seed.prompt_ids for sequence in context.sequences]
        hidden_states.expect((EMBEDDINGS_LAYER, layer), prompts)
        for sequence in context.sequences:
            sequence.prompt_begun = True  # what is reused or pruned would have no states
            sequence.pruning = unpruned(sequence.seed)
    now = time.monotonic()
    for sequence in context.sequences:
        sequence.start(now, 0)
    for row, sequence in enumerate(context.sequences):
        admission.reuse.keep_prompts(context)  # for this one; the last prompt waits until its token is delivered
        if not admission.begin(sequence, row):
            continue
        while not sequence.finished and sequence.first is None:
            if context.token_broadcast is None:  # several ranks decide together, in prime_from_prefill
                sequence.check_interrupts(time.monotonic())
            if not sequence.finished:
                cached = sequence.committed_length
                sequence.first = admission.prefill_chunk(context, sequence, row)
                count = sequence.committed_length - cached
                for kept in hidden_states.layers if count else ():
                    hidden_states.add(kept, row, admission.executor.hidden_states(kept, count))
