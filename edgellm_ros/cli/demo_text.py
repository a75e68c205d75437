"""Start the node in a process of its own, publish a prompt on its topic from this one and print the streamed answer.

The engine directory (SmolLM2-135M-Instruct, int8) is built the first time. Both processes talk on this machine only.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .engine_cache import SMOLLM2, build_smollm2, cached_engine_directory
from .node_session import (
    LAST_DOMAIN,
    LAST_PIECES_TIMEOUT,
    NodeSession,
    check_ros,
    keep,
    node_session,
    say,
    set_environment,
)

PROMPT = "What is gravity?"
ANSWER_TIMEOUT = 120.0  # s until the answer is complete


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--prompt", default=PROMPT, metavar="TEXT", help="what to ask (default: %(default)r)")
    parser.add_argument("--keep", action="store_true", help="leave the node running until Ctrl-C")
    parser.add_argument(
        "--engine-dir",
        type=Path,
        default=cached_engine_directory(SMOLLM2),
        metavar="DIR",
        help="engine directory (default: %(default)s, built when needed)",
    )
    parser.add_argument(
        "--domain", type=int, metavar="N", help=f"ROS domain, 0 to {LAST_DOMAIN} (default: one for this process)"
    )


def run(arguments: argparse.Namespace) -> int:
    """0 when an answer came as it should, 1 when not."""
    directory = build_smollm2(arguments.engine_dir, say)
    set_environment(arguments.domain)
    check_ros()
    from ..ros.client import PromptClient
    from ..ros.launch_spec import node_specs

    specs = node_specs({"engine_dir": str(directory)})
    with node_session(specs, lambda spec: PromptClient(server=spec.name)) as session:
        good = ask(session, arguments.prompt)
        say(f"Engine directory: {directory}")
        if arguments.keep and good:
            keep(
                session,
                "ros2 topic pub --once /prompt std_msgs/msg/String \"{data: 'Tell me a joke.'}\"",
                "ros2 topic echo /response/delta --field data",
            )
    (code,) = session.exit_codes
    if code != 0:
        say(f"The node ended with exit code {code}.")
    return 0 if good and code == 0 else 1


def ask(session: NodeSession, prompt: str) -> bool:
    """Publish the prompt, print the pieces as they come, then the figures; False when the answer is not whole."""
    from ..ros.client import pairs, spin_until

    client, executor = session.client, session.executor
    say(f"\nPrompt: {prompt}\n")
    client.on_delta = lambda text: print(text, end="", flush=True)
    client.ask(prompt)
    ended = spin_until(
        executor,
        lambda: bool(client.reports and client.responses) or session.ended,
        ANSWER_TIMEOUT,
    )
    # Topics are not ordered among each other: the last pieces may come after the whole text.
    whole = ended and spin_until(executor, lambda: "".join(client.deltas) in client.responses, LAST_PIECES_TIMEOUT)
    print("\n", flush=True)
    if not ended or not client.reports or not client.responses:
        say(f"No answer came.\n{session.output()}")
        return False
    report = client.reports[-1]
    values = pairs(report)
    if values["refusal_code"]:
        say(f"No answer ({values['refusal_code']}): {report.message}")
        return False
    say(
        f"{values['completion_tokens']} tokens, {float(values['tokens_per_second'] or 0):.1f} tokens/s, "
        f"time to first token {1000 * float(values['time_to_first_token_s'] or 0):.0f} ms "
        f"(seed {values['seed']}, {values['finish_reason']})"
    )
    if not whole:
        say("The streamed pieces do not join to the whole answer.")
        return False
    return True
