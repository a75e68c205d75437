"""The engines of a policy that reasons before it drives: pictures and a history in, words out, then waypoints.

The words are those of the language model, on the executor that answers prompts. Its cache then holds the prompt, the
reasoning and the marker that ends it; the action engine reads all of that, and its waypoints continue the positions.
Keys and values are copied from the cache to its inputs on the device.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np

from ..backends.base import Backend, SamplingRow
from ..engine_format import VISUAL_DIRECTORY, EngineDirectory
from ..errors import ObservationError, PolicyError, RefusalCode, RequestError
from ..runtime.executor import NOT_FINITE, ModelExecutor
from ..runtime.media_prompt import prompt_media
from ..runtime.request import Message
from ..runtime.tokenizer import Tokenizer
from ..vision.media import EncodedMedia, MediaItem
from ..vision.pruner import PruningOutcome, PruningReport, VisualPrunerConfig
from ..vision.runner import VisionRunner
from .action_engine import ActionEngine
from .driving import Driving
from .policy_manifest import PolicyManifest

OnText = Callable[[str], None]
MOST_THREADS = 8
ROOM_STEP = 64  # positions that the action engine reads are a multiple of, so that loops of one length are recorded


@dataclass(frozen=True)
class Reasoning:
    """What is asked of one observation: positions that were driven [points,3] in m, and how words are chosen.

    ``tokens`` is the most that are said; None leaves it to the policy.
    """

    history: np.ndarray
    sampling: SamplingRow
    tokens: int | None = None
    on_text: OnText = lambda text: None
    cancelled: Callable[[], bool] = lambda: False


class ReasoningEngines(ActionEngine):
    """Owned by one thread. :raises PolicyError: a graph is not what the manifest says."""

    def __init__(
        self, directory: EngineDirectory, manifest: PolicyManifest, backend: Backend, tokenizer: Tokenizer
    ) -> None:
        if manifest.driving is None:
            raise PolicyError(f"{directory.path} holds no policy that reasons; build it again.")
        self._driving: Driving = manifest.driving
        with ExitStack() as undo:
            # first, since it asks for the memory of all of them
            self._executor = undo.enter_context(closing(ModelExecutor(directory, backend)))
            super().__init__(directory.path, manifest, backend)
            undo.enter_context(self._closing)
            self._vision = undo.enter_context(closing(VisionRunner.open(directory.path / VISUAL_DIRECTORY, backend)))
            # copies and digests of sixteen pictures or more, which take no turns with Python
            self._threads = ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1), "pictures")
            undo.callback(self._threads.shutdown)
            self._executor.media.encode = lambda item: self._encoded[item.digest]
            self._tokenizer, self._ends_of_text = tokenizer, {*directory.config.eos_token_id, self._driving.marker}
            allowed = np.zeros(-(-directory.config.vocab_size // 32) * 32, dtype=bool)
            allowed[: directory.config.vocab_size] = True
            first, count = self._driving.silent
            allowed[first : first + count] = False
            self._allowed = np.packbits(allowed, bitorder="little").view(np.int32)
            self._handoff = self._handoff_inputs(directory)
            self._room = self._read = 0  # positions that tensors of the handoff are there for, and of them those in use
            self._items: list[MediaItem] = []
            self._encoded: dict[bytes, EncodedMedia] = {}  # by digest
            head, rest = manifest.prompt_format.split("{images}")
            before, rest = rest.split("{history}")
            after, tail = rest.split("{task}")
            self._head, self._before, self._after, self._tail = (
                head,
                before,
                tokenizer.encode(after),
                tokenizer.encode(tail),
            )
            self._closing = undo.pop_all()

    def _handoff_inputs(self, directory: EngineDirectory) -> list[str]:
        """Inputs of the action engine that are the cache's: of every layer keys, then values.

        :raises PolicyError: it takes others than the cache holds.
        """
        taken = [name for name in self._action.inputs if name.startswith("prefix_")]
        dtype, names = self._executor.cache.dtype, []
        for layer, (heads, size) in enumerate(directory.config.kv_layers[: len(taken) // 2]):
            for kind, shape in (("key", (1, heads, size, -1)), ("value", (1, heads, -1, size))):
                spec = self._action.inputs.get(name := f"prefix_{kind}_{layer}")
                if spec is None or (spec.dtype, spec.shape) != (dtype, shape):
                    found = "no such input" if spec is None else f"{spec.dtype.value} {spec.shape}"
                    raise PolicyError(
                        f"{directory.path} has an action engine with {found} for {name!r}; its language model caches "
                        f"{dtype.value} {shape}: build both at one precision."
                    )
                names.append(name)
        if len(names) != len(taken):
            raise PolicyError(
                f"{directory.path} has an action engine that reads {len(taken) // 2} layers of a cache with "
                f"{len(names) // 2}; build it again."
            )
        return names

    def fit(self, images: Sequence[np.ndarray]) -> list[MediaItem]:
        """Pictures uint8 RGB [H,W,3], ready to stand in the prompt; on a GPU they are resized when they are encoded."""
        return list(self._threads.map(self._vision.place, images))

    def encode_images(self, items: list[MediaItem]) -> None:
        """Run the image tower on what ``fit`` gave; its rows stay on the device.

        Pictures of the observation before, which has most of them where frames follow each other, are not seen again.
        """
        before = self._encoded
        self._encoded = {item.digest: before.get(item.digest) or self._vision.encode(item) for item in items}
        self._items = items

    def prompt(self, task_ids: Sequence[int], history: np.ndarray) -> list[int]:
        """The ids of a whole prompt. :raises ObservationError: a history of another length, or not finite."""
        marks = "".join(f"<|vision_start|>{item.placeholder}<|vision_end|>" for item in self._items)
        driven = self._driving.history.encode(history).tolist()
        return [
            *self._tokenizer.encode(self._head + marks + self._before), *driven, *self._after, *task_ids, *self._tail,
        ]  # fmt: skip

    def pruned(self, pruner: VisualPrunerConfig) -> PruningReport:
        """What became of visual tokens: the reasoning reads them all."""
        count = sum(item.token_count for item in self._items)
        return PruningReport(PruningOutcome.ACTIONS if pruner.enabled else PruningOutcome.OFF, count, count)

    def reason(self, task_ids: Sequence[int], asked: Reasoning) -> str | None:
        """Say the reasoning and keep its keys and values for the plan; None when cancelled.

        A reasoning that does not end within the policy's limit is ended with the marker.

        :raises RequestError: the prompt leaves no room in the engine's cache.
        :raises ObservationError: the language model gives numbers that are not finite.
        """
        executor, driving = self._executor, self._driving
        ids = self.prompt(task_ids, asked.history)
        room = executor.limits.max_kv_cache_capacity - len(ids) - 1
        if room < 1 or len(ids) > executor.limits.max_input_len:
            raise RequestError(
                f"the prompt has {len(ids)} tokens; the engine takes {executor.limits.max_input_len} and caches "
                f"{executor.limits.max_kv_cache_capacity}: build it for more, or give smaller pictures.",
                RefusalCode.INPUT_TOO_LONG,
            )
        message = Message.of("user", *self._items)
        media = prompt_media([message], ids, self._vision, self._tokenizer.token_id)
        executor.start_row(0, asked.sampling, ids, media)
        executor.sampler.set_mask(0, self._allowed)
        done, token = 0, None
        while token is None:
            done, token = executor.prefill(0, ids, done)
        decoder, text, length = codecs.getincrementaldecoder("utf-8")("replace"), [], len(ids)
        most = driving.reasoning_tokens if asked.tokens is None else asked.tokens
        for _ in range(min(most, room)):
            if token == NOT_FINITE:
                raise ObservationError("the language model gave numbers that are not finite; check the pictures.")
            if token in self._ends_of_text:
                break
            if asked.cancelled():
                return None
            text.append(decoder.decode(self._tokenizer.token_bytes(token)))
            if text[-1]:
                asked.on_text(text[-1])
            token = executor.decode([token], [length])[0]
            length += 1
        text.append(decoder.decode(b"", final=True))
        if text[-1]:
            asked.on_text(text[-1])
        self._keep(length, 0 if media is None else media.delta)
        return "".join(text)

    def _keep(self, length: int, delta: int) -> None:
        """Run the marker behind ``length`` positions, and give the row's cache to the action engine."""
        self._executor.decode([self._driving.marker], [length])
        self._length = length + 1
        self._next_position = self._length + delta
        capacity = self._executor.limits.max_kv_cache_capacity
        self._read = min(-(-self._length // ROOM_STEP) * ROOM_STEP, capacity)
        if self._read > self._room:
            self._room = min(2 * self._read, capacity)
            for name in self._handoff:
                self._bind(self._action, name, self._sized(self._action, name, self._room))
        tensors = [self._bound(self._action, name).prefix(shape) for name, shape in self._handoff_shapes().items()]
        self._executor.cache.copy_out(0, self._length, tensors)

    def _handoff_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all that is read; what lies behind the prefix nobody sees."""
        return {name: self._sized(self._action, name, self._read) for name in self._handoff}

    def close(self) -> None:
        """Close the engines; a second call does nothing."""
        self._encoded.clear()
        super().close()
