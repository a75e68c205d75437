"""Answer one prompt with an engine directory, streamed to the terminal or as one JSON object."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from ..backends.registry import NAMES as BACKENDS
from ..errors import EdgeLLMError, RequestError
from . import guide_options, media_options

_ADAPTER = "adapter"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("engine_dir", metavar="ENGINE_DIR", help="directory that 'edgellm build' wrote")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--prompt", action="append", metavar="TEXT", help="text of the user's turn; repeatable: the turns of one chat"
    )
    what.add_argument("--input-ids", metavar="1,2,3", help="token ids; no template, no tokenizer")
    parser.add_argument("--system", default="", metavar="TEXT", help="text of a system turn before it")
    parser.add_argument(
        "--max-tokens", type=int, default=256, metavar="N", help="most tokens to generate (default: %(default)s)"
    )
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 takes the most likely (default)")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="draw from the K most likely; 0: from all")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="draw from the likeliest share P")
    parser.add_argument("--min-p", type=float, default=0.0, metavar="P", help="least share of the best token's chance")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1 avoids repetition")
    parser.add_argument("--seed", type=int, default=None, metavar="S", help="of the draws; the same gives the same")
    parser.add_argument("--stop", action="append", default=[], metavar="STR", help="end before this text; repeatable")
    parser.add_argument("--ignore-eos", action="store_true", help="go on after end-of-sequence tokens")
    guide_options.add_arguments(parser)
    media_options.add_arguments(parser)
    parser.add_argument("--lora", metavar="FOLDER", help="PEFT folder of an adapter to use")
    parser.add_argument("--no-chat-template", action="store_true", help="take the prompt as it is")
    parser.add_argument("--logprobs", type=int, default=0, metavar="K", help="with --json: K most likely of each token")
    parser.add_argument(
        "--threads", type=int, default=0, metavar="N", help="of the engine (default: all physical cores)"
    )
    parser.add_argument("--checkpoint", metavar="FOLDER", help="where the weights of a weightless engine lie")
    parser.add_argument(
        "--backend", default="auto", metavar="NAME", help=f"{', '.join(BACKENDS)} (default: %(default)s)"
    )
    parser.add_argument(
        "--cache-mb",
        type=int,
        default=256,
        metavar="MB",
        help="memory for what turns have in common; 0: none (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a turn instead")
    parser.add_argument("--profile", action="store_true", help="with --json: times of stages, token counts and memory")


def run(arguments: argparse.Namespace) -> int:
    """0 when the answer ended well, 1 when the engine failed on the way."""
    if arguments.logprobs and not arguments.json:
        raise RequestError("--logprobs is given without --json; add it.")
    if arguments.profile and not arguments.json:
        raise RequestError("--profile is given without --json; add it.")
    from ..runtime.context_cache import ContextCacheConfig
    from ..runtime.inference_runtime import LLMInferenceRuntime
    from ..runtime.memory_monitor import MemoryMonitor
    from ..runtime.request import Message

    prompts = arguments.prompt or [None]
    if len(prompts) > 1 and arguments.no_chat_template:
        raise RequestError("--prompt is given several times, which makes a chat; leave --no-chat-template out.")
    if arguments.cache_mb < 0:
        raise RequestError(f"--cache-mb is {arguments.cache_mb}; want a whole number from 0.")
    cache = ContextCacheConfig(arguments.cache_mb * 2**20)
    reuses = len(prompts) > 1 and cache.budget_bytes > 0
    said = [Message("system", arguments.system)] if arguments.system else []
    if prompts[0] is None and (arguments.image or arguments.video):
        raise RequestError("--image or --video is given with --input-ids; give the text with --prompt.")
    with LLMInferenceRuntime(
        arguments.engine_dir,
        backend=arguments.backend,
        threads=arguments.threads,
        lora_weights={} if arguments.lora is None else {_ADAPTER: arguments.lora},
        context_cache=cache if reuses else None,
        checkpoint_dir=arguments.checkpoint,
    ) as runtime:
        memory = MemoryMonitor(runtime.rank.backend.memory) if arguments.profile else None
        if memory is not None:
            memory.start()
        if prompts[0] is not None:
            said.append(Message.of("user", *media_options.first_turn(arguments, runtime.rank.vision), prompts[0]))
        request = _request(arguments, said)
        for following in [*prompts[1:], None]:
            prepared, response = _answer(runtime, request, silent=arguments.json)
            if arguments.json:
                report = _report(runtime, prepared, response)
                if memory is not None and following is None:
                    report["profile"] = _profile(runtime, memory.stop())
                print(json.dumps(report, ensure_ascii=False))
            else:
                print(flush=True)
                print(_summary(response), file=sys.stderr)
            if response.messages[0]:
                print(f"edgellm generate: {response.messages[0]}", file=sys.stderr)
                return 1
            if following is not None:
                calls, thought = tuple(response.tool_calls[0]), response.reasoning_texts[0] or None
                said += [Message("assistant", response.output_texts[0], calls, reasoning=thought)]
                said += [Message("user", following)]
                request = _request(arguments, said)
    return 0


def _answer(runtime: Any, request: Any, *, silent: bool) -> tuple[Any, Any]:
    """One turn, shown as it comes; the request as it was run, and the response."""
    from ..runtime.request import LLMGenerationResponse
    from ..runtime.session import GenerationSession

    channel, response = request.stream_channels[0], LLMGenerationResponse()
    prepared = runtime.prepare(request)
    generation = runtime.rank.begin_generation(prepared, response)
    if generation is None:
        refusal = runtime.rank.last_refusal
        raise EdgeLLMError(refusal.message, refusal.code) if refusal else EdgeLLMError("the request was refused.")
    with generation:
        session = GenerationSession(runtime.rank, generation)
        session.prime_from_prefill()
        _show(channel, silent)
        while not session.finished():
            session.advance()
            _show(channel, silent)
        runtime.rank.finish_generation(generation, prepared, response)
    return prepared, response


def _request(arguments: argparse.Namespace, messages: Sequence[Any]) -> Any:
    from ..runtime.cache_policy import DERIVE_REPLAY_TAIL
    from ..runtime.request import LLMGenerationRequest, Request, SamplingParameters
    from ..runtime.streaming import StreamChannel

    ids: list[list[int]] = []
    if arguments.input_ids is not None:
        try:
            ids = [[int(token) for token in arguments.input_ids.replace(",", " ").split()]]
        except ValueError:
            raise RequestError(
                f"--input-ids is {arguments.input_ids!r}; want whole numbers with commas between them."
            ) from None
        if not ids[0]:
            raise RequestError("--input-ids is empty; want at least one id.")
    return LLMGenerationRequest(
        requests=(
            Request(
                tuple(messages),
                stop_strings=tuple(arguments.stop),
                ignore_eos=arguments.ignore_eos,
                guided_decoding=guide_options.guide_from(arguments),
            ),
        ),
        sampling=SamplingParameters(
            temperature=arguments.temperature,
            top_p=arguments.top_p,
            top_k=arguments.top_k,
            min_p=arguments.min_p,
            repetition_penalty=arguments.repetition_penalty,
        ),
        max_generate_length=arguments.max_tokens,
        sampling_seed=arguments.seed,
        lora_weights_name="" if arguments.lora is None else _ADAPTER,
        apply_chat_template=not arguments.no_chat_template,
        enable_thinking=arguments.thinking,
        tools=guide_options.tools_from(arguments),
        tool_choice=arguments.tool_choice,
        num_logprobs=arguments.logprobs,
        stream_channels=(StreamChannel(),),
        pre_tokenized_input_ids=ids,
        visual_pruner=media_options.pruner_from(arguments),
        context_cache_replay_tail_length=DERIVE_REPLAY_TAIL,
    )


def _show(channel: Any, silent: bool) -> None:
    while (chunk := channel.try_pop()) is not None:
        if silent:
            continue
        if chunk.text:
            print(chunk.text, end="", flush=True, file=_streams()[chunk.part.value])
        for call in chunk.tool_calls:
            print(json.dumps({"name": call.name, "arguments": json.loads(call.arguments)}, ensure_ascii=False))


def _streams() -> dict[str, Any]:
    return {"answer": sys.stdout, "reasoning": sys.stderr}


def _timings(response: Any) -> dict[str, float]:
    """Seconds; tokens per second of decoding, the first token left out."""
    times, count = response.times[0], len(response.output_ids[0])
    decode = max(0.0, times.last_token - times.first_token)
    return {
        "time_to_first_token": max(0.0, times.first_token - times.prefill_start),
        "decode": decode,
        "tokens_per_second": (count - 1) / decode if decode else 0.0,
    }


def _report(runtime: Any, prepared: Any, response: Any) -> dict[str, Any]:
    from ..runtime.seeds import resolve_seed

    return {
        "input_ids": prepared.pre_tokenized_input_ids[0],
        "reused_tokens": response.reused_token_counts[0],
        "output_ids": response.output_ids[0],
        **media_options.media_report(prepared),
        **media_options.pruning_report(response),
        "text": response.output_texts[0],
        "reasoning": response.reasoning_texts[0],
        "tool_calls": [
            {"id": call.id, "name": call.name, "arguments": json.loads(call.arguments)}
            for call in response.tool_calls[0]
        ],
        "finish_reason": response.finish_reasons[0].label,
        "message": response.messages[0],
        "seed": resolve_seed(prepared, prepared.requests[0]),
        "logprobs": [
            [
                {"id": entry.token_id, "logprob": entry.logprob, "text": entry.piece.decode("utf-8", "replace")}
                for entry in candidates
            ]
            for candidates in response.logprobs[0]
        ],
        "timings": {**_timings(response), "load": runtime.describe()["load_seconds"]},
    }


def _profile(runtime: Any, memory: dict[str, float]) -> dict[str, Any]:
    prefill, generation = runtime.rank.get_prefill_metrics(), runtime.rank.get_generation_metrics()
    return {
        "stages": {name: times.to_json() for name, times in runtime.rank.get_stage_times().items()},
        "prefill": {"computed_tokens": prefill.computed_tokens, "reused_tokens": prefill.reused_tokens},
        "generation": {"generated_tokens": generation.generated_tokens, "steps": generation.steps},
        "memory": memory,
    }


def _summary(response: Any) -> str:
    timings = _timings(response)
    return (
        f"{len(response.output_ids[0])} tokens ({response.finish_reasons[0].label}), first after "
        f"{timings['time_to_first_token'] * 1000:.0f} ms, then {timings['tokens_per_second']:.1f} tokens/s"
    )
