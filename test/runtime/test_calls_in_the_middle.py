"""Calls that come when they should not: in the middle of a step, from other threads, in a forked process."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from runtime_helpers import WAIT, answer, drain, fake_runtime, item, outcome, request

from edgellm_ros.backends.fake import FakeScript, Fault
from edgellm_ros.errors import MisuseError, RefusalCode
from edgellm_ros.runtime import generation, rank_upkeep
from edgellm_ros.runtime.request import FinishReason, LLMGenerationResponse
from edgellm_ros.runtime.scheduler import RequestEngine
from edgellm_ros.runtime.session import GenerationSession
from edgellm_ros.runtime.streaming import StreamChannel

SCRIPT = FakeScript(answers=["abcdefgh"])
SLOW = FakeScript(answers=["abcdefghijklmnopqrstuvwxyz"], step_latency=0.01)


@pytest.fixture
def runtime(tmp_path):
    with fake_runtime(tmp_path / "engine", SCRIPT) as made:
        yield made


CALLS = {
    "advance": lambda runtime, generation, session: session.advance(),
    "prime": lambda runtime, generation, session: session.prime_from_prefill(),
    "admit": lambda runtime, generation, session: session.admit_request(runtime.prepare(request("x")), 7, 70),
    "finish": lambda runtime, generation, session: runtime.rank.finish_generation(
        generation, request("x"), LLMGenerationResponse()
    ),
    "warm up": lambda runtime, generation, session: runtime.warm_up(),
    "record": lambda runtime, generation, session: runtime.rank.capture_decoding_cuda_graph(),
    "save": lambda runtime, generation, session: runtime.rank.gen_and_save_system_prompt_kv_cache("x"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("step", [0, 3], ids=["priming", "decoding"])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["callback", "thread"])
def test_a_call_in_the_middle_of_a_step_is_misuse_and_changes_nothing(runtime, call, step, elsewhere):
    """The rows behind the one whose callback calls have not got their tokens yet."""
    caught: list[BaseException | None] = []

    def calling() -> None:
        try:
            CALLS[call](runtime, opened, session)
            caught.append(None)
        except MisuseError as error:
            caught.append(error)

    def on_token(token: int, index: int, number: int, finished: bool) -> None:
        if index == 0 and number == step and not caught:
            if elsewhere:
                thread = threading.Thread(target=calling)
                thread.start()
                thread.join(WAIT)
            else:
                calling()

    response = LLMGenerationResponse()
    prepared = runtime.prepare(request(item("a"), item("b"), on_token_generated=on_token))
    opened = runtime.rank.begin_generation(prepared, response)
    session = GenerationSession(runtime.rank, opened)
    session.prime_from_prefill()
    while not session.finished():
        session.advance()
    assert runtime.rank.finish_generation(opened, prepared, response)
    assert [type(error) for error in caught] == [MisuseError] and "middle of a step" in str(caught[0])
    assert response.output_texts == ["abcdefgh"] * 2
    assert answer(runtime, request("hi")).output_texts == ["abcdefgh"]


def test_a_second_request_from_a_callback_is_refused(runtime):
    refused = []

    def on_token(*token: object) -> None:
        assert not runtime.handle_request(request("x"), LLMGenerationResponse())
        refused.append(runtime.last_refusal.code)

    assert answer(runtime, request("hi", on_token_generated=on_token)).output_texts == ["abcdefgh"]
    assert set(refused) == {RefusalCode.OVERLAP}


@pytest.mark.parametrize("where", ["hook", "callback"])
def test_closing_from_within_ends_the_request(tmp_path, where):
    closed = fake_runtime(tmp_path / "engine", SCRIPT)
    channel = StreamChannel()
    on_token = (lambda *token: closed.close()) if where == "callback" else None
    hook = (lambda boundary: closed.close()) if where == "hook" else None
    with pytest.raises(MisuseError, match="closed"):
        closed.handle_request(
            request("hi", channels=[channel], on_token_generated=on_token), LLMGenerationResponse(), boundary_hook=hook
        )
    chunks = drain(channel)
    assert [chunk.finished for chunk in chunks].count(True) == 1 and chunks[-1].finished


class Working(threading.Thread):
    """Asks on a thread of its own, until it ends or is told off."""

    def __init__(self, runtime, asked):
        super().__init__()
        self.runtime, self.asked, self.response = runtime, asked, LLMGenerationResponse()
        self.error: BaseException | None = None
        self.start()

    def run(self):
        try:
            self.runtime.handle_request(self.asked, self.response)
        except MisuseError as error:
            self.error = error

    def end(self):
        self.join(WAIT)
        assert not self.is_alive()


def test_closing_from_another_thread_waits_for_the_step(tmp_path, monkeypatch):
    """What a step still uses is not freed under it."""
    closed = fake_runtime(tmp_path / "engine", SLOW)
    inside = []
    run, close = closed.rank.executor.engine.run, closed.rank.executor.engine.close

    def running(*arguments):
        inside.append(1)
        run(*arguments)
        inside.pop()

    freed = []
    monkeypatch.setattr(closed.rank.executor.engine, "run", running)
    monkeypatch.setattr(closed.rank.executor.engine, "close", lambda: freed.append(len(inside)) or close())
    channel = StreamChannel()
    working = Working(closed, request("hi", channels=[channel]))
    assert channel.wait_pop(WAIT) is not None
    closed.close()
    working.end()
    assert freed == [0]
    assert working.error is not None or working.response.finish_reasons == [FinishReason.ERROR]
    assert drain(channel)[-1].finish_reason is FinishReason.ERROR


def test_closing_waits_for_a_call_that_begins_right_behind_the_step(tmp_path, monkeypatch):
    closed = fake_runtime(tmp_path / "engine", SLOW)
    freed, held, abort = [], threading.Event(), closed.rank._abort
    close = closed.rank.executor.engine.close
    monkeypatch.setattr(closed.rank.executor.engine, "close", lambda: freed.append(1) or close())
    channel = StreamChannel()
    working = Working(closed, request("hi", channels=[channel]))
    assert channel.wait_pop(WAIT) is not None

    def late():
        with closed.rank._driving:
            held.set()
            time.sleep(0.1)

    def aborting():
        abort()
        if not held.is_set():
            working.end()
            threading.Thread(target=late).start()
            assert held.wait(WAIT)

    monkeypatch.setattr(closed.rank, "_abort", aborting)
    closed.close()
    assert freed == [1]


def test_an_engine_that_does_not_come_back_is_not_freed_and_its_consumer_told(tmp_path, monkeypatch):
    for module in (generation, rank_upkeep):
        monkeypatch.setattr(module, "LONGEST_STEP", 0.05)
    closed = fake_runtime(tmp_path / "engine", FakeScript(answers=["abcdef"], fault=Fault.HANG, fault_step=2))
    freed = []
    monkeypatch.setattr(closed.rank.executor, "close", lambda: freed.append(1))
    channel = StreamChannel()
    working = Working(closed, request("hi", channels=[channel]))
    try:
        assert closed.rank.backend.hanging.wait(WAIT)
        closed.close()
        chunks = drain(channel)
        assert chunks[-1].finish_reason is FinishReason.ERROR and "".join(chunk.text for chunk in chunks) == "ab"
        assert working.is_alive() and not freed
    finally:
        closed.rank.backend.release()
        working.end()
    assert isinstance(working.error, MisuseError) and drain(channel) == []
    assert closed.rank.open_context is None  # the one that was in the step let go of the rest


def test_a_scheduler_outlives_the_end_of_its_runtime(tmp_path):
    closed = fake_runtime(tmp_path / "engine", SLOW)
    engine = RequestEngine(closed)
    handles = [engine.submit(request("hi")) for _ in range(3)]
    closed.close()
    for handle in [*handles, engine.submit(request("late"))]:
        assert handle.get(WAIT).finish_reasons == [FinishReason.ERROR] and "closed" in handle.refusal.message
    assert engine.shutdown(timeout=WAIT)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python itself, where there are threads
def test_the_copy_in_a_forked_process_says_what_it_is(runtime):
    """An engine's threads are not forked with it: a step there might never end."""
    assert outcome(answer(runtime, request("hi")))[1] == "abcdefgh"
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(int(WAIT))  # a child that waits for ever would keep its parent waiting
        try:
            runtime.handle_request(request("hi"), LLMGenerationResponse())
            said = "answered"
        except MisuseError as error:
            said = str(error)
        os.write(writer, said.encode())
        runtime.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    said = os.read(reader, 4096).decode()
    assert f"process {os.getpid()}" in said and f"process {child}" in said and "fork" in said
    os.close(reader)
    os.close(writer)
    assert answer(runtime, request("hi")).output_texts == ["abcdefgh"]
