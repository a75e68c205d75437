"""llama.cpp through its low-level Python binding, greedy, one sequence or several in one batch.

As a program it requantises a GGUF file: ``python -m benchmarks.peers.llama_cpp SOURCE DESTINATION f32|q8_0|q4_0``.
"""

from __future__ import annotations

import ctypes
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ..grammars import GRAMMAR
from ..prompts import prompt_ids


class LlamaCpp:
    """One GGUF file; ``capacity`` is the context in tokens of each of ``sequences``."""

    def __init__(self, model: str, *, threads: int, capacity: int = 1024, sequences: int = 4) -> None:
        import llama_cpp

        self._library = llama_cpp
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(model.encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {Path(model).name}")
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = capacity * sequences
        parameters.n_batch = parameters.n_ubatch = 512
        parameters.n_seq_max = sequences
        parameters.n_threads = parameters.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise RuntimeError("llama.cpp cannot make a context")
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(512, 0, 1)
        self._variant = 0

    def versions(self) -> dict[str, str]:
        """The binding's version."""
        return {"llama-cpp-python": metadata.version("llama-cpp-python")}

    def decode(self, prompt_tokens: int, tokens: int) -> dict[str, float]:
        """Greedy decoding of ``tokens`` after a prompt."""
        token = self._prompt(prompt_tokens)
        start = time.monotonic()
        for step in range(tokens - 1):
            token = self._step([token], prompt_tokens + step)
        return {"decode_rate": (tokens - 1) / (time.monotonic() - start)}

    def batch_decode(self, prompt_tokens: int, tokens: int, sequences: int) -> dict[str, float]:
        """One sequence, then several with prompts of their own: rates of decoding."""
        single = self.decode(prompt_tokens, tokens)["decode_rate"]
        last = [self._prompt(prompt_tokens, sequence) for sequence in range(sequences)]
        start = time.monotonic()
        for step in range(2 * tokens):
            last = self._steps(last, prompt_tokens + step)
        rate = sequences * 2 * tokens / (time.monotonic() - start)
        return {"batch_scaling": rate / single, "batch_decode_rate": rate, "single_decode_rate": single}

    def prefill(self, prompt_tokens: int) -> dict[str, float]:
        """Rate from the start of the prompt to its first token."""
        start = time.monotonic()
        self._prompt(prompt_tokens)
        return {"prefill_rate": prompt_tokens / (time.monotonic() - start)}

    def prefix_hit(self, prefix_tokens: int, tokens: int) -> dict[str, float]:
        """Milliseconds to the first token of a new prompt, and of one that goes on differently after its prefix.

        The prefix stays where it is, in the one sequence that there is; nothing is copied.
        """
        self._variant += 1
        prefix = prompt_ids(prefix_tokens, self._variant)
        memory = self._library.llama_get_memory(self._context)
        self._library.llama_memory_clear(memory, False)
        seconds = []
        for kept in (0, prefix_tokens):
            self._variant += 1
            ids = [*prefix, *prompt_ids(tokens, self._variant)]
            start = time.monotonic()
            self._library.llama_memory_seq_rm(memory, 0, kept, -1)
            for place in range(kept, len(ids), 512):
                self._step(ids[place : place + 512], place)
            seconds.append(time.monotonic() - start)
        cold, hit = seconds
        return {"hit_speedup": cold / hit, "cold_first_token": 1e3 * cold, "hit_first_token": 1e3 * hit}

    def guided_decode(self, prompt_tokens: int, tokens: int) -> dict[str, float]:
        """Greedy decoding by a grammar, against free decoding before and after it.

        As llama.cpp's own programs do it, the likeliest token is tried first, and all others only where it is refused.
        """
        library = self._library
        free = 1 / self.decode(prompt_tokens, tokens)["decode_rate"]
        sampler = library.llama_sampler_init_grammar(
            library.llama_model_get_vocab(self._model), GRAMMAR.encode(), b"root"
        )
        if not sampler:
            raise RuntimeError("llama.cpp does not read the grammar")
        self._prompt(prompt_tokens)
        token = self._allowed(sampler)
        start = time.monotonic()
        for step in range(tokens - 1):
            library.llama_sampler_accept(sampler, token)
            self._step([token], prompt_tokens + step)
            token = self._allowed(sampler)
        guided = (time.monotonic() - start) / (tokens - 1)
        library.llama_sampler_free(sampler)
        again = 1 / self.decode(prompt_tokens, tokens)["decode_rate"]
        return {"guided_cost": 100 * (2 * guided / (free + again) - 1), "guided_decode_rate": 1 / guided}

    def _allowed(self, sampler: Any) -> int:
        """The likeliest token of the last step that the grammar takes."""
        library = self._library
        logits = np.ctypeslib.as_array(library.llama_get_logits_ith(self._context, -1), (self._vocabulary,))
        for ids in ([int(logits.argmax())], range(self._vocabulary)):
            data = (library.llama_token_data * len(ids))()
            table = np.ctypeslib.as_array(data)
            table["id"], table["logit"], table["p"] = ids, logits[ids], 0.0
            candidates = library.llama_token_data_array(data, len(ids), -1, False)
            library.llama_sampler_apply(sampler, ctypes.byref(candidates))
            best = int(table["logit"].argmax())
            if np.isfinite(table["logit"][best]):
                return int(table["id"][best])
        raise RuntimeError("the grammar takes no token")

    def close(self) -> None:
        """Free model and context."""
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def _prompt(self, prompt_tokens: int, sequence: int = 0) -> int:
        """Run a prompt; that of sequence 0 forgets all before."""
        self._variant += 1
        if sequence == 0:
            memory = self._library.llama_get_memory(self._context)
            self._library.llama_memory_clear(memory, False)
        ids = prompt_ids(prompt_tokens, self._variant)
        token = 0
        for start in range(0, len(ids), 512):
            token = self._step(ids[start : start + 512], start, sequence)
        return token

    def _steps(self, tokens: list[int], position: int) -> list[int]:
        """Decode one token of every sequence; the most likely next id of each."""
        batch: Any = self._batch
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = index
            batch.logits[index] = True
        self._run()
        return [self._best(index) for index in range(len(tokens))]

    def _step(self, ids: list[int], position: int, sequence: int = 0) -> int:
        """Decode ``ids`` from ``position`` on; the most likely next id."""
        batch: Any = self._batch
        batch.n_tokens = len(ids)
        for index, token in enumerate(ids):
            batch.token[index] = token
            batch.pos[index] = position + index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = index == len(ids) - 1
        self._run()
        return self._best(-1)

    def _run(self) -> None:
        code = self._library.llama_decode(self._context, self._batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")

    def _best(self, index: int) -> int:
        logits = self._library.llama_get_logits_ith(self._context, index)
        return int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())


def quantise(source: Path, destination: Path, kind: str) -> None:
    """Write ``source`` again with its weights as ``kind``; F32 sources lose nothing but what ``kind`` costs.

    :raises RuntimeError: llama.cpp refused.
    """
    import llama_cpp

    types = {
        "f32": llama_cpp.LLAMA_FTYPE_ALL_F32,
        "q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
        "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    }
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = types[kind]
    parameters.allow_requantize = True
    temporary = destination.with_suffix(".partial")
    code = llama_cpp.llama_model_quantize(str(source).encode(), str(temporary).encode(), ctypes.byref(parameters))
    if code:
        temporary.unlink(missing_ok=True)
        raise RuntimeError(f"llama_model_quantize returned {code}")
    temporary.rename(destination)


if __name__ == "__main__":
    quantise(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
