"""Compiled kernels on disk: found again, never when something differs, and made anew when damaged."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_cuda import FakeCompiler
from pretend_gpu import pretend_device

from edgellm_ros.backends.cuda.kernel_cache import KernelCache, default_folder
from edgellm_ros.backends.cuda.kernels import OPTIONS, SIGNATURES, Compiler, Kernels
from edgellm_ros.errors import BackendError

SOURCE = "__global__ void kernel() {}"


class Counter:
    """A compiler's stand-in that counts its calls."""

    def __init__(self, binary: bytes = b"machine code") -> None:
        self.calls = 0
        self._binary = binary

    def __call__(self) -> bytes:
        self.calls += 1
        return self._binary


def key(source: str = SOURCE, architecture: str = "sm_90", compiler: str = "nvrtc 13.0") -> str:
    return KernelCache.key(source, architecture, OPTIONS, compiler)


def test_a_second_start_compiles_nothing(tmp_path: Path) -> None:
    counter = Counter()
    for _ in range(3):
        assert KernelCache(tmp_path / "new" / "folder").get(key(), counter) == b"machine code"
    assert counter.calls == 1
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == [f"{key()}.bin"]


def test_entries_differ_by_everything_that_went_into_them() -> None:
    keys = {
        key(),
        key(source=SOURCE + " "),
        key(architecture="sm_87"),
        key(compiler="nvrtc 12.9"),
        KernelCache.key(SOURCE, "sm_90", (*OPTIONS, "-G"), "nvrtc 13.0"),
    }
    assert len(keys) == 5


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1], lambda data: data[:20], lambda data: b"", lambda data: data[:-1] + b"?",
     lambda data: b"X" + data[1:]],
    ids=["cut", "cut in the head", "empty", "changed", "no cache entry"],
)  # fmt: skip
def test_a_damaged_entry_is_compiled_again(tmp_path: Path, damage: object) -> None:
    cache, counter = KernelCache(tmp_path), Counter()
    cache.get(key(), counter)
    path = tmp_path / f"{key()}.bin"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert cache.get(key(), counter) == b"machine code"
    assert cache.get(key(), counter) == b"machine code"
    assert counter.calls == 2


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    counter = Counter()
    for _ in range(2):
        assert KernelCache(tmp_path / "file" / "folder").get(key(), counter) == b"machine code"
    assert counter.calls == 2


@pytest.mark.parametrize("value", ["", "relative/path"], ids=["unset", "relative"])
def test_the_cache_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "edgellm_ros" / "kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert default_folder() == Path.home() / ".cache" / "edgellm_ros" / "kernels"


@pytest.mark.parametrize(
    ("architecture", "target"), [("sm_90", b"sm_90"), ("sm_87", b"compute_80"), ("sm_120", b"compute_90")]
)
def test_a_gpu_that_the_compiler_does_not_know_gets_code_of_the_nearest_older_one(
    architecture: str, target: bytes
) -> None:
    fake = FakeCompiler()
    assert Compiler(fake).compile("kernel.cu", SOURCE, architecture) == b"kernel.cu"
    assert fake.compiled == [("kernel.cu", b"--gpu-architecture=" + target)]


def test_what_the_compiler_refuses_is_told_in_its_words() -> None:
    compiler = Compiler(FakeCompiler())
    with pytest.raises(BackendError, match=r"kernel.cu does not compile for sm_90: .*expected a declaration"):
        compiler.compile("kernel.cu", "a syntax error", "sm_90")
    with pytest.raises(BackendError, match="cannot compile for sm_53"):
        compiler.compile("kernel.cu", SOURCE, "sm_53")


def test_a_missing_compiler_library_is_named() -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("libnvrtc.so.13 cannot be opened")

    with pytest.raises(BackendError, match="pip install nvidia-cuda-nvrtc"):
        _ = Compiler(SimpleNamespace(nvrtcVersion=fail)).version


def test_each_source_is_compiled_once_and_when_first_needed(tmp_path: Path) -> None:
    fake, device = FakeCompiler(), pretend_device()
    kernels = Kernels(device, KernelCache(tmp_path), Compiler(fake))
    assert not fake.compiled
    for name in ("advance", "rope_tables", "advance"):
        assert kernels[name] is kernels[name]
    assert [name for name, _ in fake.compiled] == ["kernels.cu"]
    for functions in SIGNATURES.values():
        for name in functions:
            assert kernels[name]
    assert sorted(name for name, _ in fake.compiled) == sorted(SIGNATURES)
    kernels.close()
    device.close()


def test_every_kernel_of_the_sources_is_declared_with_as_many_arguments() -> None:
    """A signature that differs from its source would hand a kernel another kernel's numbers."""
    folder = Path(Kernels.__module__.replace(".", "/"))
    import edgellm_ros.backends.cuda as package

    for file, functions in SIGNATURES.items():
        source = (Path(package.__path__[0]) / file).read_text(encoding="utf-8")
        found = {}
        for part in source.split('extern "C" __global__ ')[1:]:
            head = part.split("{")[0]
            name = head.split("(")[-2].split()[-1] if "__launch_bounds__" in head else head.split("(")[0].split()[-1]
            found[name] = head.rsplit(")", 1)[0].rsplit("(", 1)[1].count(",") + 1
        assert found == {name: len(signature) for name, signature in functions.items()}, (folder, file)
