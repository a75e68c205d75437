from __future__ import annotations

from edgellm_ros.ros.history import MAX_KEPT_TURNS, ConversationHistory, Turn, conversation


def test_the_latest_turns_come_oldest_first() -> None:
    history = ConversationHistory()
    for number in range(4):
        assert history.append(0, Turn(f"q{number}", f"a{number}"))
    assert history.snapshot(2) == (0, (Turn("q2", "a2"), Turn("q3", "a3")))
    assert history.snapshot(0) == (0, ())
    assert len(history.snapshot(99)[1]) == 4


def test_an_answer_from_before_a_reset_is_not_remembered() -> None:
    history = ConversationHistory()
    epoch, _ = history.snapshot(1)
    history.append(epoch, Turn("a", "b"))
    assert history.clear() == 1
    assert not history.append(epoch, Turn("c", "d"))
    assert len(history) == 0


def test_the_store_is_bounded() -> None:
    history = ConversationHistory()
    for number in range(3 * MAX_KEPT_TURNS):
        history.append(0, Turn(str(number), ""))
    assert len(history) == MAX_KEPT_TURNS


def test_messages_are_system_prompt_turns_and_prompt() -> None:
    messages = conversation("Be brief.", (Turn("hello", "hi"),), "and now?")
    assert [(message.role, message.content) for message in messages] == [
        ("system", "Be brief."),
        ("user", "hello"),
        ("assistant", "hi"),
        ("user", "and now?"),
    ]
    assert [message.role for message in conversation("", (), "x")] == ["user"]
