"""NumPy twins of the GPU's kernels, over addresses of host memory; arguments stand as in the ``.cu`` files."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np

from edgellm_ros.backends import sampling_math
from edgellm_ros.backends.host_images import letterbox as host_letterbox
from edgellm_ros.backends.host_images import rearrange as host_rearrange
from edgellm_ros.backends.host_images import resample as host_resample
from edgellm_ros.backends.host_rows import euler_step as host_euler_step
from edgellm_ros.backends.host_rows import gather_rows as host_gather_rows
from edgellm_ros.backends.host_rows import splice_rows as host_splice_rows
from edgellm_ros.backends.token_selection import MOST_PIVOTS

Grid = tuple[int, int, int]
SEGMENT = "=6Q"
SCATTER = "=3Q"
STATE = struct.Struct("=d5fiI2Iii4x")
PENALISED, BIASED, MASKED, GREEDY, COUNTED = 1, 2, 4, 8, 16
SEEN = 0x80000000


def view(address: int, dtype: Any, *shape: int) -> np.ndarray:
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)).view(dtype).reshape(shape)


def _gather(values: np.ndarray, ids: int, out: int, count: int, vocabulary: int, scale: float) -> None:
    table = values.astype(np.float32)
    rows = view(out, np.float32, count, table.shape[1])
    for row, token in zip(rows, view(ids, np.int32, count), strict=True):
        row[...] = table[token] * np.float32(scale) if 0 <= token < vocabulary else 0.0


def gather_float32(grid: Grid, table: int, _: int, ids: int, out: int, size: int, width: int, scale: float) -> None:
    _gather(view(table, np.float32, size, width), ids, out, grid[0], size, scale)


def gather_float16(grid: Grid, table: int, _: int, ids: int, out: int, size: int, width: int, scale: float) -> None:
    _gather(view(table, np.float16, size, width), ids, out, grid[0], size, scale)


def gather_bfloat16(grid: Grid, table: int, _: int, ids: int, out: int, size: int, width: int, scale: float) -> None:
    wide = (view(table, np.uint16, size, width).astype(np.uint32) << 16).view(np.float32)
    _gather(wide, ids, out, grid[0], size, scale)


def gather_int8(grid: Grid, table: int, scales: int, ids: int, out: int, size: int, width: int, scale: float) -> None:
    values = view(table, np.int8, size, width).astype(np.float32) * view(scales, np.float32, size, 1)
    _gather(values, ids, out, grid[0], size, scale)


def gather_rows(grid: Grid, source: int, rows: int, out: int, count: int, words: int) -> None:
    table, part = view(source, np.uint32, count, words), view(out, np.uint32, grid[0], words)
    host_gather_rows(table, view(rows, np.int32, grid[0]), part)


def splice_rows(grid: Grid, source: int, rows: int, out: int, count: int, words: int) -> None:
    part, table = view(source, np.uint32, grid[0], words), view(out, np.uint32, count, words)
    host_splice_rows(part, view(rows, np.int32, grid[0]), table)


def rope_tables(grid: Grid, positions: int, frequencies: int, cosine: int, sine: int, half: int, scale: float) -> None:
    where = view(positions, np.int32, grid[0]).astype(np.float32)
    angles = where[:, None] * view(frequencies, np.float32, half)
    view(cosine, np.float32, grid[0], half)[...] = np.cos(angles) * np.float32(scale)
    view(sine, np.float32, grid[0], half)[...] = np.sin(angles) * np.float32(scale)


def advance(grid: Grid, arrays: bytes, amount: int) -> None:
    fields = struct.unpack("=4Q4i", arrays)
    for address, count in zip(fields[:4], fields[4:], strict=True):
        if count:
            values = view(address, np.int32, count)
            values += amount


def euler_step(grid: Grid, state: int, velocity: int, step: float, count: int) -> None:
    host_euler_step(view(state, np.float32, count), view(velocity, np.float32, count), step)


class _Pivots:
    """``Pivots`` of the source: places of a table, and how many each span has."""

    def __init__(self, packed: bytes, spans: int) -> None:
        self._rows, self.spans, self._most_own, self.text = struct.unpack("=Qiii4x", packed)
        self.table = view(spans, np.int32, self.spans, 4)

    def own(self, number: int) -> np.ndarray:
        """To be written by ``choose_pivots``, and read by others."""
        count = self.text if number == self.spans else min(self._most_own, int(self.table[number, 2]))
        return view(self._rows + 4 * number * MOST_PIVOTS, np.int32, count)

    def all(self, number: int) -> np.ndarray:
        return np.concatenate([self.own(number), self.own(self.spans)])


def row_measures(
    grid: Grid, rows: int, spans: int, ranks: int, norms: int, owners: int, width: int, count: int
) -> None:
    values = view(rows, np.float32, grid[0], width)
    magnitudes = np.abs(values).sum(axis=1)
    view(ranks, np.float32, grid[0])[...] = np.where(np.isnan(magnitudes), np.inf, -magnitudes)
    view(norms, np.float32, grid[0])[...] = np.sqrt(np.einsum("ld,ld->l", values, values))
    whose = view(owners, np.int32, grid[0])
    whose[...] = count
    for number, (start, stop, _, _) in enumerate(view(spans, np.int32, count, 4)):
        whose[start:stop] = number


def choose_pivots(grid: Grid, ranks: int, owners: int, spans: int, pivots: bytes, length: int) -> None:
    values, whose, table = view(ranks, np.float32, length), view(owners, np.int32, length), _Pivots(pivots, spans)
    for number in range(grid[0]):
        places = np.flatnonzero(whose == number)
        best = places[np.argsort(values[places], kind="stable")]
        own = table.own(number)
        own[:] = best[: len(own)]


def pivot_cosines(
    grid: Grid, rows: int, norms: int, owners: int, spans: int, pivots: bytes, ranks: int, width: int
) -> None:
    values, sizes = view(rows, np.float32, grid[0], width), view(norms, np.float32, grid[0])
    table, whose = _Pivots(pivots, spans), view(owners, np.int32, grid[0])
    for number in range(table.spans):
        own = np.flatnonzero(whose == number)
        for index, pivot in enumerate(table.all(number)):
            products = np.einsum("nd,d->n", values[own], values[pivot])
            cosines = products / np.maximum(sizes[own] * sizes[pivot], np.float32(1e-8))
            view(ranks + 4 * index * grid[0], np.float32, grid[0])[own] = np.where(cosines <= 2, cosines, 2)


def choose_rows(grid: Grid, ranks: int, spans: int, pivots: bytes, chosen: int, answer: int, length: int) -> None:
    table, stays = _Pivots(pivots, spans), view(chosen, np.uint8, length)
    stays[...] = 1
    for number in range(grid[0]):
        start, stop, quota, first = table.table[number].tolist()
        stays[start:stop] = 0
        stays[table.own(number)] = 1
        everyone = table.all(number)
        left = quota - len(table.own(number))
        for index in range(len(everyone)):
            values = view(ranks + 4 * index * length, np.float32, length)
            share = -(-left // (len(everyone) - index))
            free = start + np.flatnonzero(stays[start:stop] == 0)
            stays[free[np.argsort(values[free], kind="stable")[:share]]] = 1
            left -= share
        assert first == stays[:start].sum()
    places = np.flatnonzero(stays)
    view(answer, np.int32, len(places))[...] = places


def copy_segments(grid: Grid, table: int) -> None:
    for entry in range(grid[1]):
        source, destination, from_step, to_step, size, segments = struct.unpack(
            SEGMENT, ctypes.string_at(table + entry * 48, 48)
        )
        for segment in range(segments):
            ctypes.memmove(destination + segment * to_step, source + segment * from_step, size)


def scatter_positions(grid: Grid, table: int, past: int, query: int, chunk: int, capacity: int, first_row: int) -> None:
    _, batch, arrays = grid
    starts = view(past, np.int32, batch)
    lengths = view(query, np.int32, batch) if query else np.full(batch, chunk)
    for array in range(arrays):
        source, destination, size = struct.unpack(SCATTER, ctypes.string_at(table + array * 24, 24))
        for row in range(batch):
            for offset in range(int(lengths[row])):
                position = int(starts[row]) + offset
                if 0 <= position < capacity:
                    ctypes.memmove(
                        destination + ((first_row + row) * capacity + position) * size,
                        source + (row * chunk + offset) * size, size,
                    )  # fmt: skip


def _lay_out(dtype: Any, grid: Grid, table: int, length: int, room: int) -> None:
    for array in range(grid[1]):
        source, destination, head_stride, position_stride, heads, size, turned, _ = struct.unpack(
            "=4Q4I", ctypes.string_at(table + array * 48, 48)
        )
        out = view(destination, dtype, heads, *((size, room) if turned else (room, size)))
        out[...] = 0
        for head in range(heads):
            for position in range(length):
                offset = (head * head_stride + position * position_stride) * np.dtype(dtype).itemsize
                values = view(source + offset, dtype, size)
                if turned:
                    out[head, :, position] = values
                else:
                    out[head, position] = values


def lay_out_16(grid: Grid, table: int, length: int, room: int) -> None:
    _lay_out(np.uint16, grid, table, length, room)


def lay_out_32(grid: Grid, table: int, length: int, room: int) -> None:
    _lay_out(np.uint32, grid, table, length, room)


class _Row:
    """One draw's state and its slices of the tables."""

    def __init__(self, tables: bytes, rows: bytes, index: int) -> None:
        states, counts, bias, mask, self.vocabulary, words = struct.unpack("=4Q2i", tables)
        row = rows[index]
        self.place = states + row * STATE.size
        (
            self.top_p, self.temperature, self.min_p, self.repetition, self.presence, self.frequency, self.top_k,
            self.flags, low, high, self.num_logprobs, self.position,
        ) = STATE.unpack(ctypes.string_at(self.place, STATE.size))  # fmt: skip
        self.seed = low | high << 32
        self.counts = view(counts + row * self.vocabulary * 4, np.uint32, self.vocabulary)
        self.bias = view(bias + row * self.vocabulary * 4, np.float32, self.vocabulary)
        self.mask = view(mask + row * words * 4, np.int32, words)


def adjust_logits(grid: Grid, logits: int, tables: bytes, rows: bytes, scratch: bytes, chunk: int) -> None:
    _, broken, _, _ = struct.unpack("=4Q", scratch)
    for index in range(grid[1]):
        row = _Row(tables, rows, index)
        values = view(logits + index * row.vocabulary * 4, np.float32, row.vocabulary)
        view(broken + index * grid[0] * 4, np.uint32, 1)[0] = not np.isfinite(values).all()
        if row.flags & PENALISED:
            generated = {int(i): int(row.counts[i] & ~np.uint32(SEEN)) for i in np.flatnonzero(row.counts)}
            generated = {token: count for token, count in generated.items() if count}
            sampling_math.penalise(
                values, np.flatnonzero(row.counts), generated, row.repetition, row.presence, row.frequency
            )
        if row.flags & BIASED:
            values += row.bias
        if row.flags & MASKED:
            values[~sampling_math.mask_bits(row.mask, row.vocabulary)] = -np.inf


def weigh(grid: Grid, logits: int, tables: bytes, rows: bytes, scratch: bytes, blocks: int) -> None:
    """What it prepares, the twin of ``pick`` works out for itself."""


def pick(
    grid: Grid, logits: int, tables: bytes, rows: bytes, scratch: bytes, blocks: int, token_ids: int,
    ranked_ids: int, ranked_logs: int, limit: int,
) -> None:  # fmt: skip
    _, broken, _, _ = struct.unpack("=4Q", scratch)
    for index in range(grid[1]):
        row = _Row(tables, rows, index)
        values = view(logits + index * row.vocabulary * 4, np.float32, row.vocabulary)
        answer = view(token_ids, np.int32, grid[1])
        ids = view(ranked_ids + index * (limit + 1) * 4, np.int32, limit + 1)
        logs = view(ranked_logs + index * (limit + 1) * 4, np.float32, limit + 1)
        best = int(values.argmax())
        if view(broken + index * blocks * 4, np.uint32, 1)[0] or not np.isfinite(values[best]):
            answer[index] = ids[0] = -1
            continue
        if row.flags & GREEDY:
            token = best
        else:
            number = sampling_math.uniform(row.seed, row.position)
            token = sampling_math.draw(values, number, row.temperature, row.top_k, row.top_p, row.min_p)
        if row.num_logprobs:
            normaliser = sampling_math.log_normaliser(values)
            ranked = [token, *sampling_math.top_ids(values, row.num_logprobs).tolist()]
            for place, number in enumerate(ranked):
                usable = np.isfinite(values[number])
                ids[place], logs[place] = (number, values[number] - normaliser) if usable else (-1, 0.0)
        answer[index] = token
        if row.flags & COUNTED:
            row.counts[token] += 1
        view(row.place + 48, np.int32, 1)[0] = row.position + 1


def mark_prompt(grid: Grid, counts: int, ids: int, count: int, vocabulary: int) -> None:
    view(counts, np.uint32, vocabulary)[view(ids, np.int32, count)] = SEEN


def set_bias(grid: Grid, bias: int, ids: int, values: int, count: int) -> None:
    for token, value in zip(view(ids, np.int32, count), view(values, np.float32, count), strict=True):
        view(bias + int(token) * 4, np.float32, 1)[0] = value


def resample(
    grid: Grid,
    source: int,
    first: int,
    weights: int,
    out: int,
    length: int,
    new: int,
    inner: int,
    taps: int,
    count: int,
) -> None:
    outer = count // (new * inner)
    assert grid[0] * 256 >= count
    host_resample(
        view(source, np.uint8, outer, length, inner), view(first, np.int32, new), view(weights, np.int32, new, taps),
        view(out, np.uint8, outer, new, inner),
    )  # fmt: skip


def _rearrange(dtype: Any, source: int, out: int, order: bytes, count: int) -> None:
    numbers = struct.unpack("=16i", order)
    sizes, strides = numbers[:8], numbers[8:]
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    host_rearrange(view(source, np.uint8, last + 1), view(out, dtype, count), sizes, strides)


def rearrange_bytes(grid: Grid, source: int, out: int, order: bytes, count: int) -> None:
    _rearrange(np.uint8, source, out, order, count)


def rearrange_numbers(grid: Grid, source: int, out: int, order: bytes, count: int) -> None:
    _rearrange(np.float32, source, out, order, count)


def letterbox(
    grid: Grid, source: int, first_line: int, line_share: int, first_column: int, column_share: int, out: int,
    source_height: int, source_width: int, top: int, left: int, down: int, across: int, height: int, width: int,
) -> None:  # fmt: skip
    assert grid[0] * 256 >= height * width
    tables = [
        view(first_line, np.int32, down), view(line_share, np.float32, down),
        view(first_column, np.int32, across), view(column_share, np.float32, across),
    ]  # fmt: skip
    picture = view(out, np.float32, 3, height, width)
    host_letterbox(view(source, np.uint8, source_height, source_width, 3), tables, picture, top, left)
