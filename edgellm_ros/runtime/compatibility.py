"""Which requests may share a running batch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ..errors import EdgeLLMError, RefusalCode
from ..json_values import shown
from .request import LLMGenerationRequest

_FIELDS = frozenset(field.name for field in dataclasses.fields(LLMGenerationRequest))


@dataclass(frozen=True)
class BatchCompatibility:
    """A policy for a scheduler: what an arriving request must have in common with the one that opened the batch.

    ``must_agree`` names fields of ``LLMGenerationRequest`` whose values must be equal; ``must_be_unset`` those that
    neither of the two may set, because they concern a batch as a whole. Sampling parameters, seeds, budgets, adapters,
    stops and log probabilities are each sequence's own, so by default nothing needs to agree.

    :raises EdgeLLMError: a name that is no field.
    """

    must_agree: tuple[str, ...] = ()
    must_be_unset: tuple[str, ...] = ("save_system_prompt_kv_cache",)

    def __post_init__(self) -> None:
        for name in (*self.must_agree, *self.must_be_unset):
            if name not in _FIELDS:
                raise EdgeLLMError(
                    f"{shown(name)} is no field of a request; want some of {', '.join(sorted(_FIELDS))}.",
                    RefusalCode.BAD_PARAMETER,
                )

    def allows(self, founder: LLMGenerationRequest, arriving: LLMGenerationRequest) -> bool:
        """Whether ``arriving`` may join the batch that ``founder`` opened."""
        return not any(getattr(founder, name) or getattr(arriving, name) for name in self.must_be_unset) and all(
            getattr(founder, name) == getattr(arriving, name) for name in self.must_agree
        )
