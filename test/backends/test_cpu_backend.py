"""The CPU backend's own promises: probes, threads, memory, and what it does with damaged files."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from backend_driver import BackendDriver
from tiny_graph import HEAD_SIZE, KV_HEADS, LAYERS, tiny_config, write_embeddings, write_tiny_model

from edgellm_ros.backends.base import CacheLayout, DataType
from edgellm_ros.backends.cpu_threads import physical_cores
from edgellm_ros.backends.registry import open_backend
from edgellm_ros.engine_format import EMBEDDING_FILE, GRAPH_FILE
from edgellm_ros.errors import BackendError, EngineDirectoryError

pytest.importorskip("onnxruntime")

from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.backends.cpu_engine import CPUEngine
from edgellm_ros.backends.cpu_kv_cache import CPUKVCache
from edgellm_ros.backends.cpu_probe import keys_in_window, probe

PROMPT = [1, 5, 9, 33, 7]


# ---- probes


def test_a_sound_graph_can_run_ragged_chunks(tmp_path: Path) -> None:
    engine = CPUBackend(1).open_engine(write_tiny_model(tmp_path))
    assert engine.capabilities.ragged_chunks
    assert not engine.capabilities.interval_mask
    assert engine.capabilities.capture
    assert engine.capabilities.cache_dtypes == (DataType.FLOAT32,)
    assert "ragged_chunk_error" in engine.capabilities.details


def test_a_graph_that_ignores_the_query_length_is_not_used_for_ragged_chunks(tmp_path: Path) -> None:
    for name, switches in (("ignored", {"ignore_query": True}), ("absent", {"ragged": False})):
        engine = CPUBackend(1).open_engine(write_tiny_model(tmp_path / name, **switches))
        assert not engine.capabilities.ragged_chunks
        assert "chunk_error" in engine.capabilities.details


@pytest.mark.parametrize(
    ("switches", "sentence"),
    [({"ignore_past": True}, "in chunks gives other logits"), ({"broken_weights": True}, "not finite")],
    ids=["past length ignored", "NaN weights"],
)
def test_a_graph_whose_numbers_cannot_be_relied_on_is_refused(
    tmp_path: Path, switches: dict[str, bool], sentence: str
) -> None:
    with pytest.raises(BackendError, match=f"probe.*{sentence}"):
        CPUBackend(1).open_engine(write_tiny_model(tmp_path, **switches))


def test_an_engine_that_is_refused_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[CPUEngine] = []
    monkeypatch.setattr(CPUEngine, "close", lambda engine: closed.append(engine))
    with pytest.raises(BackendError, match="probe"):
        CPUBackend(1).open_engine(write_tiny_model(tmp_path / "probe", ignore_past=True))
    with pytest.raises(BackendError, match=r"config\.json wants"):
        CPUBackend(1).open_engine(write_tiny_model(tmp_path / "caches"), cache_layout=CacheLayout(((1, 2),)))
    assert len(closed) == 2


def test_a_cache_that_is_not_written_in_place_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = CPUKVCache.__init__
    copies: list[list[np.ndarray]] = []  # kept: the engine holds their addresses

    def forgetful(self: CPUKVCache, layout: CacheLayout, rows: int, capacity: int, **order: bool) -> None:
        honest(self, layout, rows, capacity, **order)

        class Fresh(list[np.ndarray]):
            def __iter__(self):  # type: ignore[no-untyped-def]
                copies.append([array.copy() for array in list.__iter__(self)])
                return iter(copies[-1])

        self.arrays = Fresh(self.arrays)

    engine = CPUEngine(write_tiny_model(tmp_path), 1)
    monkeypatch.setattr(CPUKVCache, "__init__", forgetful)
    with pytest.raises(BackendError, match="in chunks gives other logits"):
        probe(engine)


def test_the_window_probe_counts_the_keys_that_a_query_sees() -> None:
    seen = [keys_in_window(size) for size in (2, 4, 7)]
    assert seen in ([2, 4, 7], [3, 5, 8])  # exclusive or inclusive: versions differ


def test_a_graph_built_for_another_meaning_of_the_window_is_refused(tmp_path: Path) -> None:
    seen = keys_in_window(4)
    right = {"sliding_window": str(508 + seen), "local_window_size": "512"}
    engine = CPUBackend(1).open_engine(write_tiny_model(tmp_path / "right", metadata=right))
    assert engine.capabilities.window == 508 + seen
    wrong = {"sliding_window": str(507 + seen), "local_window_size": "512"}
    with pytest.raises(BackendError, match=f"see {508 + seen} keys"):
        CPUBackend(1).open_engine(write_tiny_model(tmp_path / "wrong", metadata=wrong))
    with pytest.raises(BackendError, match="whole numbers"):
        CPUBackend(1).open_engine(write_tiny_model(tmp_path / "half", metadata={"sliding_window": "512"}))


def test_a_probe_leaves_nothing_bound(tmp_path: Path) -> None:
    engine = CPUBackend(1).open_engine(write_tiny_model(tmp_path))
    with pytest.raises(BackendError, match="not bound"):
        engine.run({"inputs_embeds": (1, 1, 64)})


# ---- files


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "noise"])
def test_a_damaged_graph_is_refused_by_name(tmp_path: Path, damage: str, capfd: pytest.CaptureFixture[str]) -> None:
    graph = write_tiny_model(tmp_path) / GRAPH_FILE
    content = graph.read_bytes()
    graph.unlink()
    if damage != "missing":
        graph.write_bytes({"empty": b"", "truncated": content[: len(content) // 2], "noise": b"\x07" * 999}[damage])
    with pytest.raises(BackendError, match=str(graph)):
        CPUBackend(1).open_engine(tmp_path)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["past_length", "logits", "past_key_0"])
def test_a_graph_whose_names_are_no_text_is_refused_and_nothing_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    graph = write_tiny_model(tmp_path) / GRAPH_FILE
    graph.write_bytes(graph.read_bytes().replace(name.encode(), name.encode()[:-1] + b"\xff"))
    with pytest.raises(BackendError, match="names that are no text"):
        CPUBackend(1).open_engine(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_caches_that_differ_from_the_configuration_are_refused(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    with pytest.raises(BackendError, match=r"config\.json"):
        CPUBackend(1).open_engine(tmp_path, cache_layout=CacheLayout(((KV_HEADS, HEAD_SIZE),) * (LAYERS + 1)))


def test_a_failing_run_says_so_in_one_line_and_only_as_an_exception(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    driver = BackendDriver(CPUBackend(1), write_tiny_model(tmp_path), tiny_config())
    wanted = driver.answer(PROMPT, 5)
    first = driver.start(0, PROMPT)
    shapes = driver.shapes(1, 1)
    driver.tensors["query_length"].prefix((1,)).write(np.array([9], dtype=np.int32))
    with pytest.raises(BackendError, match="ONNX Runtime failed") as caught:
        driver.engine.run(shapes)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""
    assert [first, *driver.advance([first], 4)[0]] == wanted


# ---- embeddings


def bfloat16(values: np.ndarray) -> np.ndarray:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "I8"])
def test_rows_of_every_element_type_are_gathered_as_float32(tmp_path: Path, kind: str) -> None:
    values = (np.arange(-60, 60, dtype=np.float32) / 4).reshape(20, 6)
    scales = np.linspace(0.5, 2.0, 20, dtype=np.float32)
    tensors = {
        "F32": {"embedding": ("F32", values)},
        "F16": {"embedding": ("F16", values.astype(np.float16))},
        "BF16": {"embedding": ("BF16", bfloat16(values))},
        "I8": {"embedding": ("I8", (values * 4).astype(np.int8)), "embedding_row_scale": ("F32", scales)},
    }[kind]
    wanted = values * 4 * scales[:, None] if kind == "I8" else values
    path = tmp_path / EMBEDDING_FILE
    write_embeddings(path, tensors)
    backend = CPUBackend(1)
    table = backend.open_embeddings(path, scale=3.0)
    assert table.shape == (20, 6)
    ids, out = backend.allocate((2, 2), DataType.INT32), backend.allocate((2, 2, 6), DataType.FLOAT32)
    ids.write(np.array([[3, 19], [0, 3]], dtype=np.int32))
    backend.gather_embeddings(table, ids, out)
    assert np.array_equal(out.numpy(), 3 * wanted[[[3, 19], [0, 3]]])


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:100],
        lambda content: content[:-1],
        lambda content: b"",
        lambda content: b"\xff" * 8 + content[8:],
        lambda content: content.replace(b'"embedding"', b'"embossing"'),
        lambda content: content.replace(b'"F32"', b'"F99"'),
        lambda content: content.replace(b"[20, 6]", b"[20, 7]"),
        lambda content: content.replace(b"[20, 6]", b"[   120]"[1:]),
        lambda content: content.replace(b"{", b"[", 1),
    ],
    ids=["header cut", "data cut", "empty", "length", "name", "type", "shape", "axes", "json"],
)
def test_a_damaged_embedding_file_is_refused_by_name(tmp_path: Path, damage: object) -> None:
    path = tmp_path / EMBEDDING_FILE
    write_embeddings(path, {"embedding": ("F32", np.zeros((20, 6), dtype=np.float32))})
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(EngineDirectoryError, match=str(path)):
        CPUBackend(1).open_embeddings(path)


# ---- memory and threads


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024


def test_a_large_cache_takes_only_the_memory_that_is_used(tmp_path: Path) -> None:
    backend = CPUBackend(1)
    before = resident_bytes()
    cache = backend.allocate_kv_cache(CacheLayout(((8, 128),) * 32), rows=4, capacity=32768)
    assert cache.nbytes == cache.bytes_per_position * 4 * 32768 > 30 * 2**30
    cache.import_block(2, 100, cache.export_block(0, 100, 16))
    assert resident_bytes() - before < 64 * 2**20


def test_a_cache_of_a_type_that_the_backend_lacks_is_refused() -> None:
    with pytest.raises(BackendError, match="int8"):
        CPUBackend(1).allocate_kv_cache(CacheLayout(((1, 8),), DataType.INT8), 1, 16)


def test_half_precision_caches_move_and_travel() -> None:
    cache = CPUBackend(1).allocate_kv_cache(CacheLayout(((2, 8), (1, 4)), DataType.FLOAT16), 2, 16)
    assert cache.bytes_per_position == 2 * (16 + 4) * 2
    for array in cache.arrays:
        array[1] = np.random.default_rng(0).normal(size=array[1].shape)
    block = cache.export_block(1, 3, 4)
    cache.copy_row(1, 0, 7)
    for array in cache.arrays:
        assert np.array_equal(array[0, :, :7], array[1, :, :7])
        assert not array[0, :, 7:].any()
    cache.import_block(0, 10, block)
    for array in cache.arrays:
        assert np.array_equal(array[0, :, 10:14], array[1, :, 3:7])


def test_other_threads_of_the_process_go_on_during_a_run(tmp_path: Path) -> None:
    driver = BackendDriver(CPUBackend(1), write_tiny_model(tmp_path), tiny_config())
    driver.start(0, PROMPT)
    shapes = driver.shapes(1, len(PROMPT))
    driver.tensors["past_length"].prefix((1,)).write(np.zeros(1, dtype=np.int32))
    started, counted = threading.Event(), threading.Event()

    def count() -> None:
        started.set()
        for _ in range(1000):
            pass
        counted.set()

    thread = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100.0)  # from here on only a call that lets go of the interpreter lets another thread run
    try:
        thread.start()
        started.wait(10)
        for _ in range(5000):
            driver.engine.run(shapes)
            if counted.is_set():
                break
        else:
            pytest.fail("the run never let go of the interpreter")
    finally:
        sys.setswitchinterval(interval)
        thread.join(10)


def test_closing_ends_a_run_in_another_thread(tmp_path: Path) -> None:
    driver = BackendDriver(CPUBackend(1), write_tiny_model(tmp_path), tiny_config())
    running, outcome = threading.Event(), []

    def run_for_ever() -> None:
        shapes = driver.shapes(4, 64)
        driver.tensors["query_length"].write(np.full(4, 64, dtype=np.int32))
        try:
            while True:
                driver.engine.run(shapes)
                running.set()
        except BackendError as error:
            outcome.append(str(error))

    thread = threading.Thread(target=run_for_ever, daemon=True)
    thread.start()
    assert running.wait(30)
    driver.backend.close()
    thread.join(30)
    assert len(outcome) == 1


def test_bindings_of_many_shapes_are_not_kept_for_ever(tmp_path: Path) -> None:
    driver = BackendDriver(CPUBackend(1), write_tiny_model(tmp_path), tiny_config(), rows=4, chunk=64)
    for row in range(4):
        for length in range(1, 60):
            driver.start(row, [1] * length)
    assert len(driver.engine._bindings) <= 64


def test_cores_are_counted_without_siblings_and_within_a_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3, 6}, raising=False)
    for number in range(8):
        topology = tmp_path / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text("0\n")
        (topology / "core_id").write_text(f"{number // 2}\n")
    quota = tmp_path / "cpu.max"
    assert physical_cores(tmp_path, quota) == 3
    quota.write_text("max 100000\n")
    assert physical_cores(tmp_path, quota) == 3
    quota.write_text("150000 100000\n")
    assert physical_cores(tmp_path, quota) == 2
    quota.write_text("10000 100000\n")
    assert physical_cores(tmp_path, quota) == 1
    assert physical_cores(tmp_path / "absent", quota) == 1


def test_zero_threads_means_the_cores_of_the_machine() -> None:
    assert open_backend("onnxruntime").threads == physical_cores()  # type: ignore[attr-defined]
    assert open_backend("onnxruntime", threads=3).threads == 3  # type: ignore[attr-defined]
