"""Image processors against transformers' own, on pictures with gradients, hard edges, saturation and noise."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import picture
from processor_cases import CASES, SAMPLES, VIDEOS, Case

from edgellm_ros.errors import EngineDirectoryError, RequestError
from edgellm_ros.vision.processor import ProcessedImages, Processor, Video, open_processor

pytest.importorskip("cv2")

HERE = Path(__file__).resolve().parent
FACTS = json.loads((HERE / "processors.json").read_text("utf-8"))
TOKENS_PER_ROW = {
    **{"smolvlm-published": 64, "smolvlm-single": 64, "smolvlm-small": 4, "smolvlm-one-tile": 4, "idefics3-bicubic": 4},
    **{"internvl3": 256, "internvl3-small": 4, "paligemma": 256, "siglip-bilinear": 48},
}
SMALL = [case for case in CASES if max(max(size) for size in case.sizes) < 200]


def write_folder(folder: Path, case: Case, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(case.config), "utf-8")
    (folder / "preprocessor_config.json").write_text(json.dumps({**case.image, **changes}), "utf-8")
    if case.processor:
        (folder / "processor_config.json").write_text(json.dumps(case.processor), "utf-8")
    return folder


def case_named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def opened(folder: Path, name: str, *, normalise: bool = True, **changes: Any) -> Processor:
    return open_processor(write_folder(folder, case_named(name), **changes), normalise=normalise)


def grey_levels(case: Case, values: np.ndarray, places: np.ndarray, shape: list[int]) -> np.ndarray:
    """Normalised values back in levels 0..255; ``places`` tell each value's channel."""
    channels = places // (shape[2] * shape[3]) % 3 if len(shape) == 4 else places % shape[1] // (shape[1] // 3)
    mean, std = (np.array(case.image[name])[channels] for name in ("image_mean", "image_std"))
    return (values * std + mean) * 255


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pixels_grids_and_counts_equal_the_reference(case, tmp_path):
    facts = FACTS[case.name]
    done = open_processor(write_folder(tmp_path, case)).process([picture(*size) for size in case.sizes])
    pixels = done.inputs["pixel_values"]
    assert pixels.dtype == np.float32
    assert list(pixels.shape) == facts["shape"]
    places = np.random.Generator(np.random.PCG64(len(case.name))).integers(0, pixels.size, SAMPLES)
    with np.load(HERE / "processors.npz") as stored:
        wanted = grey_levels(case, stored[case.name], places, facts["shape"])
    found = grey_levels(case, pixels.reshape(-1)[places], places, facts["shape"])
    difference = np.abs(found - wanted)
    assert difference.max() < 1.01  # a tie of rounding in one pass may fall to the other side
    assert (difference > 0.01).mean() < 0.005
    if "grids" in facts:
        assert done.grids is not None and done.grids.dtype == np.int64
        assert done.grids.tolist() == facts["grids"]
        assert done.token_counts == tuple(down * across // 4 for _, down, across in facts["grids"])
    if "tiles" in facts:
        assert done.rows == tuple(facts["tiles"])
    if "columns" in facts:
        assert done.rows == tuple(r * c + 1 for r, c in zip(facts["rows"], facts["columns"], strict=True))
    if case.name in TOKENS_PER_ROW:
        assert done.token_counts == tuple(rows * TOKENS_PER_ROW[case.name] for rows in done.rows)
    check_consistency(done)


def check_consistency(done: ProcessedImages) -> None:
    assert sum(done.rows) == len(done.inputs["pixel_values"])
    for token in ("<image>", "<|image_pad|>", "<IMG_CONTEXT>"):
        counts = tuple(text.count(token) for text in done.placeholders)
        assert counts in (done.token_counts, (0,) * len(counts))


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_an_image_gives_the_same_alone_and_among_others(case, tmp_path):
    processor = open_processor(write_folder(tmp_path, case))
    pictures = [picture(*size) for size in case.sizes]
    together = processor.process(pictures)
    first = 0
    for index, image in enumerate(pictures):
        alone = processor.process([image])
        rows = together.inputs["pixel_values"][first : first + together.rows[index]]
        assert np.array_equal(alone.inputs["pixel_values"], rows)
        assert alone.placeholders == (together.placeholders[index],)
        assert alone.token_counts == (together.token_counts[index],)
        first += together.rows[index]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_levels_without_normalisation_lead_to_the_same_numbers(case, tmp_path):
    images = [picture(30, 40), picture(97, 31)]
    levels = open_processor(write_folder(tmp_path, case), normalise=False).process(images).inputs["pixel_values"]
    values = open_processor(tmp_path).process(images).inputs["pixel_values"]
    assert levels.dtype == np.uint8
    places = np.arange(values.size)
    back = grey_levels(case, values.reshape(-1), places, list(values.shape))
    assert np.abs(back - levels.reshape(-1)).max() < 1e-3


@pytest.mark.parametrize("grid", [(0, 0), (2, 3)], ids=str)
def test_smolvlm_placeholders_are_those_of_the_reference(grid, tmp_path):
    sizes = {(0, 0): (32, 32), (2, 3): (64, 96)}
    case = case_named("smolvlm-small")
    (write_folder(tmp_path, case, do_image_splitting=grid != (0, 0)) / "processor_config.json").write_text(
        json.dumps({"image_seq_len": 2}), "utf-8"
    )
    done = open_processor(tmp_path).process([picture(*sizes[grid])])
    assert done.placeholders == (FACTS["smolvlm_prompts"][f"{grid[0]},{grid[1]}"],)


def test_settings_of_newer_checkpoints_lie_in_one_file(tmp_path):
    case = case_named("qwen3-vl-small")
    before = open_processor(write_folder(tmp_path, case)).process([picture(40, 30)])
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": case.image}), "utf-8")
    after = open_processor(tmp_path).process([picture(40, 30)])
    assert np.array_equal(before.inputs["pixel_values"], after.inputs["pixel_values"])


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"patch_size": 0}, "patch_size is 0; want a whole number from 1"),
    ({"image_std": [0.5, 0.0, 0.5]}, "want three positive numbers"),
    ({"image_mean": [0.5]}, "image_mean is [0.5]; want three numbers"),
    ({"resample": 9}, "resample is 9; want one of 1 (lanczos)"),
    ({"do_resize": False}, "do_resize is false"),
    ({"size": {"shortest_edge": 900, "longest_edge": 800}}, "min_pixels is 900 and max_pixels 800"),
    ({"size": {}}, "min_pixels is None"),
    ({"patch_size": 1 << 17}, "patch_size is 131072; want a whole number from 1 to 65536"),
    ({"merge_size": 17}, "merge_size is 17; want a whole number from 1 to 16"),
    ({"temporal_patch_size": 17}, "temporal_patch_size is 17; want a whole number from 1 to 16"),
    ({"rescale_factor": 0}, "rescale_factor is 0; want a number above 0"),
    ({"rescale_factor": -0.1}, "rescale_factor is -0.1; want a number above 0"),
    ({"rescale_factor": 1e38}, "make pixel values that are not finite"),
    ({"image_std": [0.5, 1e-45, 0.5]}, "make pixel values that are not finite"),
])  # fmt: skip
def test_unsound_settings_are_refused_by_name(changes, sentence, tmp_path):
    with pytest.raises(EngineDirectoryError) as refusal:
        opened(tmp_path, "qwen3-vl-small", **changes)
    assert sentence in str(refusal.value)
    assert "preprocessor_config.json" in str(refusal.value)


@pytest.mark.parametrize(("name", "changes"), [
    ("smolvlm-published", {"max_image_size": {"longest_edge": 1}}),
    ("smolvlm-small", {"max_image_size": {"longest_edge": 65536}}),
    ("qwen3-vl-small", {"patch_size": 65536}),
    ("qwen3-vl-small", {"size": {"shortest_edge": 1 << 31, "longest_edge": 1 << 31}}),
    ("internvl3-small", {"size": {"height": 65536, "width": 65536}}),
    ("paligemma", {"size": {"height": 65536, "width": 65536}}),
], ids=str)  # fmt: skip
def test_sizes_that_make_more_than_any_machine_holds_are_refused_before_it_is_tried(name, changes, tmp_path):
    processor = opened(tmp_path, name, **changes)
    image = picture(40, 30)
    images = [image, *([Video([image] * 16)] if hasattr(processor, "process_video") else [])]
    tracemalloc.start()
    try:
        for one in images:
            process = processor.process_video if isinstance(one, Video) else lambda one: processor.process([one])
            with pytest.raises(RequestError, match=r"pixel values and .* tokens; want at most"):
                process(one)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_more_tiles_than_can_be_tried_are_refused(tmp_path):
    with pytest.raises(EngineDirectoryError, match="max_patches is 100000; want a whole number from 1 to 256"):
        opened(tmp_path, "internvl3-small", max_patches=100_000)


@pytest.mark.parametrize("name", ["smolvlm-published", "qwen2-vl", "internvl3", "paligemma"])
@pytest.mark.parametrize("shape", [(1, 16_777_216), (16_777_216, 1), (50, 10_001)], ids=str)
def test_a_line_of_millions_of_pixels_is_refused_by_every_family_before_it_is_stretched(name, shape, tmp_path):
    processor, line = opened(tmp_path, name), np.broadcast_to(np.uint8(0), (*shape, 3))
    tracemalloc.start()
    try:
        with pytest.raises(
            RequestError, match=rf"{shape[1]} by {shape[0]} pixels has an aspect ratio of .* at most 200"
        ):
            processor.process([line])
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_missing_file_is_named(tmp_path):
    (write_folder(tmp_path, case_named("paligemma")) / "preprocessor_config.json").unlink()
    with pytest.raises(EngineDirectoryError, match=r"preprocessor_config\.json is missing or empty"):
        open_processor(tmp_path)


def test_an_unknown_family_is_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "whisper"}', "utf-8")
    with pytest.raises(EngineDirectoryError, match=r"'whisper'.*smolvlm"):
        open_processor(tmp_path)


@pytest.mark.parametrize(("image", "sentence"), [
    (np.zeros((4, 4), np.uint8), "uint8 of shape [4, 4]"),
    (np.zeros((4, 4, 4), np.uint8), "[4, 4, 4]"),
    (np.zeros((4, 4, 3), np.float32), "float32"),
    (np.zeros((0, 4, 3), np.uint8), "[0, 4, 3]"),
    (np.zeros((1, 201, 3), np.uint8), "aspect ratio of 201.0"),
])  # fmt: skip
def test_arrays_that_are_no_images_are_refused_with_their_shape(image, sentence, tmp_path):
    with pytest.raises(RequestError) as refusal:
        opened(tmp_path, "qwen3-vl-small").process([image])
    assert sentence in str(refusal.value)


def test_no_images_are_refused(tmp_path):
    with pytest.raises(RequestError, match="no image"):
        opened(tmp_path, "qwen3-vl-small").process([])


def test_a_still_image_is_a_video_of_equal_frames(tmp_path):
    processor = opened(tmp_path, "qwen2.5-vl-limited")
    image = picture(60, 80)
    still = processor.process([image])
    video = processor.process_video(Video([image] * 4, seconds_per_frame=0.5))
    assert video.grids.tolist() == [[2, *still.grids[0, 1:]]]
    half = len(video.inputs["pixel_values"]) // 2
    assert np.array_equal(video.inputs["pixel_values"][:half], still.inputs["pixel_values"])
    assert np.array_equal(video.inputs["pixel_values"][half:], still.inputs["pixel_values"])
    assert video.placeholders == ("<|video_pad|>" * video.token_counts[0],)


@pytest.mark.parametrize(("name", "limits", "videos"), VIDEOS, ids=[video[0] for video in VIDEOS])
def test_frames_have_the_size_of_the_reference_within_limits_of_their_own(name, limits, videos, tmp_path):
    image = case_named(name).image
    (write_folder(tmp_path, case_named(name)) / "video_preprocessor_config.json").write_text(
        json.dumps(limits), "utf-8"
    )
    processor = open_processor(tmp_path)
    for (frames, height, width), size in zip(videos, FACTS["videos"][name], strict=True):
        done = processor.process_video(Video([picture(height, width)] * frames))
        grid = [-(-frames // 2), *(side // image["patch_size"] for side in size)]
        assert done.grids.tolist() == [grid]
        assert done.inputs["pixel_values"].shape[0] == np.prod(grid)
        assert done.token_counts == (np.prod(grid) // 4,)


def test_the_longest_side_has_an_end_whatever_the_settings_say(tmp_path):
    processor = opened(tmp_path, "smolvlm-small", size={"longest_edge": 5000}, max_image_size={"longest_edge": 1024})
    assert [(step.height, step.width) for step in processor.plan(1000, 2500).steps[:2]] == [(1638, 4096), (2048, 4096)]
    assert [(step.height, step.width) for step in processor.plan(2500, 1000).steps[:2]] == [(4096, 1638), (4096, 2048)]


def test_internvl_has_no_view_of_the_whole_beside_a_single_tile_or_where_it_is_switched_off(tmp_path):
    small = opened(tmp_path, "internvl3-small")
    assert small.process([picture(20, 20)]).rows == (1,)
    assert small.process([picture(20, 40)]).rows == (3,)
    for setting, rows in (({}, 13), ({"use_thumbnail": False}, 12), ({"dynamic_image_size": False}, 1)):
        case = case_named("internvl3")
        folder = write_folder(tmp_path, case)
        (folder / "config.json").write_text(json.dumps({**case.config, **setting}), "utf-8")
        assert open_processor(folder).plan(960, 1280).rows == rows


def test_both_frames_of_a_patch_are_in_it_and_an_odd_last_one_twice(tmp_path):
    processor = opened(tmp_path, "qwen2.5-vl-limited")
    frames = [picture(56, 56, seed) for seed in range(3)]
    video = processor.process_video(Video(frames)).inputs["pixel_values"]
    patches = video.reshape(2, 16, 3, 2, 14, 14)
    stills = [processor.process([frame]).inputs["pixel_values"].reshape(16, 3, 2, 14, 14)[:, :, 0] for frame in frames]
    for pair, (first, second) in enumerate(((0, 1), (2, 2))):
        assert np.array_equal(patches[pair][:, :, 0], stills[first])
        assert np.array_equal(patches[pair][:, :, 1], stills[second])


def test_qwen3_writes_the_middle_of_each_pair_of_frames_into_the_prompt(tmp_path):
    processor = opened(tmp_path, "qwen3-vl-small")
    done = processor.process_video(Video([picture(16, 16)] * 5, seconds_per_frame=0.5))
    count = done.token_counts[0] // 3
    frame = "<|vision_start|>" + "<|video_pad|>" * count + "<|vision_end|>"
    assert done.placeholders == ("".join(f"<{seconds} seconds>{frame}" for seconds in ("0.2", "1.2", "2.0")),)


def test_qwen3_writes_the_times_of_frames_that_were_picked_out_of_more(tmp_path):
    """As transformers does with frames 0, 4 and 8 of a video at 10 Hz."""
    processor = opened(tmp_path, "qwen3-vl-small")
    done = processor.process_video(Video([picture(16, 16)] * 3, seconds_per_frame=0.3, times=[0.0, 0.4, 0.8]))
    assert re.findall("<([^|>]*) seconds>", done.placeholders[0]) == ["0.2", "0.8"]


@pytest.mark.parametrize(("video", "sentence"), [
    (Video([]), "no image"),
    (Video([picture(8, 8)] * 2, times=[0.0]), "A video of 2 frames has the times [0.0]; want one for each, or none"),
    (Video([picture(8, 8)] * 2, times="ab"), "A video of 2 frames has the times 'ab'"),
    (Video([picture(8, 8)] * 2, times=[0.5, 0.4]), "The times of a video hold 0.4 behind 0.5 s"),
    (Video([picture(8, 8)] * 2, times=[-0.5, 0.4]), "The times of a video hold -0.5 behind 0 s"),
    (Video([picture(8, 8)] * 2, times=[0.0, float("nan")]), "The times of a video hold nan behind 0 s"),
    (Video([picture(8, 8)] * 2, times=[0.0, "1"]), "The times of a video hold '1' behind 0 s"),
    (Video([picture(8, 8)] * 2, times=[0.0, 1e9]), "The times of a video hold 1000000000.0 behind 0 s"),
    (Video([picture(8, 8), picture(8, 9)]), "2 different sizes"),
    (Video([picture(8, 8)] * 2, seconds_per_frame=0.0), "0.0 seconds per frame"),
    (Video([picture(8, 8)] * 2, seconds_per_frame=float("nan")), "nan seconds per frame"),
    (Video([picture(8, 8)] * 2, seconds_per_frame=1e9), "1000000000.0 seconds per frame; want a positive number up to"),
    (Video([picture(8, 8)] * 2, seconds_per_frame="1"), "'1' seconds per frame"),
    (Video([picture(8, 8)] * 2, seconds_per_frame=None), "None seconds per frame"),
    (Video(iter([picture(8, 8)] * 2)), "The frames of a video are list_iterator; want a list of images"),
    (Video(7), "The frames of a video are int"),
    (Video("ab"), "The frames of a video are str"),
    (Video([None, None]), "Image 0 is NoneType; want a NumPy array"),
    (Video([picture(8, 8)]), "A video of 1 is too short; want at least 2 frames"),
])  # fmt: skip
def test_frames_that_make_no_video_are_refused(video, sentence, tmp_path):
    with pytest.raises(RequestError) as refusal:
        opened(tmp_path, "qwen3-vl-small").process_video(video)
    assert sentence in str(refusal.value)
