"""The runtime's executor on a pretended GPU: the CPU's tokens, steps recorded whole, and failures that pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")

import fake_kernels
from fake_cuda import FakeDriver
from pretend_gpu import pretend_backend

from edgellm_ros.backends.base import SamplingRow
from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.backends.cuda.backend import CUDABackend
from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_weights import write_random_llama_checkpoint
from edgellm_ros.engine_format import BuilderLimits, open_engine_directory
from edgellm_ros.errors import BackendError
from edgellm_ros.runtime.executor import ModelExecutor

PROMPT = [5, 9, 200, 17, 33, 8, 1]
SAMPLED = SamplingRow(temperature=0.9, top_p=0.95, seed=11, repetition_penalty=1.2)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("executor")
    checkpoint = write_random_llama_checkpoint(folder / "checkpoint", hidden_size=64, seed=4)
    limits = BuilderLimits(3, 32, 300)
    return {
        "legacy": build_engine(checkpoint, folder / "legacy", limits=limits, lowering="tensorrt_legacy"),
        "half": build_engine(checkpoint, folder / "half", limits=limits, precision="fp16"),
        "cpu": build_engine(checkpoint, folder / "cpu", limits=limits),
    }


def executor_of(path: Path, backend: CUDABackend | CPUBackend) -> ModelExecutor:
    return ModelExecutor(open_engine_directory(path), backend, prefill_chunk=4)


@pytest.fixture(scope="module")
def reference(engines: dict[str, Path]) -> ModelExecutor:
    return executor_of(engines["cpu"], CPUBackend(1))


@pytest.fixture
def cuda(engines: dict[str, Path]) -> Iterator[CUDABackend]:
    backend = pretend_backend()
    yield backend
    backend.close()


def generate(executor: ModelExecutor, parameters: SamplingRow, count: int = 12) -> list[int]:
    executor.start_row(0, parameters, PROMPT)
    start, token = 0, None
    while token is None:
        start, token = executor.prefill(0, PROMPT, start)
    tokens = [token]
    for past in range(len(PROMPT), len(PROMPT) + count):
        tokens.append(executor.decode(tokens[-1:], [past])[0])
    return tokens


@pytest.mark.parametrize("parameters", [SamplingRow(), SAMPLED], ids=["greedy", "sampled"])
def test_tokens_are_those_of_the_cpu_and_steps_are_recorded_whole(
    engines: dict[str, Path], cuda: CUDABackend, reference: ModelExecutor, parameters: SamplingRow
) -> None:
    executor = executor_of(engines["legacy"], cuda)
    assert generate(executor, parameters) == generate(reference, parameters)
    step = executor.calls.get(1, 1, 0, 10).step
    assert step.recorded  # type: ignore[attr-defined]
    assert generate(executor, parameters) == generate(reference, parameters)


def test_half_precision_runs_one_row_at_a_time_and_stays_near(
    engines: dict[str, Path], cuda: CUDABackend, reference: ModelExecutor
) -> None:
    executor = executor_of(engines["half"], cuda)
    assert not executor.engine.capabilities.ragged_chunks
    assert generate(executor, SamplingRow(), 6) == generate(reference, SamplingRow(), 6)


def test_rows_of_different_length_decode_together(
    engines: dict[str, Path], cuda: CUDABackend, reference: ModelExecutor
) -> None:
    answers = []
    for executor in (executor_of(engines["legacy"], cuda), reference):
        prompts = [[3, 4, 5], [7] * 9, [100, 2]]
        tokens = []
        for row, prompt in enumerate(prompts):
            executor.start_row(row, SAMPLED, prompt)
            start, token = 0, None
            while token is None:
                start, token = executor.prefill(row, prompt, start)
            tokens.append(token)
        lengths = [len(prompt) for prompt in prompts]
        found = [list(tokens)]
        for step in range(8):
            if step == 4:  # the middle row leaves, the last one fills its place
                executor.move_row(2, 1, lengths[2])
                tokens, lengths = [tokens[0], tokens[2]], [lengths[0], lengths[2]]
            tokens = executor.decode(tokens, lengths)
            lengths = [length + 1 for length in lengths]
            found.append(list(tokens))
        answers.append(found)
    assert answers[0] == answers[1]


def test_every_batch_and_bucket_can_be_recorded_ahead(engines: dict[str, Path], cuda: CUDABackend) -> None:
    executor = executor_of(engines["legacy"], cuda)
    assert [executor.engine.length_bucket(length) for length in (1, 128, 129, 257, 300)] == [128, 128, 256, 300, 300]
    assert executor.capture_decode_steps()
    steps = {key: call.step for key, call in executor.calls.made.items() if key[1] == 1}
    assert {(key[0], key[3]) for key in steps} == {(batch, size) for batch in (1, 2, 3) for size in (128, 256, 300)}
    assert all(step.recorded for step in steps.values())  # type: ignore[attr-defined]


def test_a_steady_step_writes_nothing_from_the_host(engines: dict[str, Path]) -> None:
    driver = FakeDriver()
    backend = pretend_backend(driver=driver)
    executor = executor_of(engines["legacy"], backend)
    generate(executor, SamplingRow(), 4)
    calls: list[str] = []
    for name in ("cuMemcpyHtoDAsync", "cuLaunchKernel", "cuGraphLaunch"):
        plain = getattr(driver, name)
        setattr(driver, name, lambda *rest, plain=plain, name=name: calls.append(name) or plain(*rest))
    token = executor.decode([77], [12])  # not what the last step left
    assert calls.count("cuMemcpyHtoDAsync") == 5
    calls.clear()
    for past in range(13, 18):
        token = executor.decode(token, [past])
    assert calls == ["cuGraphLaunch"] * 5
    backend.close()


def test_an_engine_that_cannot_stand_in_our_graph_records_itself(
    engines: dict[str, Path], reference: ModelExecutor
) -> None:
    backend = pretend_backend(records=False)
    executor = executor_of(engines["legacy"], backend)
    assert executor.engine.own_graph and not executor.engine.capabilities.capture  # type: ignore[attr-defined]
    assert generate(executor, SAMPLED) == generate(reference, SAMPLED)
    assert not executor.capture_decode_steps()
    numbers = {call.prepared[1].entries["gpu_graph_id"] for call in executor.engine._calls.values()}  # type: ignore[attr-defined]
    assert "-1" in numbers and len(numbers) > 1  # prompts are left out
    backend.close()


def test_a_provider_that_does_not_start_is_told(engines: dict[str, Path]) -> None:
    backend = pretend_backend(provider=False)
    with pytest.raises(BackendError, match="does not start; install the CUDA and cuDNN libraries"):
        backend.open_engine(engines["legacy"])
    backend.close()


def test_a_failed_run_passes(engines: dict[str, Path], cuda: CUDABackend, reference: ModelExecutor) -> None:
    executor = executor_of(engines["legacy"], cuda)
    wanted = generate(reference, SAMPLED)
    assert generate(executor, SAMPLED) == wanted
    plain = executor.engine._execute  # type: ignore[attr-defined]

    def fail(call: object) -> None:
        raise BackendError("out of memory: the engine was told to fail here.")

    executor.engine._execute = fail  # type: ignore[attr-defined]
    with pytest.raises(BackendError, match="told to fail"):
        executor.prefill(0, PROMPT[:1], 0)
    executor.engine._execute = plain  # type: ignore[attr-defined]
    assert generate(executor, SAMPLED) == wanted


@pytest.mark.parametrize(
    ("kernel", "broken"),
    [
        ("scatter_positions", lambda grid, *rest: None),
        ("advance", lambda grid, *rest: None),
        ("rope_tables", lambda grid, *rest: None),
        ("gather_float32", lambda grid, table, _, ids, *rest: None),
    ],
)
def test_a_broken_kernel_changes_the_tokens(
    engines: dict[str, Path], cuda: CUDABackend, reference: ModelExecutor, monkeypatch: pytest.MonkeyPatch,
    kernel: str, broken: object,
) -> None:  # fmt: skip
    executor = executor_of(engines["legacy"], cuda)
    monkeypatch.setattr(fake_kernels, kernel, broken)
    assert generate(executor, SamplingRow()) != generate(reference, SamplingRow())


def test_a_bucket_that_is_too_short_changes_the_tokens(
    engines: dict[str, Path], cuda: CUDABackend, reference: ModelExecutor
) -> None:
    executor = executor_of(engines["legacy"], cuda)
    long = [number % 250 for number in range(150)]
    answers = []
    for stale in (False, True):
        if stale:
            executor.engine.length_bucket = lambda positions: 128  # type: ignore[method-assign]
            executor.calls.made.clear()
        executor.start_row(0, SamplingRow(), long)
        start, token = 0, None
        while token is None:
            start, token = executor.prefill(0, long, start)
        tokens = [token]
        for past in range(150, 160):
            tokens.append(executor.decode(tokens[-1:], [past])[0])
        answers.append(tokens)
    assert answers[0] != answers[1]
