"""Rows of a running batch: dense, those that decode first, then those whose prompt still runs, in order of arrival."""

from __future__ import annotations

from .admission import Admission
from .generation import GenerationContext


def evict_finished(context: GenerationContext, admission: Admission) -> None:
    """File the rows that have ended and close the holes: the last decoding row, then the waiting rows in order."""
    sequences = context.sequences
    for row in range(len(sequences) - 1, -1, -1):
        sequence = sequences[row]
        if not sequence.finished:
            continue
        decoding = context.decoding_count
        admission.reuse.keep_sequence(sequence, row)
        result = sequence.result(context.generation_round)
        admission.record(result)
        admission.adapters.release(sequence.seed.lora_weights_name)
        context.completed[result.original_index] = result
        hole = row
        if sequence in context.prefilling:
            context.prefilling.remove(sequence)
        elif row < decoding:
            hole = decoding - 1
            _move(context, admission, hole, row)
        for source in range(hole + 1, len(sequences)):
            _move(context, admission, source, source - 1)
        sequences.pop()


def _move(context: GenerationContext, admission: Admission, source: int, destination: int) -> None:
    if source == destination:
        return
    sequence = context.sequences[source]
    admission.executor.move_row(source, destination, sequence.committed_length)
    context.sequences[destination] = sequence
