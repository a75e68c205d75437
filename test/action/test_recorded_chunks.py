"""Chunks on a pretended GPU: recorded or not they are the same bytes, and memory stays as it is."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from cuda_device import open_cuda_backend
from fake_cuda import FakeDriver
from policy_checkpoints import REFERENCE, build_references, observation, reference, scaled_error
from pretend_gpu import pretend_backend

from edgellm_ros.action import context_engines
from edgellm_ros.action.observation import Observation
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.action.recordings import Recordings
from edgellm_ros.action.solver import RealTimeChunking
from edgellm_ros.backends.cuda.memory_check import needed_bytes
from edgellm_ros.builder.build import build_engine
from edgellm_ros.engine_format import open_engine_directory
from edgellm_ros.errors import BackendError
from edgellm_ros.vision.pruner import VisualPrunerConfig

FAMILIES = ("smolvla", "pi0", "pi05", "groot")
PRUNER = VisualPrunerConfig(enabled=True, reduction_ratio=0.5, min_visual_tokens=1)
CAMERAS = ("top", "wrist", "side")
REFERENCES = {family: reference(family)[1:] for family in FAMILIES}


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    return build_references(tmp_path_factory.mktemp("policies"), FAMILIES)


class Pretended:
    """A policy on a GPU whose libraries may be recorded or not."""

    def __init__(self, directory, *, records=True):
        self.driver = FakeDriver()
        self.backend = pretend_backend(driver=self.driver, records=records)
        self.runtime = PolicyRuntime(directory, backend=self.backend)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.runtime.close()
        self.backend.close()
        assert not error[0] and not self.driver.graphs and not self.driver.blocks and not self.driver.events

    def count(self, *names):
        """The list to which the driver's calls of these names are added from now on."""
        calls = []
        for name in names:
            inner = getattr(self.driver, name)

            def told(*arguments, _name=name, _inner=inner):
                calls.append(_name)
                return _inner(*arguments)

            setattr(self.driver, name, told)
        return calls


def chunk(runtime, family, case="all", **options):
    arrays, cases = REFERENCES[family]
    row = cases[case]
    options = {"noise": arrays[f"{case}_noise"], "denoise_steps": row["steps"], **options}
    return runtime.compute(observation(arrays, case, row["cameras"], 7), row["task"], **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_chunks_are_the_bytes_of_others_and_those_of_lerobot(engines, family):
    arrays, _ = REFERENCES[family]
    with Pretended(engines[family]) as gpu, Pretended(engines[family], records=False) as plain:
        wanted = chunk(plain.runtime, family).normalised
        assert scaled_error(wanted, arrays["all_normalised"]) < 1e-5
        for run in range(4):
            before = len(gpu.driver.launches)
            assert chunk(gpu.runtime, family).normalised.tobytes() == wanted.tobytes()
            assert bool(gpu.runtime.recordings.counts) == (run >= 1)
            steps = gpu.driver.launches[before:].count("euler_step")
            assert steps == REFERENCES[family][1]["all"]["steps"]  # once each: what is recorded does not run
        assert gpu.runtime.recordings.counts["denoise"] == gpu.runtime.recordings.counts["prefix"] == 1
        assert chunk(plain.runtime, family).normalised.tobytes() == wanted.tobytes()
        assert chunk(plain.runtime, family).normalised.tobytes() == wanted.tobytes()
        report = plain.runtime.recordings.report()
        assert report["recorded.denoise"].startswith("no: the step cannot be recorded")
        assert report["recorded.prefix"].startswith("no: ") and not plain.runtime.recordings.counts


@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_is_recorded_too_and_stays_near(family, tmp_path):
    arrays, _ = REFERENCES[family]
    (tmp_path / "robot.yaml").write_text("embodiment: libero_sim\n")
    settings = tmp_path / "robot.yaml" if family == "groot" else None
    path = build_engine(REFERENCE / family, tmp_path / "half", precision="fp16", policy_settings=settings)
    with Pretended(path) as gpu:
        first, *others = (chunk(gpu.runtime, family).normalised for _ in range(3))
        assert all(np.array_equal(other, first) for other in others) and gpu.runtime.recordings.counts["denoise"] == 1
    ours, wanted = first.ravel().astype(np.float64), arrays["all_normalised"].ravel().astype(np.float64)
    assert ours @ wanted / np.linalg.norm(ours) / np.linalg.norm(wanted) > 0.999


def test_the_cpu_has_nothing_to_record(engines):
    with PolicyRuntime(engines["smolvla"], threads=1) as opened:
        first = chunk(opened, "smolvla").rows
        assert all(np.array_equal(chunk(opened, "smolvla").rows, first) for _ in range(3))
        assert opened.recordings.report() == {}


@pytest.mark.parametrize(("family", "pictures"), [("smolvla", 1), ("pi05", 1), ("groot", 2)])
def test_a_steady_chunk_takes_no_memory_and_waits_only_for_its_end(engines, family, pictures):
    with Pretended(engines[family]) as gpu:
        for _ in range(3):
            chunk(gpu.runtime, family)
        calls = gpu.count("cuMemAllocFromPoolAsync", "cuMemHostAlloc", "cuEventCreate", "cuStreamSynchronize",
                          "cuEventSynchronize", "cuGraphLaunch")  # fmt: skip
        chunk(gpu.runtime, family)
        # Pictures (of each camera where sizes differ), prefix and all steps are graphs; then result and times are read.
        assert calls == ["cuGraphLaunch"] * (pictures + 2) + ["cuEventSynchronize"] * 2


def test_other_steps_cameras_tasks_and_pruning_are_recorded_beside_each_other(engines):
    arrays, _ = REFERENCES["smolvla"]
    with Pretended(engines["smolvla"]) as gpu, PolicyRuntime(engines["smolvla"], threads=1) as cpu:

        def both(cameras, task, steps, pruner):
            options = {"noise": arrays["all_noise"], "denoise_steps": steps, "visual_pruner": pruner}
            seen = Observation({name: arrays[f"image_{name}"] for name in cameras}, arrays["all_state"])
            return [opened.compute(seen, task, **options).normalised for opened in (gpu.runtime, cpu)]

        kinds = [
            (CAMERAS, "touch the ring", 4, None),
            (CAMERAS, "touch the ring", 5, None),
            (CAMERAS[:2], "touch the ring", 4, None),
            (CAMERAS, "put the red cube on the blue disc", 4, None),
            (CAMERAS, "touch the ring", 4, PRUNER),
        ]
        for _ in range(4):
            for kind in kinds:
                ours, wanted = both(*kind)
                assert scaled_error(ours, wanted) < 1e-6, kind
        assert gpu.runtime.recordings.counts == {"denoise": 5, "prefix": 4, "vision": 2}


def test_schedules_that_are_let_go_leave_recordings_whole(engines):
    with Pretended(engines["pi05"]) as gpu, Pretended(engines["pi05"], records=False) as plain:
        for _ in range(4):
            for steps in range(1, 12):  # more than are kept
                ours, wanted = (chunk(opened.runtime, "pi05", denoise_steps=steps) for opened in (gpu, plain))
                assert ours.normalised.tobytes() == wanted.normalised.tobytes()
        assert gpu.runtime.recordings.counts["denoise"] == 11


def test_the_least_recent_of_many_shapes_are_let_go(engines):
    with Pretended(engines["smolvla"]) as gpu, Pretended(engines["smolvla"], records=False) as plain:
        gpu.runtime.recordings._most = 2
        for _ in range(2):
            for steps in (1, 2, 3):
                for _ in range(3):
                    ours, wanted = (chunk(opened.runtime, "smolvla", denoise_steps=steps) for opened in (gpu, plain))
                    assert ours.normalised.tobytes() == wanted.normalised.tobytes()
                assert gpu.driver.graphs <= 2 + 1 + 1  # loops, pictures, prefix
        assert gpu.runtime.recordings.counts == {"denoise": 2, "prefix": 1, "vision": 1}
        pins = [call.pins for call in gpu.runtime._engines._action._calls.values()]
        assert pins == [2 * 1 + 3]  # the loops of two and three steps that are kept, or of one: each run counts


@pytest.mark.slow
def test_memory_is_flat_over_a_thousand_chunks(engines):
    with Pretended(engines["smolvla"]) as gpu:
        random = np.random.default_rng(3)
        marks = []
        for index in range(1000):
            words = "a b c d e f"[: 1 + 2 * int(random.integers(6))]
            assert chunk_of(gpu.runtime, words, CAMERAS[: 2 + int(random.integers(2))]) is not None
            if index in (150, 999):
                marks.append((gpu.driver.used, len(gpu.driver.blocks), len(gpu.driver.pinned), gpu.driver.events,
                              gpu.driver.graphs))  # fmt: skip
        assert marks[0] == marks[1]
        assert gpu.driver.graphs <= 3 * gpu.runtime.recordings._most


def chunk_of(runtime, task, cameras):
    arrays, _ = REFERENCES["smolvla"]
    seen = Observation({name: arrays[f"image_{name}"] for name in cameras}, arrays["all_state"])
    return runtime.compute(seen, task, denoise_steps=1)


@pytest.mark.parametrize("family", ["smolvla", "pi05"])
def test_guided_chunks_record_single_steps_and_stay_the_same(engines, family):
    with Pretended(engines[family]) as gpu, Pretended(engines[family], records=False) as plain:
        free = chunk(plain.runtime, family)
        options = {"chunking": RealTimeChunking(2, 4), "committed": free.rows[2:] + 0.3}
        for _ in range(3):
            ours, wanted = (chunk(opened.runtime, family, **options) for opened in (gpu, plain))
            assert ours.normalised.tobytes() == wanted.normalised.tobytes() != free.normalised.tobytes()
        assert gpu.runtime.recordings.counts["step"] == 1 and "denoise" not in gpu.runtime.recordings.counts
        assert chunk(gpu.runtime, family).normalised.tobytes() == free.normalised.tobytes()


def test_a_cancel_is_seen_before_a_recorded_loop_and_between_guided_steps(engines):
    with Pretended(engines["smolvla"]) as gpu:
        free = [chunk(gpu.runtime, "smolvla") for _ in range(3)][-1]
        assert chunk(gpu.runtime, "smolvla", cancelled=lambda: True) is None
        asked = []

        def third():
            asked.append(1)
            return len(asked) == 3

        options = {"chunking": RealTimeChunking(2, 4), "committed": free.rows}
        assert chunk(gpu.runtime, "smolvla", cancelled=third, **options) is None and len(asked) == 3
        assert chunk(gpu.runtime, "smolvla").rows.tobytes() == free.rows.tobytes()


def test_longer_observations_move_tensors_and_recordings_follow(engines):
    arrays, _ = REFERENCES["groot"]
    with Pretended(engines["groot"]) as gpu, Pretended(engines["groot"], records=False) as plain:
        for height, task in ((40, "go"),) * 3 + ((90, "open the drawer of the cabinet"),) * 3 + ((40, "go"),) * 3:
            images = {"head": np.full((height, 50, 3), height, np.uint8), "wrist": np.full((36, 36, 3), 90, np.uint8)}
            seen = Observation(images, arrays["all_state"])
            ours, wanted = (opened.runtime.compute(seen, task, noise=arrays["all_noise"]) for opened in (gpu, plain))
            assert ours.rows.tobytes() == wanted.rows.tobytes()
        assert gpu.runtime.recordings.counts["denoise"] == 2


def test_a_policy_that_does_not_fit_is_refused_before_it_is_loaded(engines):
    files = open_engine_directory(engines["pi05"]).manifest.files
    largest = files["visual/visual.onnx"] + files["visual/visual.onnx.data"]
    with Pretended(engines["pi05"]) as gpu:
        needed = needed_bytes(open_engine_directory(engines["pi05"]), "onnxruntime")
        weights = sum(size for name, size in files.items() if ".onnx" in name and not name.startswith("llm"))
        assert needed["weights"] == weights and "caches" not in needed
        gpu.driver.total = gpu.driver.used + largest - 1
        with pytest.raises(BackendError, match=r"out of memory: .*visual\.onnx needs"):
            gpu.backend.open_engine(engines["pi05"] / "visual" / "visual.onnx")


def test_more_sizes_of_pictures_than_are_kept_begin_anew(engines, monkeypatch):
    monkeypatch.setattr(context_engines, "MOST_PICTURES", 3)
    arrays, _ = REFERENCES["groot"]
    with Pretended(engines["groot"]) as gpu, Pretended(engines["groot"], records=False) as plain:
        for height in (40, 60, 40, 40, 40, 80, 60, 60, 60):
            images = {"head": np.full((height, 40, 3), height, np.uint8), "wrist": np.full((36, 36, 3), 9, np.uint8)}
            seen = Observation(images, arrays["all_state"])
            ours, wanted = (opened.runtime.compute(seen, "go", noise=arrays["all_noise"]) for opened in (gpu, plain))
            assert ours.rows.tobytes() == wanted.rows.tobytes()
            assert len(gpu.runtime._engines._pictures) <= 3
        assert gpu.runtime.recordings.counts["vision"] == 2


def test_a_kind_of_step_that_fails_once_is_not_tried_again():
    tried = []

    class Refusing:
        def capture(self, key, step):
            tried.append(key)
            return self

        recorded, failure = False, "it waits"

        def record(self):
            return False

        def close(self):
            tried.append("closed")

    recordings = Recordings(Refusing())
    ran = []
    for shapes in (1, 1, 1, 2, 2):
        recordings.run(("prefix", shapes), lambda: ran.append(1))
    assert len(ran) == 5 and tried == [("prefix", 1), "closed"]
    assert recordings.report() == {"recorded.prefix": "no: it waits"}


@pytest.mark.parametrize("family", ["smolvla", "pi0"])
def test_frames_reach_a_gpu_as_bytes_and_are_fitted_there(engines, family):
    arrays, cases = REFERENCES[family]
    seen = observation(arrays, "all", cases["all"]["cameras"], 7).images
    with Pretended(engines[family]) as gpu:
        chunk(gpu.runtime, family)
        sizes, inner = [], gpu.driver.cuMemcpyHtoDAsync

        def told(*arguments):
            sizes.append(arguments[2])
            return inner(*arguments)

        gpu.driver.cuMemcpyHtoDAsync = told
        before = len(gpu.driver.launches)
        parts = chunk(gpu.runtime, family).timings
        assert gpu.driver.launches[before:].count("letterbox") == len(seen)
        assert sorted(sizes[: len(seen)]) == sorted(image.nbytes for image in seen.values())
        assert {"images_ms", "vision_ms", "prefix_ms", "denoise_ms", "total_ms"} == {*parts}


def test_cropped_frames_are_resized_and_cut_on_a_gpu(engines, monkeypatch):
    monkeypatch.setattr(context_engines, "carry_out", lambda *given: pytest.fail("a picture was cut on the host"))
    arrays, cases = REFERENCES["groot"]
    with Pretended(engines["groot"]) as gpu:
        for _ in range(3):
            before = len(gpu.driver.launches)
            assert scaled_error(chunk(gpu.runtime, "groot").normalised, arrays["all_normalised"]) < 1e-5
            launched = [name for name in gpu.driver.launches[before:] if name.startswith("rearrange")]
            assert len(launched) == len(cases["all"]["cameras"])


def test_a_policy_of_many_cameras_keeps_all_of_them_at_once(engines, monkeypatch):
    monkeypatch.setattr(context_engines, "MOST_PICTURES", 1)
    arrays, cases = REFERENCES["groot"]
    with Pretended(engines["groot"]) as gpu:
        for _ in range(4):
            assert scaled_error(chunk(gpu.runtime, "groot").normalised, arrays["all_normalised"]) < 1e-5
            assert len(gpu.runtime._engines._pictures) == len(cases["all"]["cameras"])
        assert gpu.runtime.recordings.counts["vision"] == len(cases["all"]["cameras"])


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpu_fits_pictures_and_gives_the_chunks_of_lerobot(engines, family):
    """Recorded or not; single products may be rounded to fewer bits there."""
    backend = open_cuda_backend()
    wanted = REFERENCES[family][0]["all_normalised"]
    with PolicyRuntime(engines[family], backend=backend) as runtime:
        for _ in range(4):
            found = chunk(runtime, family)
            assert scaled_error(found.normalised, wanted) < 1e-2
            assert found.timings["images_ms"] > 0
        assert runtime.recordings.counts.get("vision"), runtime.recordings.report()
    backend.close()
