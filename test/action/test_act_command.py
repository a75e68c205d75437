"""``edgellm act`` and the files it is given: any bytes at all are read, or refused in one sentence."""

from __future__ import annotations

import io
import json
import random
import re
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from policy_checkpoints import reference, scaled_error

from edgellm_ros.action.noise import noise_digest
from edgellm_ros.backends.fake import FakeScript, write_fake_engine_directory
from edgellm_ros.builder.build import build_engine
from edgellm_ros.cli import act
from edgellm_ros.cli.main import main
from edgellm_ros.errors import ObservationError

FOLDER, ARRAYS, CASES = reference("smolvla")
ROW = CASES["all"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return build_engine(FOLDER, tmp_path_factory.mktemp("act") / "engine")


def observed(**changes):
    images = {name: ARRAYS[f"image_{name}"] for name in ROW["cameras"]}
    found = {"state": ARRAYS["all_state"], **images, **changes}
    return {name: array for name, array in found.items() if array is not None}


def test_an_engine_directory_without_a_policy_is_one_sentence(tmp_path, capsys):
    path = write_fake_engine_directory(tmp_path / "engine", FakeScript(["a"]))
    np.savez(tmp_path / "observation.npz", **observed())
    assert main(["act", str(path), "--observation", str(tmp_path / "observation.npz"), "--task", "go"]) == 2
    assert capsys.readouterr().err.endswith("engine holds no policy; want an engine directory built from one.\n")


def npy(header, data=b"\0" * 64):
    """An .npy file with this header."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header.encode() + b"\n" + data


def described(descr="'<f4'", shape="(3,)"):
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}"


def stored(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


SOUND = stored(np.zeros((3, 4), np.float32))
HEADERS = {
    "more than there is memory": described(shape="(100000000000, 1000)"),
    "more than can be counted": described(shape="(4611686018427387904, 4)"),
    "a negative size": described(shape="(-1, 4)"),
    "a size that is no number": described(shape="(True, 4)"),
    "objects": described("'|O'"),
    "records with objects": described("[('a', '<f4'), ('b', '|O')]"),
    "words": described("'<U3'"),
    "no type": described("()"),
    "a type of types": described("('<f4',)"),
    "no shape": "{'descr': '<f4', 'fortran_order': False}",
    "no end": "{'descr': '<f4', 'fortran_order'",
    "brackets": "(" * 3000,
    "signs": "-" * 5000 + "1",
    "a call": "__import__('os').abort()",
}


@pytest.mark.parametrize("what", HEADERS)
def test_arrays_that_cannot_be_are_refused(tmp_path, what):
    if what == "a negative size" and np.lib.NumpyVersion(np.__version__) < "2.3.0":
        pytest.skip("this NumPy reads such an array as one of all the numbers that there are")
    single, several = tmp_path / "x0.npy", tmp_path / "seen.npz"
    single.write_bytes(npy(HEADERS[what]))
    with zipfile.ZipFile(several, "w") as archive:
        archive.writestr("state.npy", single.read_bytes())
    with pytest.raises(ObservationError, match=r"x0\.npy (cannot be read|holds no array)") as error:
        act.read_array(single)
    assert "pickle" not in str(error.value) and "\n" not in str(error.value)
    if what == "words":
        assert act.read_arrays(several)["state"].dtype.kind == "U"  # and refused as a state
    else:
        with pytest.raises(ObservationError, match=r"seen\.npz cannot be read"):
            act.read_arrays(several)


@pytest.mark.parametrize("read", [act.read_array, act.read_arrays])
def test_a_file_that_is_not_there_is_told_by_its_path_alone(tmp_path, read):
    with pytest.raises(ObservationError) as error:
        read(tmp_path / "none")
    assert str(error.value) == f"{tmp_path / 'none'} cannot be read (No such file or directory); check the path."


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damage_anywhere_is_refused_or_harmless(tmp_path, method):
    random_ = random.Random(method)
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", method) as archive:
        archive.writestr("state.npy", SOUND)
    for sound, path, read in (
        (whole.getvalue(), tmp_path / "seen.npz", act.read_arrays),
        (SOUND, tmp_path / "x0.npy", act.read_array),
    ):
        for _ in range(150):
            damaged = bytearray(sound)
            for _ in range(random_.randint(1, 5)):
                damaged[random_.randrange(len(damaged))] = random_.randrange(256)
            path.write_bytes(damaged[: random_.choice([len(damaged), random_.randrange(len(damaged))])])
            try:
                read(path)
            except ObservationError as error:
                assert "\n" not in str(error)


def test_an_archive_that_unfolds_beyond_the_limit_is_refused_before_it_is_read(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "seen.npz", state=np.zeros(200_000))
    assert (tmp_path / "seen.npz").stat().st_size < 10_000
    monkeypatch.setattr(act, "MOST_BYTES", 100_000)
    monkeypatch.setattr(np, "load", None)
    with pytest.raises(ObservationError, match=r"it holds 1600128 bytes, want 100000 at most"):
        act.read_arrays(tmp_path / "seen.npz")


def test_an_entry_that_is_no_array_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "seen.npz", "w") as archive:
        archive.writestr("state", "five")
    with pytest.raises(ObservationError, match="holds 'state', which is no array"):
        act.read_arrays(tmp_path / "seen.npz")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"state": None}, "has no array 'state'"),
        ({"state": np.zeros(4)}, r"state has shape \(4,\)"),
        ({"state": np.zeros((1, 5))}, r"state has shape \(1, 5\)"),
        ({"state": np.full(5, np.nan)}, "is nan; want a finite number"),
        ({"state": np.full(5, 1e300)}, "beyond any number that the policy can read"),
        ({"state": np.zeros(5, complex)}, "'state' is complex128; want numbers"),
        ({"state": np.zeros(5, bool)}, "'state' is bool; want numbers"),
        ({"state": np.zeros(5, "M8[s]")}, "want numbers"),
        ({"history": np.zeros((16, 3))}, "has a history, and this policy takes none"),
        ({"top": None, "wrist": None}, "is missing"),
        ({"bottom": np.zeros((4, 4, 3), np.uint8)}, "has no camera 'bottom'"),
        ({"top": np.zeros((4, 4, 3))}, "want uint8 RGB"),
        ({"top": np.zeros((4, 4), np.uint8)}, "want uint8 RGB"),
        ({"top": np.zeros((4, 4, 4), np.uint8)}, "want uint8 RGB"),
        ({"top": np.zeros((0, 4, 3), np.uint8)}, ""),
    ],
)
def test_observations_that_do_not_fit_are_one_sentence(engine, tmp_path, capsys, changes, sentence):
    np.savez(tmp_path / "seen.npz", **observed(**changes))
    assert main(["act", str(engine), "--observation", str(tmp_path / "seen.npz"), "--task", "touch"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "Traceback" not in said
    assert re.search(sentence, said), said


@pytest.mark.parametrize(
    "noise",
    [
        np.zeros((7, 4)), np.zeros(56), np.full((7, 8), np.nan), np.full((7, 8), np.inf), np.full((7, 8), 1e300),
        np.zeros((7, 8), complex), np.zeros((7, 8), bool), np.array("words"), np.zeros((0, 8)),
    ],
)  # fmt: skip
def test_noise_that_does_not_fit_is_one_sentence(engine, tmp_path, capsys, noise):
    np.savez(tmp_path / "seen.npz", **observed())
    np.save(tmp_path / "x0.npy", noise)
    files = ["--observation", str(tmp_path / "seen.npz"), "--noise", str(tmp_path / "x0.npy")]
    assert main(["act", str(engine), *files, "--task", "touch"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and ("noise has shape" in said or "no array of numbers" in said), said


@pytest.mark.parametrize("kind", ["<f8", ">f4", "<f2", "<i4"])
def test_noise_of_any_kind_of_number_will_do(engine, tmp_path, capsys, kind):
    np.savez(tmp_path / "seen.npz", **observed())
    np.save(tmp_path / "x0.npy", np.ones((7, 8), kind))
    files = ["--observation", str(tmp_path / "seen.npz"), "--noise", str(tmp_path / "x0.npy")]
    assert main(["act", str(engine), *files, "--task", "touch", "--json"]) == 0
    assert "actions_normalized" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--steps", "-1"], "denoise_steps is -1"),
        (["--steps", "101"], "denoise_steps is 101"),
        (["--noise-seed", str(2**31)], "want a whole number from -2147483648"),
        (["--temperature", "1"], "this one says nothing"),
        (["--task", ""], "the task is empty"),
        (["--task", "move " * 100], "say it in fewer words"),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(engine, tmp_path, capsys, options, sentence):
    np.savez(tmp_path / "seen.npz", **observed())
    files = ["--observation", str(tmp_path / "seen.npz")]
    assert main(["act", str(engine), *files, "--task", "touch", *options]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and sentence in said


@pytest.mark.parametrize("case", ["all", "missing"])
def test_the_command_prints_the_chunk(engine, tmp_path, case):
    row = CASES[case]
    images = {f"observation.images.{name}": ARRAYS[f"image_{name}"] for name in row["cameras"]}
    np.savez(tmp_path / "obs.npz", state=ARRAYS[f"{case}_state"], **images)
    np.save(tmp_path / "x0.npy", ARRAYS[f"{case}_noise"])
    command = [
        sys.executable,
        "-m",
        "edgellm_ros.cli.main",
        "act",
        str(engine),
        "--json",
        "--threads",
        "1",
    ]
    command += ["--observation", str(tmp_path / "obs.npz"), "--task", row["task"], "--noise", str(tmp_path / "x0.npy")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    printed = json.loads(done.stdout)
    assert scaled_error(np.array(printed["actions"]), ARRAYS[f"{case}_actions"]) < 1e-5
    assert scaled_error(np.array(printed["actions_normalized"]), ARRAYS[f"{case}_normalised"]) < 1e-5
    assert printed["x0_digest"] == noise_digest(ARRAYS[f"{case}_noise"]) and printed["timings"]["total_ms"] > 0


def test_the_command_refuses_bad_files_in_one_sentence(engine, tmp_path, capsys):
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "empty.npz", other=np.zeros(3))
    np.savez(tmp_path / "words.npz", state=np.array(["a"] * 5))
    np.savez(tmp_path / "objects.npz", state=np.array([{}], dtype=object))
    for name in ("text", "empty", "words", "objects", "missing"):
        path = tmp_path / f"{name}.npz"
        assert main(["act", str(engine), "--observation", str(path), "--task", "touch"]) == 2, name
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "pickle" not in said, said
    assert main(["act", str(tmp_path), "--observation", str(tmp_path / "empty.npz")]) == 2
