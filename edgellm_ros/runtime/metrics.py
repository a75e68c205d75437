"""Counters of a runtime; a sequence is counted when it leaves its row, whoever takes its result."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LLMPrefillMetrics:
    """Of prompts. ``seconds`` is time in engine calls of prompt chunks."""

    total_runs: int = 0  # sequences whose prompt was run
    reused_tokens: int = 0
    computed_tokens: int = 0
    pruned_tokens: int = 0
    seconds: float = 0.0

    def record(self, reused: int, computed: int, pruned: int = 0) -> None:
        """One sequence: prompt tokens that were known, computed, left out; none known or computed is no run."""
        self.total_runs += bool(reused or computed)
        self.reused_tokens += reused
        self.computed_tokens += computed
        self.pruned_tokens += pruned

    @property
    def tokens_per_second(self) -> float:
        """Prompt tokens per second of prefill; 0 before any."""
        return self.computed_tokens / self.seconds if self.seconds else 0.0


@dataclass
class LLMGenerationMetrics:
    """Of generated tokens, the one that prefill samples included. ``seconds`` is time in decode steps."""

    total_runs: int = 0  # sequences
    generated_tokens: int = 0
    steps: int = 0  # decode steps of the batch
    seconds: float = 0.0

    def record(self, generated: int) -> None:
        """One sequence that generated so many tokens."""
        self.total_runs += 1
        self.generated_tokens += generated


@dataclass
class SpecDecodeGenerationMetrics:
    """Of sequences that a draft helped."""

    total_iterations: int = 0  # rounds of propose and verify
    total_generated_tokens: int = 0
    total_accepted_draft_tokens: int = 0
    total_proposed_draft_tokens: int = 0

    @property
    def acceptance_length(self) -> float:
        """Tokens gained in a round; 0 before any."""
        return self.total_generated_tokens / self.total_iterations if self.total_iterations else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Share of the proposed tokens that were taken; 0 before any."""
        proposed = self.total_proposed_draft_tokens
        return self.total_accepted_draft_tokens / proposed if proposed else 0.0


@dataclass
class MultimodalMetrics:
    """Of images and sounds that requests brought."""

    total_images: int = 0
    total_image_tokens: int = 0
    pruned_image_tokens: int = 0  # of them, those that were left out of their prompts
    total_audios: int = 0
    total_audio_tokens: int = 0


@dataclass
class RequestEngineMetrics:
    """Of a scheduler. A stall counts once per step of the running batch that the first in the queue has to wait."""

    submitted: int = 0
    refused: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    step_timeouts: int = 0
    admitted_mid_flight: int = 0
    stalls_incompatible: int = 0
    stalls_no_capacity: int = 0
    queue_latency_count: int = 0
    queue_latency_total: float = 0.0  # s
    queue_latency_max: float = 0.0  # s

    def record_queue_latency(self, seconds: float) -> None:
        """Time between submission and the start of work."""
        self.queue_latency_count += 1
        self.queue_latency_total += seconds
        self.queue_latency_max = max(self.queue_latency_max, seconds)
