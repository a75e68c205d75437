"""Damages headers of GGUF and safetensors files for a while, in a process whose memory is watched.

Usage: python fuzz_headers.py gguf|safetensors FOLDER SEED SECONDS

Prints one JSON object: how many files were tried and refused, and by how much memory grew. Anything but a sentence, or
numbers that fit, ends it with a traceback; so does an allocation of more than ``SPARE_BYTES``.
"""

from __future__ import annotations

import json
import random
import resource
import struct
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from gguf_bytes import llama_gguf
from reference_llama import read_folder

from edgellm_ros.builder.build_plan import plan_build
from edgellm_ros.builder.checkpoint import Checkpoint, open_checkpoint
from edgellm_ros.builder.random_weights import write_random_llama_checkpoint
from edgellm_ros.errors import CheckpointError

SPARE_BYTES = 256 << 20
NUMBERS = (0, 1, 7, 255, 256, 65535, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
VALUES = (
    '""',
    "null",
    "-1",
    "1e999",
    "[]",
    "{}",
    "true",
    "9" * 40,
    "0.5",
    '"F32"',
    "[[[[]]]]",
    str(2**63),
    '"\\ud800"',
)

Damage = Callable[[random.Random, bytearray], None]


def flip(source: random.Random, data: bytearray) -> None:
    for _ in range(source.randint(1, 4)):
        data[source.randrange(len(data))] = source.randrange(256)


def number(source: random.Random, data: bytearray) -> None:
    size, code = source.choice(((4, "<I"), (8, "<Q")))
    at = source.randrange(max(1, len(data) - size))
    data[at : at + size] = struct.pack(code, source.choice(NUMBERS) % 2 ** (8 * size))


def cut(source: random.Random, data: bytearray) -> None:
    del data[source.randrange(len(data)) :]


def remove(source: random.Random, data: bytearray) -> None:
    at = source.randrange(len(data))
    del data[at : at + source.randint(1, 64)]


def repeat(source: random.Random, data: bytearray) -> None:
    at = source.randrange(len(data))
    data[at:at] = data[at : at + source.randint(1, 64)] * source.randint(1, 8)


def json_value(source: random.Random, data: bytearray) -> None:
    """Put another value behind some colon or comma of a text."""
    places = [index + 1 for index, byte in enumerate(data) if byte in b":,"]
    if places:
        at = source.choice(places)
        end = next((index for index in range(at, len(data)) if data[index] in b",}]"), len(data))
        data[at:end] = source.choice(VALUES).encode()


DAMAGES: dict[str, tuple[Damage, ...]] = {
    "gguf": (flip, number, number, number, cut, remove, repeat),
    "safetensors": (flip, number, cut, remove, repeat, json_value, json_value, json_value),
}


def sound_file(kind: str, folder: Path) -> tuple[Path, bytes, bytes, Path]:
    """What to open, header and data of its weight file, and where that lies."""
    folder.mkdir(parents=True)
    model = write_random_llama_checkpoint(
        folder / "model", hidden_size=64, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1,
        head_dim=32, vocab_size=272,
    )  # fmt: skip
    if kind == "gguf":
        file = llama_gguf(*read_folder(model), "Q8_0")
        header, content = file.header(), file.content()
        path = folder / "model.gguf"
        return path, header, content[len(header) :], path
    path = model / "model.safetensors"
    content = path.read_bytes()
    size = 8 + int.from_bytes(content[:8], "little")
    return model, content[:size], content[size:], path


def use(checkpoint: Checkpoint, source: random.Random) -> None:
    """What a build reads."""
    for name, shape in list(checkpoint.shapes.items())[:40]:
        rows = checkpoint.read_rows(name, 0, min(2, shape[0]))
        assert rows.shape == (min(2, shape[0]), *shape[1:])
        checkpoint.read_int8_blocks(name, 0, min(2, shape[0]))
    checkpoint.tokenizer_files()
    if source.random() < 0.1:
        plan_build(checkpoint, precision="int8", limits=None, lowering="onnxruntime", calibrate=False)


def resident() -> int:
    """The most bytes that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main(kind: str, folder: Path, seed: int, seconds: float) -> dict[str, float]:
    source = random.Random(seed)
    target, header, data, file = sound_file(kind, folder)
    file.write_bytes(header + data)
    with closing(open_checkpoint(target)) as checkpoint:
        use(checkpoint, random.Random(0))
        plan_build(checkpoint, precision="int8", limits=None, lowering="onnxruntime", calibrate=False)
    before = resident()
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + SPARE_BYTES,) * 2)
    tried = refused = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        damaged = bytearray(header)
        for _ in range(source.choice((1, 1, 1, 2, 3))):
            if damaged:
                source.choice(DAMAGES[kind])(source, damaged)
        if kind == "safetensors" and source.random() < 0.7:  # else nearly every change of length is refused at once
            damaged[:8] = max(0, len(damaged) - 8).to_bytes(8, "little")
        file.write_bytes(bytes(damaged) + data)
        tried += 1
        try:
            with closing(open_checkpoint(target)) as checkpoint:
                use(checkpoint, source)
        except CheckpointError as error:
            refused += 1
            assert len(str(error)) < 2000, str(error)[:3000]
        except BaseException:
            print(f"file {tried} of seed {seed}: {bytes(damaged)!r}"[:3000], file=sys.stderr)
            raise
    return {"tried": tried, "refused": refused, "grown": resident() - before}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))))
