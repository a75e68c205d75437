"""The fake's own promises: scripts, byte pieces, pace, faults, and that bugs above it change what it says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from backend_driver import BackendDriver

from edgellm_ros.backends.base import SamplingRow
from edgellm_ros.backends.fake import FakeBackend, FakeMode, FakeScript, Fault, write_fake_engine_directory
from edgellm_ros.backends.fake_script import END_OF_TURN, FIRST_PIECE, START_OF_TURN
from edgellm_ros.engine_format import open_engine_directory
from edgellm_ros.errors import BackendError, EngineDirectoryError

Open = Callable[..., BackendDriver]


@pytest.fixture
def open_fake(tmp_path: Path) -> Iterator[Open]:
    drivers: list[BackendDriver] = []

    def open_it(**script: object) -> BackendDriver:
        directory = write_fake_engine_directory(tmp_path / str(len(drivers)), FakeScript(**script))  # type: ignore[arg-type]
        drivers.append(BackendDriver(FakeBackend(), directory, open_engine_directory(directory).config, chunk=256))
        return drivers[-1]

    yield open_it
    for driver in drivers:
        driver.close()


def chat(*turns: str) -> list[int]:
    """Ids of a conversation that ends where the assistant speaks; turns alternate, the user's first."""
    ids: list[int] = []
    for index, text in enumerate(turns):
        role = b"assistant" if index % 2 else b"user"
        ids += [START_OF_TURN, *role, *b"\n", *text.encode(), END_OF_TURN, *b"\n"]
    return [*ids, START_OF_TURN, *b"assistant\n"]


def say(driver: BackendDriver, prompt: list[int], parameters: SamplingRow | None = None, *, row: int = 0) -> list[int]:
    """The answer up to the end of the turn, left out."""
    parameters = parameters or SamplingRow()
    answer = [driver.start(row, prompt, parameters)]
    while answer[-1] != END_OF_TURN:
        assert len(answer) < 300
        answer += driver.advance(answer[-1:], 1, row)[0]
    return answer[:-1]


# ---- scripts


def test_scripted_answers_come_in_turn_within_a_conversation(open_fake: Open) -> None:
    driver = open_fake(answers=["one", "two"])
    assert bytes(say(driver, chat("a"))) == b"one"
    assert bytes(say(driver, chat("a", "one", "b"))) == b"two"
    assert bytes(say(driver, chat("a", "one", "b", "two", "c"))) == b"one"


def test_an_answer_may_be_cut_anywhere_and_end_inside_a_character(open_fake: Open) -> None:
    snowman = "☃".encode()
    driver = open_fake(answers=[[snowman[:2], snowman[2:] + b"x", "y", b"yz", snowman[:1]]])
    pieces = [FIRST_PIECE, FIRST_PIECE + 1, ord("y"), FIRST_PIECE + 2, snowman[0]]
    assert say(driver, chat("?")) == pieces


def test_echo_repeats_the_last_user_text_byte_by_byte(open_fake: Open) -> None:
    driver = open_fake(mode=FakeMode.ECHO)
    assert bytes(say(driver, chat("Grüße ☃"))) == "Grüße ☃".encode()
    assert bytes(say(driver, chat("first", "first", "second"))) == b"second"
    assert say(driver, chat("")) == []


def test_seeded_text_is_printable_ends_and_differs_by_prompt(open_fake: Open) -> None:
    driver = open_fake(mode=FakeMode.SEEDED)
    answers = [bytes(say(driver, chat(prompt))).decode("ascii") for prompt in ("a", "b", "c")]
    assert all(answer.isprintable() and 4 <= len(answer) <= 96 for answer in answers)
    assert len(set(answers)) == 3


def test_seeded_text_leaves_sampling_a_choice(open_fake: Open) -> None:
    driver = open_fake(mode=FakeMode.SEEDED)
    drawn = {bytes(say(driver, chat("a"), SamplingRow(temperature=1.0, seed=seed))) for seed in range(4)}
    assert len(drawn) > 1


def test_scripted_text_survives_sampling_at_temperature_one(open_fake: Open) -> None:
    driver = open_fake(answers=["steady"])
    for seed in range(4):
        assert bytes(say(driver, chat("a"), SamplingRow(temperature=1.0, seed=seed))) == b"steady"


def test_whoever_goes_on_past_the_end_hears_the_answer_again(open_fake: Open) -> None:
    driver = open_fake(answers=["ab"])
    assert driver.answer(chat("x"), 5) == [*b"ab", END_OF_TURN, *b"ab"]


@pytest.mark.parametrize(
    ("script", "wanted"),
    [({"answers": ["xyz"]}, b"xyz"), ({"mode": "echo"}, b"abc")],
    ids=["scripted", "echo"],
)
def test_ids_without_a_chat_template_are_answered_too(
    open_fake: Open, script: dict[str, object], wanted: bytes
) -> None:
    assert bytes(say(open_fake(**script), list(b"abc"))) == wanted


def test_the_directory_passes_every_check_and_its_tokenizer_is_byte_exact(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    snowman = "☃".encode()
    directory = write_fake_engine_directory(tmp_path / "fake", FakeScript(answers=[[snowman[:2], snowman[2:]]]))
    config = open_engine_directory(directory).config
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == config.vocab_size
    text = "".join(map(chr, range(0x20, 0x250))) + " ☃\n\t"
    assert tokenizer.encode(text).ids == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.encode("<|im_start|>user").ids == [START_OF_TURN, *b"user"]
    assert tokenizer.decode([FIRST_PIECE, snowman[2]]) == "☃"


def test_a_script_survives_its_file(tmp_path: Path) -> None:
    script = FakeScript(answers=["a", [b"\xff", "bc"]], mode="echo", fault="nan", fault_step=3, step_latency=0.5)  # type: ignore[arg-type]
    assert FakeScript.from_json(script.to_json()) == script


@pytest.mark.parametrize(
    "wrong",
    [
        {"answers": []}, {"answers": "text"}, {"answers": [[b""]]}, {"answers": [3]}, {"mode": "shout"},
        {"fault": "fire"}, {"step_latency": -1.0}, {"fault_step": 0.5}, {"hang_timeout": float("nan")},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_script_is_refused_with_its_field(wrong: dict[str, object]) -> None:
    with pytest.raises(EngineDirectoryError):
        FakeScript(**wrong)  # type: ignore[arg-type]
    with pytest.raises(EngineDirectoryError):
        FakeScript.from_json({"answers": [["61"]], "volume": 11})


# ---- bugs above it show


def test_a_wrong_position_is_refused(open_fake: Open) -> None:
    driver = open_fake()
    driver.start(0, chat("x"))
    driver.history[0] = driver.history[0][:-2] + [1] * 7  # claims more positions than were run
    with pytest.raises(BackendError, match="past_length"):
        driver.run([[1]])


def test_an_embedding_that_no_id_has_is_refused(open_fake: Open) -> None:
    driver = open_fake()
    driver.start(0, chat("x"))
    with pytest.raises(BackendError, match="table"):
        driver.run([[-1]])


def test_a_cache_slot_that_was_overwritten_changes_the_answer(open_fake: Open) -> None:
    driver = open_fake(mode=FakeMode.SEEDED)
    wanted = driver.answer(chat("x"), 10)
    first = driver.start(0, chat("x"))
    driver.start(1, chat("y"))
    driver.cache.import_block(0, 5, driver.cache.export_block(1, 5, 3))
    assert [first, *driver.advance([first], 9)[0]] != wanted


# ---- pace and faults


def test_latency_is_kept_per_step_and_per_prompt_token(open_fake: Open) -> None:
    driver = open_fake(step_latency=0.02, prefill_latency=0.002)
    start = time.monotonic()
    first = driver.start(0, chat("0123456789"))
    middle = time.monotonic()
    driver.advance([first], 3)
    assert middle - start >= 0.002 * len(chat("0123456789"))
    assert time.monotonic() - middle >= 0.06


@pytest.mark.parametrize("fault", [Fault.OUT_OF_MEMORY, Fault.RAISE, Fault.CRASH], ids=lambda fault: fault.value)
def test_a_failing_run_happens_at_its_step_and_leaves_the_cache_alone(open_fake: Open, fault: Fault) -> None:
    driver = open_fake(answers=["abcdef"], fault=fault, fault_step=2)
    answer = [driver.start(0, chat("x"))]
    answer += driver.advance(answer, 1)[0]
    with pytest.raises(RuntimeError if fault is Fault.CRASH else BackendError, match="fake engine"):
        driver.run([answer[-1:]])
    assert bytes([*answer, *driver.advance(answer[-1:], 4)[0]]) == b"abcdef"


def test_nan_logits_strike_one_row_and_come_as_often_as_asked(open_fake: Open) -> None:
    driver = open_fake(answers=["abcd"], fault=Fault.NAN, fault_step=1, fault_times=0)
    first = [driver.start(0, chat("x")), driver.start(1, chat("y"))]
    ahead = driver.start(2, chat("z"))
    assert ahead == ord("a")
    for row in (0, 1):
        assert first[row] == ord("a")
    assert driver.sample(driver.run([[first[0]], [first[1]]]), [0, 1]) == [-1, -1]
    driver.history[0] = driver.history[0][:-1]
    assert driver.sample(driver.run([[first[0]]]), [0]) == [-1]


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[BaseException | None]]:
    outcome: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def test_a_hanging_run_goes_on_when_it_is_released(open_fake: Open) -> None:
    driver = open_fake(answers=["ab"], fault=Fault.HANG)
    assert isinstance(driver.backend, FakeBackend)
    thread, outcome = in_thread(lambda: driver.start(0, chat("x")))
    assert driver.backend.hanging.wait(10)
    assert thread.is_alive()
    driver.backend.release()
    thread.join(10)
    assert outcome == [None]
    assert not driver.backend.hanging.is_set()


def test_a_hanging_run_ends_by_itself_after_its_timeout(open_fake: Open) -> None:
    driver = open_fake(answers=["ab"], fault=Fault.HANG, hang_timeout=0.05)
    start = time.monotonic()
    assert bytes(say(driver, chat("x"))) == b"ab"
    assert time.monotonic() - start >= 0.05


@pytest.mark.parametrize("script", [{"fault": "hang"}, {"prefill_latency": 60.0}], ids=["hang", "latency"])
def test_closing_ends_a_run_that_hangs_or_waits(open_fake: Open, script: dict[str, object]) -> None:
    driver = open_fake(**script)
    assert isinstance(driver.backend, FakeBackend)
    thread, outcome = in_thread(lambda: driver.start(0, chat("x")))
    if "fault" in script:
        assert driver.backend.hanging.wait(10)
    driver.backend.close()
    thread.join(10)
    assert isinstance(outcome[0], BackendError)
    assert "closed" in str(outcome[0])


def test_logits_stay_finite_and_unequal(open_fake: Open) -> None:
    driver = open_fake(mode=FakeMode.SEEDED)
    logits = driver.run([chat("x")]).numpy()[0]
    assert np.isfinite(logits).all()
    assert len(np.unique(logits)) > 0.95 * logits.size
