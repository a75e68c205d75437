"""Random lives of a context cache beside a plain model: shared prefixes, small budgets, failing copies, poison."""

from __future__ import annotations

from cache_model import Faults, Model, audit, fill, make_cache, reuse_and_fill
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edgellm_ros.errors import BackendError
from edgellm_ros.runtime.block_store import BLOCK_TOKENS
from edgellm_ros.runtime.cache_policy import CachePolicy
from edgellm_ros.runtime.context_cache import REPLAYED_TOKENS

PLAIN = CachePolicy()
# Few different blocks, so that prompts share prefixes; some end inside a block.
PROMPTS = st.tuples(st.lists(st.integers(0, 2), min_size=0, max_size=6), st.integers(1, BLOCK_TOKENS)).map(
    lambda parts: [value for block in parts[0] for value in (block, *range(15))] + list(range(parts[1]))
)


class ContextCacheMachine(RuleBasedStateMachine):
    @initialize(blocks=st.integers(0, 9))
    def start(self, blocks):
        self.faults = Faults()
        self.cache = make_cache(blocks, self.faults)
        self.model = Model(blocks)
        self.poisoned = False

    @precondition(lambda self: not self.poisoned)
    @rule(
        prompt=PROMPTS, row=st.integers(0, 3), generated=st.integers(0, 40), ends=st.sampled_from(["well", "cancelled"])
    )
    def a_sequence_runs(self, prompt, row, generated, ends):
        matched = len(self.model.find(prompt, len(prompt))) * BLOCK_TOKENS
        assert reuse_and_fill(self.cache, row, prompt) == max(0, min(matched, len(prompt) - REPLAYED_TOKENS))
        assert self.cache.publish(prompt, len(prompt), row, PLAIN) == self.model.publish(prompt, len(prompt))
        history = prompt + [index % 3 for index in range(generated)]
        fill(self.cache, row, history, len(prompt))
        if ends == "well":
            assert self.cache.publish(history, len(history), row, PLAIN) == self.model.publish(history, len(history))

    @precondition(lambda self: not self.poisoned)
    @rule(prompt=PROMPTS, at=st.integers(0, 5))
    def a_copy_into_a_row_fails(self, prompt, at):
        chain = self.model.find(prompt, len(prompt))
        self.faults.at = self.faults.imports + at
        reused = reuse_and_fill(self.cache, 0, prompt)
        self.faults.at = -1
        copied = -(-max(0, min(len(chain) * BLOCK_TOKENS, len(prompt) - REPLAYED_TOKENS)) // BLOCK_TOKENS)
        if at < copied:
            assert reused == 0
            self.model.drop(chain[at])

    @precondition(lambda self: not self.poisoned)
    @rule(prompt=PROMPTS, at=st.integers(0, 5))
    def a_copy_out_of_a_row_fails(self, prompt, at):
        fill(self.cache, 0, prompt)
        known = len(self.model.find(prompt, len(prompt)))
        self.faults.export_at = self.faults.exports + at
        reached = self.cache.publish(prompt, len(prompt), 0, PLAIN)
        self.faults.export_at = -1
        planned = self.model.publish(prompt, len(prompt)) // BLOCK_TOKENS
        if known + at < planned:
            assert reached == (known + at) * BLOCK_TOKENS
            self.model.drop(tuple(prompt[: (known + at + 1) * BLOCK_TOKENS]))

    @precondition(lambda self: not self.poisoned and self.model.known)
    @rule(data=st.data())
    def a_prefix_is_forgotten(self, data):
        prefix = data.draw(st.sampled_from(self.model.known))
        self.cache.forget(prefix, len(prefix), PLAIN)
        self.model.drop(prefix[:BLOCK_TOKENS])

    @precondition(lambda self: not self.poisoned and self.model.known)
    @rule(data=st.data())
    def the_device_is_lost(self, data):
        prefix = [*data.draw(st.sampled_from(self.model.known)), *range(REPLAYED_TOKENS)]
        self.faults.at, self.faults.restless = self.faults.imports, True
        try:
            self.cache.reuse(prefix, 0, PLAIN)
            raise AssertionError("want the cache poisoned")
        except BackendError:
            self.poisoned = True

    @precondition(lambda self: self.poisoned)
    @rule(prompt=PROMPTS)
    def nothing_is_served_from_a_poisoned_cache(self, prompt):
        assert self.cache.publish(prompt, len(prompt), 0, PLAIN) == 0
        try:
            self.cache.reuse(prompt, 0, PLAIN)
            raise AssertionError("want a refusal")
        except BackendError:
            pass

    @invariant()
    def the_books_are_right(self):
        if hasattr(self, "cache"):
            audit(self.cache)
            assert len(self.cache.store) == len(self.model.known) or self.poisoned


TestContextCacheMachine = ContextCacheMachine.TestCase
TestContextCacheMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
