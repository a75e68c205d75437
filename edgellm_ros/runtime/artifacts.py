"""What a model is before a device is touched, and the engine that is opened from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..backends.base import Backend
from ..backends.registry import open_backend
from ..chat_template import ChatTemplate, special_token_names
from ..engine_format import EngineDirectory, check_answers, open_engine_directory
from ..errors import EdgeLLMError, EngineDirectoryError, RefusalCode
from ..json_values import shown
from ..vision.visual_directory import VisualDirectory, find_visual_directory, open_visual_directory
from .checkpoint_weights import WeightSource
from .executor import ModelExecutor
from .request_checks import check_kinds, of_kind, or_none
from .tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelArtifacts:
    """An engine directory that passed its checks, with its tokenizer. A runtime that is made of it owns it."""

    directory: EngineDirectory
    tokenizer: Tokenizer
    visual: VisualDirectory | None = None
    source: WeightSource | None = None  # None: the directory itself

    @classmethod
    def load(
        cls,
        engine_dir: Path | str,
        multimodal_engine_dir: Path | str | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        chat_template: ChatTemplate | str | None = None,
        checkpoint_dir: Path | str | None = None,
    ) -> ModelArtifacts:
        """Read a directory; a tokenizer or chat template that is given takes the place of its own.

        ``checkpoint_dir`` holds the weights of an engine that has none. The image tower is that of
        ``multimodal_engine_dir`` where it is given, else the directory's own, if it has one.

        :raises EngineDirectoryError: the directory fails a check.
        """
        for name, given in (
            ("engine_dir", engine_dir or "."),
            ("multimodal_engine_dir", multimodal_engine_dir or "."),
            ("checkpoint_dir", checkpoint_dir or "."),
        ):
            if not isinstance(given, str | Path) or engine_dir is None:
                raise EngineDirectoryError(f"{name} is {shown(given)}; want the path of a folder.")
        directory = open_engine_directory(engine_dir)
        check_answers(directory)
        source = WeightSource.of(directory, checkpoint_dir)
        check_kinds({"tokenizer": tokenizer}, or_none(of_kind(Tokenizer, "a Tokenizer")))
        check_kinds(
            {"chat_template": chat_template}, or_none(of_kind((str, ChatTemplate), "a ChatTemplate or its text"))
        )
        tokenizer = tokenizer or Tokenizer.from_directory(directory.path)
        if isinstance(chat_template, str):
            chat_template = ChatTemplate(chat_template, special_token_names(tokenizer.configuration))
        if chat_template is not None:
            tokenizer.chat_template = chat_template
        place = None if multimodal_engine_dir is None else Path(multimodal_engine_dir)
        found = find_visual_directory(directory.path, place)
        visual = None if found is None else open_visual_directory(found)
        if visual is not None and visual.tower.hidden_size != directory.config.hidden_size:
            raise EngineDirectoryError(
                f"{found} gives tokens of {visual.tower.hidden_size} numbers; the language model takes "
                f"{directory.config.hidden_size}: build both of one checkpoint."
            )
        return cls(directory, tokenizer, visual, source)


@dataclass(frozen=True)
class StepSizes:
    """How much of a prompt one engine call takes; explained at ``LLMRankRuntime``.

    :raises EdgeLLMError: a size that is no whole number in its range.
    """

    prefill_chunk: int = 256
    join_chunk: int = 64
    mixed_positions: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("prefill_chunk", 1), ("join_chunk", 1), ("mixed_positions", 0)):
            value = getattr(self, name)
            if value is None and name == "mixed_positions":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise EdgeLLMError(
                    f"{name} is {shown(value)}; want a whole number of at least {least}.", RefusalCode.BAD_PARAMETER
                )


@dataclass(frozen=True)
class OpenedEngine:
    """A backend with the executor of one model on it."""

    backend: Backend
    executor: ModelExecutor
    owns_backend: bool
    passed_over: list[str] = field(default_factory=list)  # backends that "auto" tried first, and why not

    @classmethod
    def open(
        cls, artifacts: ModelArtifacts, backend: Backend | str | None, threads: int, sizes: StepSizes
    ) -> OpenedEngine:
        """Open the engine of a model; all of it, or nothing is left open.

        :raises BackendError: the device or engine library fails, or cannot run this directory.
        """
        if not (backend is None or isinstance(backend, str) or hasattr(backend, "open_engine")):
            raise EdgeLLMError(
                f"backend is {shown(backend)}; want the name of one, or an open Backend.", RefusalCode.BAD_PARAMETER
            )
        directory = artifacts.directory
        passed_over: list[str] = []
        owns_backend = backend is None or isinstance(backend, str)
        opened: Backend = (
            open_backend(backend or "auto", threads=threads, directory=directory, passed_over=passed_over)
            if backend is None or isinstance(backend, str)
            else backend
        )
        try:
            executor = ModelExecutor(
                directory,
                opened,
                prefill_chunk=sizes.prefill_chunk,
                join_chunk=sizes.join_chunk,
                mixed_positions=sizes.mixed_positions,
                source=artifacts.source,
            )
        except BaseException:
            if owns_backend:
                opened.close()
            raise
        return cls(opened, executor, owns_backend, passed_over)

    def close(self) -> None:
        """Free the engine, and the backend unless it is the caller's."""
        self.executor.close()
        if self.owns_backend:
            self.backend.close()
