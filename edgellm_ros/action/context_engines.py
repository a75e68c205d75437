"""The engines of a policy that looks at a language model's rows: pictures of any grid between words, one denoise step.

A picture is resized and cut as the policy was trained, then goes the way of the language model's own images. Tensors
are allocated for what an observation needs and kept for the next one, which is as long unless the task changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..backends.base import Backend, DataType
from ..engine_format import EMBEDDING_FILE, VISUAL_DIRECTORY
from ..errors import PolicyError
from ..runtime.row_media import rope_axes
from ..runtime.tokenizer import Tokenizer
from ..vision.device_images import device_images
from ..vision.image_plan import ImagePlan, carry_out
from ..vision.media import EncodedMedia
from ..vision.mrope import MropeRule, mrope_positions
from ..vision.opencv import opencv
from ..vision.processor import PlannedProcessor, check_images, open_processor
from ..vision.pruner import PruningOutcome, PruningReport, VisualPrunerConfig
from ..vision.tower import PlacedImage, Tower
from ..vision.visual_directory import open_visual_directory
from .action_engine import PREFIX_GRAPH_FILE, ActionEngine
from .policy_manifest import PolicyManifest

MOST_PICTURES = 16  # cameras and sizes of theirs whose tensors are kept
KINDS = ("text", "image")  # of rows that the action engine's layers look at, each at one of them


class FittedPicture(NamedTuple):
    """What becomes of a picture, and where its pixels lie."""

    plan: ImagePlan
    place: PlacedImage


class ContextEngines(ActionEngine):
    """Owned by one thread. :raises PolicyError: a graph is not what the manifest says."""

    def __init__(self, directory: Path, manifest: PolicyManifest, backend: Backend, tokenizer: Tokenizer) -> None:
        super().__init__(directory, manifest, backend)
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            visual = open_visual_directory(directory / VISUAL_DIRECTORY)
            processor = open_processor(visual.path)
            if not isinstance(processor, PlannedProcessor):
                raise PolicyError(
                    f"{visual.path} has an image processor without plans; build the engine directory again."
                )
            self._processor = processor
            self._device_images = device_images(processor, visual, backend)
            if self._device_images is not None:
                undo.callback(self._device_images.close)
            self._tower = undo.enter_context(closing(Tower(visual, backend)))
            self._prefix = undo.enter_context(closing(backend.open_engine(self._directory / PREFIX_GRAPH_FILE)))
            self._embeddings = backend.open_embeddings(directory / EMBEDDING_FILE, scale=manifest.text_scale)
            self._planes = [name for name in self._prefix.inputs if name.startswith("deepstack_")]
            self._handoff = self._handoff_names(self._prefix)
            self._image_id = visual.config["image_token_id"]
            self._rule = MropeRule(self._image_id, merge=visual.tower.spatial_merge_size)
            section = {"mrope_section": list(manifest.rope_section), "mrope_interleaved": True}
            self._axes = rope_axes(section, manifest.head_dim // 2)
            before, after = manifest.prompt_format.split("{task}")
            self._before, self._after = before, tokenizer.encode(after)
            self._tokenizer = tokenizer
            self._encoded: list[EncodedMedia] = []
            self._pictures: dict[tuple[int, tuple[int, int, int] | None], PlacedImage] = {}  # by camera and grid
            self._fitted: list[FittedPicture] = []
            self._counts = dict.fromkeys(KINDS, 0)
            self._room = (0, 0, 0)  # rows of the prefix, of words and of pictures that tensors are there for
            self._closing = undo.pop_all()

    def fit(self, images: Sequence[np.ndarray]) -> list[FittedPicture]:
        """Pictures uint8 RGB [H,W,3] where the tower takes them; the next call overwrites them.

        On a GPU a cropped frame goes there as bytes, and its kernels resize and cut it.
        """
        edge, share = self._manifest.image_size[0], self._manifest.image_crop
        pictures = [cropped(image, edge, share) for image in images]
        check_images(pictures)
        plans = [self._processor.plan(*picture.shape[:2]) for picture in pictures]
        fitted = [FittedPicture(plan, place) for plan, place in zip(plans, self._places_of(plans), strict=True)]
        for picture, (plan, place) in zip(pictures, fitted, strict=True):
            if self._device_images is not None:
                self._device_images.prepare(picture, plan, place.pixels)
                continue
            pixels = np.empty(plan.shape, self._processor.table.dtype)
            carry_out(plan, picture, self._processor.table, pixels)
            place.write(pixels)
        return fitted

    def encode_images(self, fitted: list[FittedPicture]) -> None:
        """Run the image tower on what ``fit`` gave; its rows stay on the device."""
        self._fitted, self._encoded = fitted, []
        for camera, (plan, place) in enumerate(fitted):
            self.recordings.run(("vision", (camera, plan.grid)), place.run)
            self._encoded.append(place.encoded)

    def _places_of(self, plans: list[ImagePlan]) -> list[PlacedImage]:
        """One for each camera, which belongs to it and to the size of its picture."""
        keys = [(camera, plan.grid) for camera, plan in enumerate(plans)]
        new = {*keys} - {*self._pictures}
        if new and len(self._pictures) + len(new) > MOST_PICTURES:
            self.recordings.clear()  # they know the tensors that are let go
            self._pictures.clear()
        for key, plan in zip(keys, plans, strict=True):
            if key not in self._pictures:
                self._pictures[key] = self._tower.place(plan.shape, plan.grid)
        return [self._pictures[key] for key in keys]

    def run_prefix(self, token_ids: list[int], state: np.ndarray, pruner: VisualPrunerConfig) -> PruningReport:
        """Run the prefix of the encoded pictures and the task; ``state`` is the normalised one, float32 [padded].

        Nothing is pruned: actions look at the rows of pictures themselves, not at keys and values.
        """
        plans = [plan for plan, _ in self._fitted]
        marks = "".join(f"<|vision_start|>{plan.placeholder}<|vision_end|>" for plan in plans)
        ids = np.array(
            [*self._tokenizer.encode(self._before.format(images=marks)), *token_ids, *self._after], dtype=np.int32
        )
        seen = ids == self._image_id
        places = {"text": np.flatnonzero(~seen).astype(np.int32), "image": np.flatnonzero(seen).astype(np.int32)}
        self._counts = {kind: len(rows) for kind, rows in places.items()}
        self._length = length = len(ids)
        self._make_room(length)
        self._embed(ids, places["image"])
        grids = np.array([plan.grid for plan in plans], np.int64)
        self._rotate(mrope_positions(ids, self._rule, grids).positions)
        shapes: dict[str, tuple[int, ...]] = self._tables(self._prefix, length)
        self._bound(self._prefix, "attend_end").prefix((1, length)).write(self._ends(length))
        for kind, rows in places.items():
            self._bound(self._prefix, f"{kind}_rows").prefix(rows.shape).write(rows)
            shapes[f"{kind}_rows"] = rows.shape
        for name in ("prefix_embeds", *self._planes):
            shapes[name] = (1, length, self._embeddings.shape[1])
        if self._robot_state is not None:
            self._robot_state.write(state[None].astype(np.float32))
        shapes |= self._handoff_shapes()
        self.recordings.run(self.key("prefix"), lambda: self._prefix.run(shapes))
        seen_rows = self._counts["image"]
        return PruningReport(PruningOutcome.ACTIONS if pruner.enabled else PruningOutcome.OFF, seen_rows, seen_rows)

    def _ends(self, length: int) -> np.ndarray:
        """What each row of the prefix sees: those up to itself."""
        return 1 + np.arange(length, dtype=np.int32)[None]

    def _make_room(self, length: int) -> None:
        needed = (length, self._counts["text"], self._counts["image"])
        if all(need <= have for need, have in zip(needed, self._room, strict=True)):
            return
        self._room = tuple(max(need, have) for need, have in zip(needed, self._room, strict=True))  # type: ignore[assignment]
        width = self._embeddings.shape[1]
        self._ids, self._places = (self._backend.allocate((1, room), DataType.INT32) for room in self._room[::2])
        self._nothing = self._backend.allocate((1, self._room[0], width), DataType.FLOAT32)
        for name in ("prefix_embeds", *self._planes):
            self._bind(self._prefix, name, (1, self._room[0], width))
        self._bind_tables(self._prefix, self._room[0])
        for kind, room in zip(KINDS, self._room[1:], strict=True):
            self._bind(self._prefix, f"{kind}_rows", (room,))
            for name in self._handoff:
                if name.startswith(kind):
                    self._action.bind(name, self._bind(self._prefix, name, self._sized(self._prefix, name, room)))

    def _embed(self, ids: np.ndarray, places: np.ndarray) -> None:
        """Rows of words, and those of pictures in their places; planes are zero beside them."""
        width = self._embeddings.shape[1]
        given = self._ids.prefix((1, len(ids)))
        given.write(ids[None])
        table = self._bound(self._prefix, "prefix_embeds").prefix((1, len(ids), width))
        self._backend.gather_embeddings(self._embeddings, given, table)
        targets = [table.prefix((len(ids), width))]
        for name in self._planes:
            targets.append(self._bound(self._prefix, name).prefix((len(ids), width)))
            self._backend.copy(self._nothing.prefix((len(ids), width)), targets[-1])
        start = 0
        for encoded in self._encoded:
            count = encoded.embeddings.shape[0]
            rows = self._places.prefix((count,))
            rows.write(places[start : start + count])
            for source, target in zip((encoded.embeddings, *encoded.planes), targets, strict=False):
                self._backend.splice_rows(source, rows, target)
            start += count

    def _rotate(self, positions: np.ndarray) -> None:
        """Write the tables of positions int32 [3,P]: each frequency turns by the position on its axis."""
        angles = positions[self._axes].T.astype(np.float32) * np.asarray(self._rope.inverse_frequency, np.float32)
        for name, table in (("rope_cos", np.cos(angles)), ("rope_sin", np.sin(angles))):
            self._bound(self._prefix, name).prefix((1, *table.shape)).write(table[None].astype(np.float32))

    def _handoff_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: self._sized(self._prefix, name, self._counts[name.split("_")[0]]) for name in self._handoff}


def cropped(image: np.ndarray, edge: int, share: float) -> np.ndarray:
    """The middle of a picture uint8 [H,W,3], ``share`` of either side, with a shorter side of ``edge`` pixels.

    It is resized before and after, by areas.
    """
    image = _shortest(image, edge)
    if share < 1:
        height, width = (max(int(size * share), 1) for size in image.shape[:2])
        top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
        image = image[top : top + height, left : left + width]
    return np.ascontiguousarray(_shortest(image, edge))


def _shortest(image: np.ndarray, edge: int) -> np.ndarray:
    height, width = image.shape[:2]
    if min(height, width) == edge:
        return image
    scale = edge / min(height, width)
    cv2 = opencv()
    sizes = (max(round(width * scale), 1), max(round(height * scale), 1))
    resized: np.ndarray = cv2.resize(np.ascontiguousarray(image), sizes, interpolation=cv2.INTER_AREA)
    return resized
