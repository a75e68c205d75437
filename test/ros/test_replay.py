"""A recording played to a node twice, and what is said where the two differ."""

from __future__ import annotations

import json
import sys

import pytest

pytest.importorskip("rosbags")
pytest.importorskip("rclpy")

from policy_bench import CAMERAS, JOINTS, ROBOT_SETTINGS
from policy_checkpoints import reference
from replay_bench import BEGIN, prompts, replay, write_bag
from rosbags.rosbag2 import StoragePlugin
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Bool, Empty, Header

from edgellm_ros.backends.fake import FakeMode, FakeScript, write_fake_engine_directory
from edgellm_ros.builder.build import build_engine
from edgellm_ros.errors import EdgeLLMError, MissingPackageError
from edgellm_ros.ros.action_messages import time_message
from edgellm_ros.ros.bag import Bag
from edgellm_ros.ros.replay_record import ReplayRecord, answer_entry, chunk_entry, first_difference, load_record

pytestmark = pytest.mark.timeout(500)
DURATION = "{sec: 0, nsec: 0}"
QUALITY = (
    "[{history: keep_last, depth: 1, reliability: reliable, durability: volatile, liveliness: automatic, "
    f"deadline: {DURATION}, lifespan: {DURATION}, liveliness_lease_duration: {DURATION}, "
    "avoid_ros_namespace_conventions: false}]"
)


@pytest.fixture
def engine(tmp_path):
    return write_fake_engine_directory(tmp_path / "engine", FakeScript(mode=FakeMode.ECHO))


@pytest.mark.parametrize(
    "storage", [StoragePlugin.MCAP, pytest.param(StoragePlugin.SQLITE3, marks=pytest.mark.slow)], ids=str
)
def test_a_recording_gives_the_same_answers_at_any_pace_and_no_words_are_kept(tmp_path, engine, storage):
    """RPL-1"""
    bag = write_bag(
        tmp_path / "bag", [*prompts("one", "two", " ", "four"), (2.0, "/unheard", Bool(data=True))], storage
    )
    settings = ["--engine-dir", engine, "--set", "engine.backend=fake", "--set", "generation.seed=3"]
    first = replay(bag, *settings, "--output", tmp_path / "golden.json", "--rate", 2)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "Playing /prompt; left out /unheard." in first.stdout
    assert "4 answers and 0 chunks came." in first.stdout
    written = (tmp_path / "golden.json").read_text()
    reasons = [answer["refusal_code"] for answer in json.loads(written)["answers"]]
    assert sorted(reasons) == ["", "", "", "empty_prompt"] and "four" not in written
    again = replay(bag, *settings, "--expect", tmp_path / "golden.json", "--rate", 1)
    assert again.returncode == 0 and f"As in {tmp_path / 'golden.json'}." in again.stdout, again.stdout + again.stderr
    other = replay(
        bag, *settings, "--expect", tmp_path / "golden.json", "--set", "generation.max_tokens=2", "--rate", 4
    )
    assert other.returncode == 1
    assert "answer 1 has finish_reason 'length' (was 'end_id')" in other.stdout
    assert "setting.generation.max_tokens '2' (was 'nothing')" in other.stdout


def test_a_prompt_of_the_command_line_and_a_cancel_of_the_recording(tmp_path):
    slow = write_fake_engine_directory(tmp_path / "engine", FakeScript(["x" * 4000], step_latency=0.01))
    bag = write_bag(tmp_path / "bag", [(0.0, "/begun", Empty()), (0.8, "/stop", Empty())])
    told = replay(
        bag, "--engine-dir", slow, "--set", "engine.backend=fake", "--remap", "/stop:=/cancel", "--json",
        "--prompt", "hello", "--prompt-after", 0.1, "--set", "generation.max_tokens=4000",
    )  # fmt: skip
    assert told.returncode == 0, told.stdout + told.stderr
    (answer,) = json.loads(told.stdout)["answers"]
    # the prompt comes with the first message behind its time, and so with the cancel here or shortly before it
    assert answer["refusal_code"] in ("cancelled", "")


@pytest.mark.slow
def test_a_policy_acts_on_every_observation_of_a_recording_and_does_so_again_at_another_pace(tmp_path):
    checkpoint, arrays, _ = reference("smolvla")
    (tmp_path / "robot.yaml").write_text(ROBOT_SETTINGS)
    policy = build_engine(checkpoint, tmp_path / "engine", policy_settings=tmp_path / "robot.yaml")
    messages = []
    for index in range(5):
        seconds = 0.5 + 0.6 * index
        header = Header(stamp=time_message(BEGIN + round(seconds * 1e9)))
        positions = [float(value) + 0.01 * index for value in arrays["all_state"]]
        messages.append((seconds, "/joint_states", JointState(header=header, name=list(JOINTS), position=positions)))
        for name in CAMERAS:
            pixels = arrays[f"image_{name}"]
            (height, width), data = pixels.shape[:2], pixels.tobytes()
            image = Image(header=header, height=height, width=width, encoding="rgb8", step=3 * width, data=data)
            messages.append((seconds + 0.01, f"/robot/{name}", image))
    bag = write_bag(tmp_path / "bag", messages)
    options = ["--engine-dir", policy, "--prompt", "put the red cube on the blue disc", "--settle", 3]
    for name in CAMERAS:
        options += ["--remap", f"/robot/{name}:=/{name}/image_raw"]
    for setting in ("action.rate=20", "action.pairing=every", "action.fixed_delay=0.05", "generation.timeout=0"):
        options += ["--set", setting]
    first = replay(bag, *options, "--output", tmp_path / "golden.json", "--rate", 0.5)
    assert first.returncode == 0, first.stdout + first.stderr
    chunks = json.loads((tmp_path / "golden.json").read_text())["chunks"]
    assert len({chunk["rows"] for chunk in chunks}) == 5 and chunks[0]["stamp"] == "1700000000.500000000"
    again = replay(bag, *options, "--expect", tmp_path / "golden.json", "--rate", 1)
    assert again.returncode == 0, again.stdout + again.stderr
    other = replay(bag, *options, "--expect", tmp_path / "golden.json", "--set", "action.noise_seed=6")
    assert other.returncode == 1 and "setting.action.noise_seed '6' (was 'nothing')" in other.stdout, other.stdout


@pytest.mark.parametrize(
    ("messages", "arguments", "sentence"),
    [
        ([(0, "/picture", Empty())], [], "the node listens to /cancel, /prompt and to none of them: use --remap"),
        ([(0, "/prompt", Empty())], [], "/prompt is std_msgs/msg/Empty in "),
        (prompts("one"), ["--remap", "/prompts:=/prompt"], "has no topic /prompts; it has /prompt"),
        (prompts("one"), ["--remap", "/prompt"], "want TOPIC:=TOPIC"),
        (prompts("one"), ["--rate", "0"], "--rate is 0.0; want 0.01 to 1000"),
        (prompts("one"), ["--rate", "nan"], "--rate is nan; want 0.01 to 1000"),
        (prompts("one"), ["--expect", "nowhere.json"], "nowhere.json cannot be read"),
        (prompts("one"), ["--params-file", "nowhere.yaml"], "--params-file nowhere.yaml is no file"),
        (prompts("one"), ["--set", "generation.seed=x"], "generation.seed is 'x' of type str; want a whole number"),
        (prompts("one"), ["--set", "generation.sed=1"], "did you mean generation.seed?"),
        (prompts("one"), ["--node", "/edgellm"], "--engine-dir is for a node that is started here; leave it out"),
    ],
    ids=lambda value: " ".join(value)[:20] if isinstance(value, list) and value and isinstance(value[0], str) else "",
)
def test_what_cannot_be_played_is_refused_in_a_sentence(tmp_path, engine, messages, arguments, sentence):
    bag = write_bag(tmp_path / "bag", messages)
    result = replay(bag, "--engine-dir", engine, "--set", "engine.backend=fake", *arguments)
    assert result.returncode == 2 and sentence in result.stderr, result.stdout + result.stderr
    assert "Traceback" not in result.stderr


def test_files_that_are_no_recordings_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.mcap").write_text("text")
    (tmp_path / "text.txt").write_text("text")
    whole = write_bag(tmp_path / "whole", prompts(*("text" * 100,) * 50))
    (part,) = whole.glob("*.mcap")
    part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])
    for path in (tmp_path / "nowhere", tmp_path / "empty", tmp_path / "text.mcap", tmp_path / "text.txt", whole):
        with pytest.raises(EdgeLLMError, match="cannot be read as a recording of rosbag2"), Bag(path) as bag:
            list(bag.messages(bag.topics))


@pytest.mark.parametrize("storage", list(StoragePlugin), ids=str)
def test_messages_are_found_though_metadata_and_files_tell_quality_of_service_differently(tmp_path, storage):
    bag = write_bag(tmp_path / "bag", prompts("one", "two"), storage)
    metadata = bag / "metadata.yaml"
    text = metadata.read_text()
    assert "offered_qos_profiles: []" in text
    metadata.write_text(text.replace("offered_qos_profiles: []", f"offered_qos_profiles: {QUALITY}"))
    with Bag(bag) as opened:
        assert len(list(opened.messages(["/prompt"]))) == 2


def test_messages_that_are_missing_are_told(tmp_path):
    bag = write_bag(tmp_path / "bag", prompts("one", "two"))
    metadata = bag / "metadata.yaml"
    metadata.write_text(metadata.read_text().replace("message_count: 2", "message_count: 3"))
    with Bag(bag) as opened, pytest.raises(EdgeLLMError, match="says that it has 3 messages and 2 could be read"):
        list(opened.messages(["/prompt"]))


def test_a_recording_of_another_serialisation_is_refused_by_name(tmp_path):
    path = write_bag(tmp_path / "bag", prompts("one"), serialisation="protobuf")
    with pytest.raises(EdgeLLMError, match=r"cannot be read as a recording of rosbag2 .*protobuf"):
        Bag(path)


def test_without_the_package_that_reads_recordings_the_sentence_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rosbags.rosbag2", None)
    with pytest.raises(MissingPackageError, match="pip install rosbags"):
        Bag(tmp_path)


ANSWER = {"finish_reason": "end_id", "seed": "5", "prompt": "hello", "response": "hi", "total_s": "0.1"}
CHUNK = chunk_entry("stamp=1.500000000 step_time=0.1 seed=7 x0=abc", b"rows")


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (ReplayRecord("a", [answer_entry({**ANSWER, "total_s": "9"})], [CHUNK]), None),
        (ReplayRecord("a", [answer_entry({**ANSWER, "seed": "6"})], [CHUNK]), "answer 1 has seed '6' (was '5')."),
        (
            ReplayRecord("b", [answer_entry(ANSWER)], [{**CHUNK, "rows": "0"}]),
            f"chunk 1 of stamp 1.500000000 has rows '0' (was '{CHUNK['rows']}'). The engine is b (was a).",
        ),
        (ReplayRecord("a", [answer_entry(ANSWER)], [CHUNK, CHUNK]), "2 chunks came (were 1)."),
        (ReplayRecord("a", [], [CHUNK]), "0 answers came (were 1)."),
    ],
)
def test_the_first_difference_is_named(tmp_path, found, sentence):
    expected = ReplayRecord("a", [answer_entry(ANSWER)], [CHUNK])
    expected.save(tmp_path / "golden.json")
    assert first_difference(load_record(tmp_path / "golden.json"), found) == sentence


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": 2, "engine": "", "answers": [], "chunks": []}',
     '{"format": 1, "engine": "", "answers": [1], "chunks": []}',
     '{"format": 1, "engine": "", "answers": {}, "chunks": []}'],
)  # fmt: skip
def test_what_is_no_record_is_refused(tmp_path, text):
    (tmp_path / "golden.json").write_text(text)
    with pytest.raises(EdgeLLMError, match="write it anew with --output"):
        load_record(tmp_path / "golden.json")
