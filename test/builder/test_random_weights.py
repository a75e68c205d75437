"""An engine of any shape without a checkpoint: seeded, streamed, with a tokenizer that fits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from policy_checkpoints import reference as policy_reference
from seam_runner import SeamRunner
from tiny_families import TINY_FAMILIES

from benchmarks.gpu.policy_shapes import POLICY_SHAPES
from edgellm_ros.action.observation import Observation
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_weights import RandomCheckpoint
from edgellm_ros.cli.main import main
from edgellm_ros.engine_format import open_engine_directory
from edgellm_ros.runtime.tokenizer import Tokenizer


@pytest.fixture
def config_file(tmp_path):
    """Writes a configuration and gives the path of its file."""

    def write(config: dict, name: str = "config.json") -> Path:
        folder = tmp_path / "shape"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(config), encoding="utf-8")
        return folder / name

    return write


@pytest.mark.parametrize("lowering", ["onnxruntime", "tensorrt", "tensorrt_legacy"])
@pytest.mark.parametrize("family", ["smollm3", "gemma3"])
def test_the_command_builds_an_engine_that_runs(config_file, tmp_path, capsys, family, lowering):
    config = config_file(TINY_FAMILIES[family])
    arguments = ["build", "--random-weights", str(config), str(tmp_path / "engine"), "--max-kv", "64"]
    assert main([*arguments, "--lowering", lowering]) == 0
    assert "fp32 engine directory, built in" in capsys.readouterr().out
    directory = open_engine_directory(tmp_path / "engine")
    assert directory.manifest.lowering == lowering
    assert directory.manifest.source.startswith("random weights of seed 0")
    runner = SeamRunner(tmp_path / "engine")
    (logits,) = runner.run([[5, 6, 7]])
    assert np.isfinite(logits).all() and 0.1 < logits.std() < 10
    runner.close()


def test_a_folder_is_as_good_as_its_file_and_equal_seeds_are_not_built_twice(config_file, tmp_path, capsys):
    config = config_file(TINY_FAMILIES["llama"])
    arguments = ["build", "--random-weights", "--seed", "4", "--max-kv", "64"]
    assert main([*arguments, str(config), str(tmp_path / "engine")]) == 0
    assert main([*arguments, str(config.parent), str(tmp_path / "engine")]) == 0
    assert "was built already" in capsys.readouterr().out


def test_seeds_give_different_weights_and_bands_do_not(tmp_path):
    config = {**TINY_FAMILIES["gemma2"], "vocab_size": 700}
    first, again, other = (RandomCheckpoint(config, seed) for seed in (1, 1, 2))
    for name, shape in first.shapes.items():
        whole = first.read_rows(name, 0, shape[0])
        assert whole.shape == shape and whole.dtype == np.float32
        cut = [again.read_rows(name, start, min(start + 7, shape[0])) for start in range(0, shape[0], 7)]
        assert (np.concatenate(cut) == whole).all()
        assert (other.read_rows(name, 0, shape[0]) != whole).any()
    norms = first.read_rows("model.norm.weight", 0, 40)
    assert abs(norms.mean()) < 0.2  # stored as the distance from one


def test_the_tokenizer_speaks_in_bytes_and_covers_the_vocabulary(config_file, tmp_path):
    config = config_file({**TINY_FAMILIES["qwen2"], "vocab_size": 1000})
    engine = build_engine(config, tmp_path / "engine", random_seed=0)
    tokenizer = Tokenizer.from_directory(engine)
    ids = tokenizer.encode("Grüß dich, 世界!\n")
    assert b"".join(tokenizer.token_bytes(token) for token in ids) == "Grüß dich, 世界!\n".encode()
    assert all(tokenizer.token_bytes(token) is not None for token in range(1000))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_policy_of_a_shape_alone_acts(tmp_path, precision):
    folder = policy_reference("smolvla")[0]
    (tmp_path / "shape" / "vlm").mkdir(parents=True)
    for name in ("config.json", "vlm/config.json"):
        shutil.copyfile(folder / name, tmp_path / "shape" / name)
    command = ["build", "--random-weights", str(tmp_path / "shape"), str(tmp_path / "engine"), "--precision", precision]
    assert main(command) == 0
    with PolicyRuntime(tmp_path / "engine", threads=1) as runtime:
        assert runtime.manifest.policy == "random weights of seed 0, shape of smolvla"
        pictures = {slot.name: np.full((24, 32, 3), 90, np.uint8) for slot in runtime.manifest.cameras}
        chunk = runtime.compute(Observation(pictures, np.zeros(runtime.manifest.state.width)), "go", denoise_steps=2)
    assert chunk is not None and np.isfinite(chunk.rows).all() and 0.05 < chunk.rows.std() < 20


def test_a_policy_of_a_shape_alone_drives(tmp_path):
    shape = POLICY_SHAPES["alpamayo"].checkpoint(tmp_path / "shape", tiny=True)
    engine = build_engine(shape, tmp_path / "engine", random_seed=3)
    assert open_engine_directory(engine).manifest.source == "random weights of seed 3, shape of alpamayo_r1"
    (shape / "vlm" / "config.json").write_text(
        (shape / "vlm" / "config.json").read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05')
    )
    other = build_engine(shape, tmp_path / "other", random_seed=3)
    with PolicyRuntime(engine, threads=1) as runtime, PolicyRuntime(other, threads=1) as changed:
        driving, found = runtime.manifest.driving, []
        pictures = {slot.name: np.full((4, 24, 32, 3), 90, np.uint8) for slot in runtime.manifest.cameras}
        for opened in (runtime, changed):
            opened.reasoning_tokens = 5
            seen = Observation(pictures, np.zeros(0), history=np.zeros((driving.history.points, 3)))
            found.append(opened.compute(seen, "go"))
    assert found[0].reasoning and np.isfinite(found[0].rows).all() and 0.001 < found[0].normalised.std() < 20
    assert not np.array_equal(found[0].normalised, found[1].normalised)


REFUSED = {
    "nothing there": (None, "config.json"),
    "a quantised shape": ({**TINY_FAMILIES["llama"], "quantization_config": {"quant_method": "fp8"}}, "'fp8'"),
    "a vocabulary without room for bytes": ({**TINY_FAMILIES["llama"], "vocab_size": 100}, "vocab_size is 100"),
    "a policy whose sizes are elsewhere": ({"model_type": "alpamayo_r1"}, "put that model's config.json at"),
    "a policy with an unknown expert": ({"type": "pi05", "output_features": {}}, "has the action_expert_variant None"),
    "a policy of another kind": ({"type": "act", "output_features": {}}, "in one pass"),
    "another architecture": ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_built_is_one_sentence_and_exit_status_2(config_file, tmp_path, capsys, case):
    config, sentence = REFUSED[case]
    path = tmp_path / "config.json" if config is None else config_file(config)
    assert main(["build", "--random-weights", str(path), str(tmp_path / "engine")]) == 2
    error = capsys.readouterr().err
    assert sentence in error and len(error.strip().splitlines()) == 1
    assert not (tmp_path / "engine").exists()


def test_a_negative_seed_and_an_unknown_lowering_are_refused(config_file, tmp_path, capsys):
    config = config_file(TINY_FAMILIES["llama"])
    place = str(tmp_path / "engine")
    assert main(["build", "--random-weights", "--seed", "-1", str(config), place]) == 2
    assert "seed is -1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["build", str(config), place, "--lowering", "abacus"])
