"""The generate command with images and videos, over engines built from a configuration alone."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from openvino_choice import prefer_openvino
from vision_inputs import FAMILIES

from edgellm_ros.cli import media_options
from edgellm_ros.cli.main import main
from edgellm_ros.engine_format import BuilderLimits
from edgellm_ros.errors import RequestError

cv2 = pytest.importorskip("cv2")
pytestmark = pytest.mark.todays_graphs
LIMITS = BuilderLimits(max_batch_size=2, max_input_len=176, max_kv_cache_capacity=192)
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "rescale_factor": 1 / 255}
PROCESSORS = {
    "qwen2_vl": {
        **HALF, "patch_size": 3, "merge_size": 2, "temporal_patch_size": 2, "min_pixels": 144, "max_pixels": 432,
    },
    "gemma3": {**HALF, "size": {"height": 24, "width": 24}, "image_seq_length": 9},
    "paligemma": {**HALF, "size": {"height": 14, "width": 14}, "image_seq_length": 9},
    "internvl": {
        **HALF, "size": {"height": 24, "width": 24}, "crop_to_patches": False, "min_patches": 1, "max_patches": 2,
    },
}  # fmt: skip
ARCHITECTURES = {
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "internvl": "InternVLForConditionalGeneration",
    "paligemma": "PaliGemmaForConditionalGeneration",
    "gemma3": "Gemma3ForConditionalGeneration",
}


@pytest.fixture
def built(tmp_path):
    def build(family: str) -> str:
        from edgellm_ros.builder.build import build_engine

        folder = tmp_path / family
        folder.mkdir()
        config = {
            **FAMILIES[family].config,
            "architectures": [ARCHITECTURES[family]],
            "model_type": family,
            "downsample_ratio": 0.5,
        }
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSORS[family]))
        return str(build_engine(folder, tmp_path / f"{family}-engine", limits=LIMITS, random_seed=2))

    return build


@pytest.fixture
def files(tmp_path) -> Path:
    picture = np.random.default_rng(0).integers(0, 255, (18, 24, 3), dtype=np.uint8)
    cv2.imwrite(str(tmp_path / "a.jpg"), picture)
    cv2.imwrite(str(tmp_path / "b.png"), picture[:12])
    writer = cv2.VideoWriter(str(tmp_path / "v.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 10, (24, 18))
    for shift in range(9):
        writer.write(np.roll(picture, shift, 1))
    writer.release()
    return tmp_path


def report(capsys, *arguments: str) -> dict:
    assert main(["generate", *arguments, "--max-tokens", "4", "--ignore-eos", "--json"]) == 0
    content: dict = json.loads(capsys.readouterr().out)
    return content


def test_images_stand_before_the_prompt_and_their_tokens_are_told(built, files, capsys):
    engine = built("qwen2_vl")
    found = report(capsys, engine, "--prompt", "hi", "--image", str(files / "a.jpg"), "--image", str(files / "b.png"))
    assert [row["kind"] for row in found["media"]] == ["image", "image"]
    assert [row["grid"] for row in found["media"]] == [[1, 6, 8], [1, 4, 8]]
    assert found["image_tokens"] == 12 + 8 == found["input_ids"].count(262)
    assert len(found["output_ids"]) == 4
    again = report(capsys, engine, "--prompt", "hi", "--image", str(files / "b.png"), "--image", str(files / "a.jpg"))
    assert again["output_ids"] != found["output_ids"] or again["input_ids"] != found["input_ids"]
    assert "media" not in report(capsys, engine, "--prompt", "hi")


def test_paligemma_without_a_template_has_its_images_first_and_then_its_text(built, files, capsys):
    engine, image = built("paligemma"), str(files / "a.jpg")
    found = report(capsys, engine, "--prompt", "hi", "--image", image, "--image", image, "--no-chat-template")
    text = report(capsys, engine, "--prompt", "hi", "--no-chat-template")
    assert found["input_ids"] == [262] * 18 + text["input_ids"]
    assert text["input_ids"][0] == 1 and len(text["input_ids"]) == 4  # <|im_start|> as bos, two letters, a new line


def test_gemma_3_has_blank_lines_around_an_image(built, files, capsys):
    engine, image = built("gemma3"), str(files / "a.jpg")
    found = report(capsys, engine, "--prompt", "hi", "--image", image)
    text = report(capsys, engine, "--prompt", "hi")
    place = found["input_ids"].index(262)
    assert found["input_ids"][place : place + 10] == [262] * 9 + found["input_ids"][place + 9 : place + 10]
    marks = len("<start_of_image>") + len("<end_of_image>")  # no control tokens of this small vocabulary
    assert len(found["input_ids"]) == len(text["input_ids"]) + 9 + marks + 4


@pytest.mark.parametrize(
    ("family", "sentence"),
    [
        ("qwen2_vl", "images:     qwen2_vl, fp32: any size, a token for 6 pixels a side"),
        ("gemma3", "images:     gemma3, fp32: tiles of 24 pixels a side, 9 tokens each"),
    ],
)
def test_info_tells_of_the_tower(built, capsys, family, sentence):
    assert main(["info", built(family)]) == 0
    assert sentence in capsys.readouterr().out


def test_a_video_is_one_item_with_time_where_the_family_has_it(built, files, capsys):
    found = report(capsys, built("qwen2_vl"), "--prompt", "hi", "--video", str(files / "v.avi"), "--video-frames", "4")
    assert found["media"] == [{"kind": "video", "tokens": 24, "grid": [2, 6, 8]}]
    assert found["input_ids"].count(263) == 24


def test_a_video_is_its_frames_where_the_family_has_only_images(built, files, capsys):
    found = report(capsys, built("internvl"), "--prompt", "hi", "--video", str(files / "v.avi"), "--video-frames", "3")
    assert [row["kind"] for row in found["media"]] == ["image"] * 3
    assert found["image_tokens"] == 27


def avi(path: Path, *, says: int, holds: int) -> str:
    """A video of numbered frames whose header says how many there are."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (32, 32))
    for index in range(holds):
        writer.write(np.full((32, 32, 3), 10 * index, np.uint8))
    writer.release()
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, data.index(b"avih") + 24, says)
    struct.pack_into("<I", data, data.index(b"strh") + 40, says)
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize("says", [9, 0, 1000, 2**31 - 1])
def test_frames_are_spread_over_those_that_there_are_whatever_the_header_says(tmp_path, says):
    found = media_options._video(Path(avi(tmp_path / "v.avi", says=says, holds=9)), 3)
    assert [round(float(frame.mean()), -1) for frame in found.frames] == [0, 40, 80]
    assert found.seconds_per_frame == pytest.approx(0.3)  # as Qwen2.5-VL counts
    assert found.times == pytest.approx([0.0, 0.4, 0.8])  # as Qwen3-VL writes


def test_frames_have_the_colours_of_the_video(tmp_path):
    writer = cv2.VideoWriter(str(tmp_path / "v.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 10, (32, 32))
    for _ in range(2):
        writer.write(np.full((32, 32, 3), (20, 90, 240), np.uint8))  # blue first
    writer.release()
    for frame in media_options._video(tmp_path / "v.avi", 2).frames:
        assert np.abs(frame.reshape(-1, 3).mean(axis=0) - (240, 90, 20)).max() < 8


def test_frames_that_are_too_much_together_are_refused_before_they_are_read(tmp_path, monkeypatch):
    path = Path(avi(tmp_path / "v.avi", says=9, holds=9))
    monkeypatch.setattr(media_options, "MOST_VIDEO_PIXELS", 8 * 32 * 32)
    assert len(media_options._video(path, 8).frames) == 8
    with pytest.raises(RequestError, match=r"9 frames of 32 by 32 pixels .* more than 8192 pixels together"):
        media_options._video(path, 9)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--prompt", "hi", "--image", "nothing.png"), "--image nothing.png cannot be read"),
        (("--prompt", "hi", "--image", "config.json"), "--image config.json: A compressed image labelled"),
        (("--prompt", "hi", "--image", "a.jpg", "--image", "cut.jpg"), "--image cut.jpg: A JPEG image of"),
        (("--prompt", "hi", "--image", "."), "--image . cannot be read (Is a directory)"),
        (("--prompt", "hi", "--image", "loop.png"), "loop.png cannot be read (Too many levels of symbolic links)"),
        (("--prompt", "hi", "--image", "/dev/zero"), "--image /dev/zero has more than"),
        (("--prompt", "hi", *("--image", "a.jpg") * 40), "max_kv_cache_capacity is 192"),
        (("--prompt", "hi", "--video", "a.txt"), "has no frame that OpenCV reads"),
        (("--prompt", "hi", "--video", "wide.avi"), "frames of 5000 by 4000 pixels; want at most 16777216"),
        (("--prompt", "hi", "--video", "config.json"), "has no frame that OpenCV reads"),
        (("--prompt", "hi", "--video", "nothing.avi"), "is no file"),
        (("--prompt", "hi", "--video", "v.avi", "--video-frames", "0"), "--video-frames is 0"),
        (("--input-ids", "5,6", "--image", "a.jpg"), "give the text with --prompt"),
    ],
    ids=[
        "no file", "no image", "cut", "folder", "link to itself", "endless", "too many", "text as video", "huge frames",
        "no video",  "no video file", "no frames", "no prompt",
    ],
)  # fmt: skip
def test_what_cannot_be_seen_is_refused_in_a_sentence(built, files, capfd, monkeypatch, options, sentence):
    engine = built("qwen2_vl")
    monkeypatch.chdir(files)
    (files / "config.json").write_text("{}")
    (files / "a.txt").write_text("no video")
    (files / "cut.jpg").write_bytes((files / "a.jpg").read_bytes()[:-40])
    (files / "loop.png").symlink_to("loop.png")
    if "wide.avi" in options:
        writer = cv2.VideoWriter(str(files / "wide.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 10, (5000, 4000))
        writer.write(np.zeros((4000, 5000, 3), np.uint8))
        writer.release()
    assert main(["generate", engine, *options]) == 2
    said = capfd.readouterr().err
    assert sentence in said and said.count("\n") == 1


def test_the_pruner_leaves_tokens_out_or_says_why_not(built, files, capsys):
    prompt = ("--prompt", "what", "--image", str(files / "a.jpg"), "--image", str(files / "b.png"))
    qwen = built("qwen2_vl")
    whole = report(capsys, qwen, *prompt)
    pruned = report(capsys, qwen, *prompt, "--pruner-ratio", "0.75")
    assert whole["visual_pruning"] == {
        "outcome": "off",
        "before": whole["image_tokens"],
        "after": whole["image_tokens"],
    }
    assert pruned["visual_pruning"]["outcome"] == "applied"
    assert pruned["visual_pruning"]["after"] < pruned["visual_pruning"]["before"] == whole["image_tokens"]
    blind = report(capsys, qwen, "--prompt", "what", "--pruner-ratio", "0.75")
    assert blind["visual_pruning"] == {"outcome": "no_images", "before": 0, "after": 0}
    assert "visual_pruning" not in report(capsys, qwen, "--prompt", "what")
    windowed = report(capsys, built("gemma3"), *prompt, "--pruner-ratio", "0.75")
    assert windowed["visual_pruning"] == {"outcome": "sliding_window", "before": 18, "after": 18}


@pytest.mark.parametrize("ratio", ["0", "1", "-0.5", "nan"])
def test_a_ratio_that_is_none_is_refused(built, files, capsys, ratio):
    assert main(["generate", built("qwen2_vl"), "--prompt", "what", f"--pruner-ratio={ratio}"]) != 0
    assert "--pruner-ratio is" in capsys.readouterr().err


@pytest.mark.parametrize("family", ["qwen2_vl", "gemma3"])
def test_info_tells_which_library_runs_what(built, capsys, monkeypatch, family):
    pytest.importorskip("openvino")
    prefer_openvino(monkeypatch)
    path = built(family)
    assert main(["info", path, "--backend", "openvino", "--threads", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["libraries"]
    assert found["llm.onnx"] == "ONNX Runtime" and "times as fast" in found["visual.onnx"]
    assert main(["info", path, "--backend", "onnxruntime"]) == 0
    assert "runs on:    llm.onnx: onnxruntime" in capsys.readouterr().out
