"""Plans of policies on a pretended GPU: which graphs have one, for which shapes, and the chunks that they give."""

from __future__ import annotations

import shutil

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")

from fake_cuda import FakeDriver
from fake_libraries import fake_tensorrt
from policy_checkpoints import REFERENCE, observation, reference, scaled_error
from pretend_gpu import compile_pretended, pretend_backend

from edgellm_ros.action.observation import Observation
from edgellm_ros.action.policy_manifest import read_policy_manifest
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.backends.cuda.plan_file import main_plan, plan_of
from edgellm_ros.backends.cuda.tensorrt_api import TensorRT
from edgellm_ros.backends.registry import open_backend
from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.policy_profiles import policy_profile
from edgellm_ros.cli.main import main
from edgellm_ros.engine_format import open_engine_directory
from edgellm_ros.errors import BackendError
from edgellm_ros.vision.visual_directory import open_visual_directory

FAMILIES = ("smolvla", "pi0", "pi05", "groot")
LOWERINGS = {"tensorrt": "10.15.0", "tensorrt_legacy": "8.5.3.1"}


def settings(root, family):
    (root / "robot.yaml").write_text("embodiment: libero_sim\n")
    return root / "robot.yaml" if family == "groot" else None


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Engine directories with plans, and what the compiler was asked, by family and lowering; made when asked for."""
    made = {}

    def get(family, lowering="tensorrt_legacy", precision="fp32"):
        key = family, lowering, precision
        if key not in made:
            root = tmp_path_factory.mktemp(f"{family}_{lowering}_{precision}")
            path = build_engine(
                REFERENCE / family, root / "engine", lowering=lowering, precision=precision,
                policy_settings=settings(root, family),
            )  # fmt: skip
            made[key] = path, compile_pretended(path, LOWERINGS[lowering]).built
        return made[key]

    return get


def graphs(path):
    found = [path / "visual" / "visual.onnx", *(path / "action").glob("*.onnx")]
    return [*found, *path.glob("llm.onnx")]


def opened(path, lowering="tensorrt_legacy"):
    return PolicyRuntime(path, backend=pretend_backend("tensorrt", LOWERINGS[lowering]))


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_graph_has_a_plan_and_chunks_are_those_of_lerobot(compiled, family, lowering):
    path, built = compiled(family, lowering)
    assert {network.path for network, _ in built} == {str(graph) for graph in graphs(path)}
    assert all(plan_of(graph).is_file() for graph in graphs(path)) and main_plan(path).is_file()
    assert built[-1][0].path.endswith("action.onnx")  # the plan by which a directory counts as compiled comes last
    assert not compile_pretended(path, LOWERINGS[lowering]).built
    _, arrays, cases = reference(family)
    robot = cases["all"].get("embodiment")
    with opened(path, lowering) as runtime:
        fewest = len(runtime.manifest.cameras) - runtime.manifest.empty_cameras
        for case, row in cases.items():
            if row.get("embodiment") == robot and len(row["cameras"]) >= fewest and case != "long":
                for _ in range(3):  # the third is replayed
                    chunk = runtime.compute(
                        observation(arrays, case, row["cameras"]), row["task"], noise=arrays[f"{case}_noise"],
                        denoise_steps=row["steps"],
                    )  # fmt: skip
                    assert scaled_error(chunk.normalised, arrays[f"{case}_normalised"]) < 1e-5, case
        assert runtime.recordings.counts["denoise"] >= 1 and not runtime.recordings.failures


def test_half_precision_plans_stay_near_and_ask_for_it_where_types_are_the_compilers_choice(compiled):
    path, built = compiled("smolvla", precision="fp16")
    assert all(config.flags == {"fp16"} for _, config in built)
    _, arrays, cases = reference("smolvla")
    with opened(path) as runtime:
        row = cases["all"]
        chunk = runtime.compute(
            observation(arrays, "all", row["cameras"]), row["task"], noise=arrays["all_noise"],
            denoise_steps=row["steps"],
        )  # fmt: skip
    ours, wanted = chunk.normalised.ravel(), arrays["all_normalised"].ravel()
    assert ours @ wanted / np.linalg.norm(ours) / np.linalg.norm(wanted) > 0.999


def shapes(built, name):
    (config,) = [config for network, config in built if network.path.endswith(f"{name}.onnx")]
    (profile,) = config.profiles
    return profile.shapes


def test_shapes_of_a_prefix_policy_follow_its_manifest(compiled):
    path, built = compiled("smolvla")
    manifest = read_policy_manifest(path / "action")
    cameras, rows = len(manifest.cameras), len(manifest.cameras) * manifest.image_tokens
    longest = rows + manifest.prompt_tokens
    pixels = shapes(built, "visual")["pixel_values"]
    assert [size[0] for size in pixels] == [1, cameras, cameras]
    prefix, action = shapes(built, "prefix"), shapes(built, "action")
    assert [size[1] for size in prefix["prefix_embeds"]] == [1, rows + min(16, manifest.prompt_tokens), longest]
    assert [size[1] for size in prefix["attend_end"]][::2] == [2, longest + 1]  # the state stands behind
    assert [size[3] for size in action["prefix_key_0"]][::2] == [2, longest + 1]
    assert [size[2] for size in action["prefix_value_0"]][::2] == [2, longest + 1]
    assert action["x_t"][0] == action["x_t"][2] and action["attend_end"][0] == action["attend_end"][2]


def test_shapes_of_a_context_policy_leave_room_for_wide_pictures(compiled):
    path, built = compiled("groot")
    manifest = read_policy_manifest(path / "action")
    tokens, cameras = manifest.image_tokens, len(manifest.cameras)
    merge = open_visual_directory(path / "visual").tower.spatial_merge_size
    pixels = shapes(built, "visual")["pixel_values"]
    assert [size[:2] for size in pixels] == [(1, merge**2), (1, tokens * merge**2), (1, 2 * tokens * merge**2)]
    assert [size[0] for size in shapes(built, "prefix")["image_rows"]] == [1, cameras * tokens, 2 * cameras * tokens]
    text = [size[0] for size in shapes(built, "prefix")["text_rows"]]
    assert text[0] == 1 and text[2] == manifest.prompt_tokens + 64
    assert shapes(built, "prefix")["prefix_embeds"][2][1] == text[2] + 2 * cameras * tokens
    keys = next(name for name in shapes(built, "action") if name.startswith("text_key"))
    assert [size[3] for size in shapes(built, "action")[keys]] == text


def test_a_picture_beyond_the_plan_is_refused_with_the_range(compiled):
    path, _ = compiled("groot")
    _, arrays, cases = reference("groot")
    wide = {name: np.zeros((40, 400, 3), np.uint8) for name in cases["all"]["cameras"]}
    with opened(path) as runtime, pytest.raises(BackendError, match=r"was run with shape .*; the plan takes .* to"):
        runtime.compute(Observation(wide, arrays["all_state"]), "go", noise=arrays["all_noise"])


@pytest.mark.parametrize(("name", "shape"), [("mask", (1, -1)), ("velocity", (-1,)), ("prefix_key_0", (-1, 2, 4, -1))])
def test_an_input_of_unknown_shape_is_refused(compiled, name, shape):
    path, _ = compiled("smolvla")
    with pytest.raises(BackendError, match="varies where this version knows no range"):
        policy_profile(read_policy_manifest(path / "action"), open_engine_directory(path).config.limits)(name, shape)


def test_a_directory_without_the_plan_of_its_actions_is_passed_over(compiled, tmp_path):
    path = shutil.copytree(compiled("smolvla")[0], tmp_path / "engine")
    (path / "action" / "action.engine").unlink()
    passed_over: list[str] = []
    open_backend("auto", directory=open_engine_directory(path), passed_over=passed_over).close()
    assert passed_over[0].startswith("tensorrt: the engine directory has no action/action.engine")
    with pytest.raises(BackendError, match=r"action\.engine is missing; compile it again"):
        opened(path)


def test_the_command_builds_a_policy_with_all_its_plans(tmp_path, monkeypatch, capsys):
    from pretend_gpu import pretend_device

    driver = FakeDriver()
    module = fake_tensorrt(driver, "10.15.0")
    monkeypatch.setattr("edgellm_ros.builder.tensorrt_build.TensorRT", lambda: TensorRT(module))
    monkeypatch.setattr("edgellm_ros.builder.tensorrt_build.Device", lambda: pretend_device(driver))
    out = tmp_path / "engine"
    options = ["--precision", "fp16", "--lowering", "tensorrt", "--plan"]
    assert main(["build", str(REFERENCE / "pi05"), str(out), *options]) == 0
    assert "fp16 engine directory with its plan" in capsys.readouterr().out
    found = {str(plan.relative_to(out)) for plan in out.rglob("*.engine")}
    assert found == {"visual/visual.engine", "action/prefix.engine", "action/action.engine", "action/time.engine"}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_graph_makes_numbers_of_a_shape_on_the_host_that_a_recording_would_keep(compiled, family):
    for graph in graphs(compiled(family)[0]):
        if graph.parent.name == "action":
            made = {node.op_type for node in onnx.load(graph, load_external_data=False).graph.node}
            assert not made & {"Range", "ConstantOfShape", "NonZero"}, graph
