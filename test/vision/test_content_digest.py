"""Images are known by their content: whatever a tower would see otherwise is encoded anew, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from level_engines import level_engine

from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.errors import RequestError
from edgellm_ros.vision.processor import Video
from edgellm_ros.vision.runner import VisionRunner

pytest.importorskip("cv2")

PICTURE = np.random.default_rng(3).integers(0, 256, (36, 48, 3), dtype=np.uint8)


@pytest.fixture
def runner():
    backend = CPUBackend(1)
    opened = VisionRunner.open(level_engine("qwen2_5_vl", "onnxruntime") / "visual", backend)
    yield opened
    opened.close()
    backend.close()


def changed(place: tuple[int, int, int]) -> np.ndarray:
    picture = PICTURE.copy()
    picture[place] ^= 1
    return picture


@pytest.mark.parametrize("other", [
    changed((0, 0, 0)), changed((35, 47, 2)), changed((17, 20, 1)), PICTURE[::-1], PICTURE[..., ::-1],
    PICTURE.reshape(48, 36, 3), PICTURE.transpose(1, 0, 2),
    Video([PICTURE, PICTURE]), Video([PICTURE, changed((35, 47, 2))]),
], ids=["first", "last", "middle", "upside down", "blue first", "lines", "turned", "video", "other video"])  # fmt: skip
def test_another_content_is_encoded_anew(runner, other):
    first, second = (runner.encode(runner.place(content)) for content in (PICTURE, other))
    assert first is not second and runner.metrics.encoded == 2


def test_pictures_of_one_size_that_come_again_are_each_themselves(runner):
    pictures = [PICTURE, changed((0, 0, 0)), changed((1, 1, 1))]
    first = [runner.encode(runner.place(picture)) for picture in pictures]
    again = [runner.place(picture) for picture in pictures]
    assert [runner.encode(item) for item in again] == first and runner.metrics.encoded == 3
    runner.cache.clear()  # between the placing of a prompt and its turn
    for item, before in zip(again, first, strict=True):
        assert np.array_equal(runner.encode(item).embeddings.numpy(), before.embeddings.numpy())


def test_rows_that_a_prompt_has_no_tokens_for_are_refused(runner):
    item = runner.place(PICTURE)
    with pytest.raises(RequestError, match=f"gave {item.token_count} rows for {item.token_count + 1} tokens"):
        runner.encode(replace(item, token_count=item.token_count + 1))


def test_images_with_a_token_between_them_are_blocks_of_their_own(runner, monkeypatch):
    places = [np.array([1, 2]), np.array([4, 5]), np.array([6, 7])]
    assert runner.blocks(places, 9) == ()
    runner.tower.settings = replace(runner.tower.settings, blocks="images")
    assert runner.blocks(places, 9) == ((1, 3), (4, 8))
    runner.tower.settings = replace(runner.tower.settings, blocks="prompt")
    assert runner.blocks(places, 9) == ((0, 9),)


def test_frames_in_another_order_or_at_another_speed_are_another_video(runner):
    other = changed((0, 0, 0))
    videos = [Video([PICTURE, other]), Video([other, PICTURE]), Video([PICTURE, other], 0.5), Video([PICTURE, other])]
    videos += [Video([PICTURE, other], times=[0.0, 3.0])]
    assert len({runner.place(video).digest for video in videos}) == 4


@pytest.mark.parametrize("layout", [np.asfortranarray, np.array, lambda image: np.repeat(image, 2, axis=1)[:, ::2]])
def test_the_same_content_in_other_memory_is_known(runner, layout):
    assert runner.encode(runner.place(PICTURE)) is runner.encode(runner.place(layout(PICTURE)))
    assert runner.metrics.encoded == 1
