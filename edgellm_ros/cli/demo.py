"""Act and answer in a small simulated world: the world, the node and this client talk by ROS topics.

Without options it takes tasks and questions from the terminal. The engine directory is built from the policy that ships
with the package. All talk stays on this machine.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import EdgeLLMError, RequestError
from ..json_values import shown
from .assignment import assignment
from .demo_terminal import Interrupts, columns, end_for_sure, read_line, seed_of, show_progress
from .engine_cache import TABLETOP, build_tabletop, cached_engine_directory
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

if TYPE_CHECKING:
    from ..tabletop.node_episodes import NodeEpisode

FIRST_SEED = 100  # far from any that the evaluation starts with
LATE = 250.0  # ms of the world behind their pictures; chunks that late cost success
HELP = "a task, a question ending in '?', 'reset [SEED]', 'set PARAMETER VALUE', 'quit'; Enter alone takes the task"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--task", action="append", default=[], metavar="TEXT", help="do or answer this, then end; repeatable"
    )
    parser.add_argument(
        "--seed", type=int, default=FIRST_SEED, metavar="N", help="of the first scene (default: %(default)s)"
    )
    parser.add_argument(
        "--headless", action="store_true", help="one episode of each task and question; the exit status is its success"
    )
    parser.add_argument(
        "--speed", type=float, default=1.0, metavar="X", help="simulated seconds in one second (default: 1)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PARAMETER=VALUE",
        help="a parameter of the node, such as action.noise_seed=7 or visual_pruner.enabled=true; repeatable",
    )
    parser.add_argument("--keep", action="store_true", help="leave world and node running until Ctrl-C")
    parser.add_argument(
        "--engine-dir",
        type=Path,
        metavar="DIR",
        help=f"engine directory of another policy (default: {cached_engine_directory(TABLETOP)}, built when needed)",
    )
    parser.add_argument(
        "--domain", type=int, metavar="N", help=f"ROS domain, 0 to {LAST_DOMAIN} (default: one for this process)"
    )


def run(arguments: argparse.Namespace) -> int:
    """0 when all that was asked for succeeded, 1 when not."""
    from ..tabletop.launch_spec import LAST_SEED, SPEEDS, tabletop_specs

    for option, value, (least, most) in (
        ("--seed", arguments.seed, (0, LAST_SEED)),
        ("--speed", arguments.speed, SPEEDS),
    ):
        if not least <= value <= most:
            raise RequestError(f"{option} is {shown(value)}; want {least} to {most}.")
    changes = dict(assignment(text) for text in arguments.set)
    directory = arguments.engine_dir or build_tabletop(cached_engine_directory(TABLETOP))
    say(f"Engine directory: {directory}")
    set_environment(arguments.domain)
    check_ros()
    from ..tabletop.client import TabletopClient

    specs = tabletop_specs(
        {"engine_dir": str(directory), "real_time_factor": str(arguments.speed), "seed": str(arguments.seed)}
    )
    with node_session(specs, lambda spec: TabletopClient(server=spec.name)) as session:
        try:
            good = _show(Demo(session), arguments, changes)
        except EdgeLLMError:
            if not session.ended:
                raise
            print(f"edgellm demo: {session.why_ended()}", file=sys.stderr, flush=True)
            end_for_sure()
            good = False
        if arguments.keep and good:
            keep(
                session,
                "ros2 topic pub --once /prompt std_msgs/msg/String \"{data: 'touch the red cube'}\"",
                "ros2 topic echo /joint_trajectory",
                "ros2 service call /tabletop/score std_srvs/srv/Trigger",
            )
    if good:
        for code in session.exit_codes:
            if code != 0:
                say(f"A node ended with exit code {code}.")
    return 0 if good and not any(session.exit_codes) else 1


def _show(demo: Demo, arguments: argparse.Namespace, changes: dict[str, Any]) -> bool:
    """What was asked for; whether all of it succeeded."""
    if changes:
        demo.set_parameters(changes)
    if arguments.headless:
        return demo.headless(arguments.seed)
    demo.begin(arguments.seed)
    good = all(list(map(demo.take, arguments.task)))
    if not arguments.task and not arguments.keep:
        demo.converse()
    return good


class Demo:
    """One reader before one world."""

    def __init__(self, session: NodeSession) -> None:
        self._session = session
        self._client: Any = session.client
        self._live = sys.stdout.isatty()
        self._task, self._seed, self._warned = "", 0, False
        self._interrupts = Interrupts()  # asked for nothing, outside of a conversation

    def set_parameters(self, changes: dict[str, Any]) -> None:
        """Of the node. :raises RequestError: one is refused."""
        self._client.set_parameters(self._session.executor, changes)

    def begin(self, seed: int) -> None:
        """A new scene."""
        self._seed = seed
        self._task = self._client.reset(self._session.executor, seed)
        self._show()
        say(f'Scene {seed}. Its task: "{self._task}"')

    def take(self, text: str) -> bool:
        """A task or a question, done or answered; True when it was."""
        if text.endswith("?"):
            return self._answer(text)
        episode = self._act(text)
        self._show()
        if self._interrupts.asked:
            say("Stopped.")
            return False
        if episode.report["refusal_code"] not in ("", "cancelled"):
            say(f"Not done ({episode.report['refusal_code']}): {episode.report['refusal']}")
            return False
        if text == self._task:
            say("Done." if episode.success else "Not done.")
        return episode.success or text != self._task

    def converse(self) -> None:
        """Lines of the terminal until its end or ``quit``; Ctrl-C stops what runs.

        :raises EdgeLLMError: a process ended, or says nothing.
        """
        say(f"Type {HELP}. Ctrl-C stops the arm.")
        if hasattr(sys.stdin, "reconfigure"):
            sys.stdin.reconfigure(errors="replace")  # bytes that are no text are no reason to stop
        while (line := read_line(lambda: self._session.ended)) is not None:
            word, _, rest = line.partition(" ")
            try:
                if line in ("quit", "exit"):
                    return
                if word == "reset":
                    self.begin(seed_of(rest.strip()) if rest.strip() else self._seed + 1)
                elif word == "set":
                    name, value = assignment(rest.replace(" ", "=", 1))
                    self.set_parameters({name: value})
                else:
                    with Interrupts() as self._interrupts:
                        self.take(line or self._task)
            except RequestError as error:
                say(str(error))
        self._session.check()

    def headless(self, seed: int) -> bool:
        """One episode of each task and one question of each kind, told line by line."""
        from ..tabletop.headless import first_episodes, first_questions
        from ..tabletop.node_episodes import answer
        from ..tabletop.questions import is_right

        won = []
        for number, name in first_episodes(seed):
            self._task = self._client.reset(self._session.executor, number)
            episode = self._act(self._task)
            won.append(episode.success)
            say(f"{_mark(episode.success)} {name}: {self._task} ({episode.score['seconds']:.1f} s)")
        for number, question in first_questions(seed):
            self._client.reset(self._session.executor, number)
            said, _ = answer(self._client, self._session.executor, question.text, on_tick=self._session.check)
            won.append(is_right(question, said))
            say(f"{_mark(won[-1])} {question.kind.name.lower()}: {question.text} {said}")
        say(f"{sum(won)} of {len(won)} succeeded.")
        return all(won)

    def _answer(self, question: str) -> bool:
        from ..ros.client import spin_until
        from ..tabletop.node_episodes import answer

        shown = ""

        def show(piece: str) -> None:
            nonlocal shown
            piece = piece if shown else piece.lstrip()
            shown += piece
            print(piece, end="", flush=True)

        self._client.on_delta = show
        said, report = answer(self._client, self._session.executor, question, on_tick=self._look)
        # Topics are not ordered among each other: the last pieces may come after the whole text.
        whole = spin_until(self._session.executor, lambda: shown.strip() == said, LAST_PIECES_TIMEOUT if said else 0.0)
        self._client.on_delta = lambda piece: None
        print("" if whole else said.removeprefix(shown), flush=True)
        if not said:
            say(f"No answer ({report['refusal_code']}): {report['refusal']}")
            return False
        say(
            f"  {report['completion_tokens']} tokens, time to first token "
            f"{1000 * float(report['time_to_first_token_s'] or 0):.0f} ms, {_pruner(report)}"
        )
        return True

    def _act(self, task: str) -> NodeEpisode:
        from ..tabletop.node_episodes import act

        client = self._client
        client.catch_up(self._session.executor)
        begun = client.now
        chunks, latencies = len(client.seeds), len(client.staleness_ms)
        try:
            episode = act(
                client,
                self._session.executor,
                task,
                on_tick=lambda: self._progress(begun, chunks),
                stopped=lambda: self._interrupts.asked,
            )
        except KeyboardInterrupt:
            client.cancel()
            raise
        if self._live:
            print("\r\033[K", end="")
        stale = sorted(client.staleness_ms[latencies:])
        report = episode.report
        if len(client.seeds) == chunks:
            say(f"  no chunk, {_pruner(report)}")
            return episode
        say(
            f"  {len(client.seeds) - chunks} chunks, the last in {1000 * float(report.get('chunk_s') or 0):.0f} ms, "
            f"followed {stale[len(stale) // 2] if stale else 0:.0f} ms after their pictures, "
            f"seed {report['seed']} of the last, {_pruner(report)}"
        )
        if stale and stale[len(stale) // 2] > LATE and not self._warned:
            self._warned = True
            say("  That is late, since this machine is slow or busy; --speed 0.5 gives twice the time.")
        return episode

    def _look(self) -> None:
        """While an answer is waited for. :raises EdgeLLMError: a process ended."""
        self._session.check()
        if self._interrupts.asked:
            self._client.cancel()

    def _progress(self, begun: int, chunks: int) -> None:
        self._session.check()
        if not self._live:
            return
        client = self._client
        shoulder, elbow, wrist, gripper = client.joints
        seed = f"seed {client.seeds[-1]}" if len(client.seeds) > chunks else ""
        line = (
            f"  {(client.now - begun) / 1e9:4.1f} s  arm {shoulder:+.2f} {elbow:+.2f} {wrist:+.2f} rad  "
            f"gripper {100 * gripper:3.0f} %  {len(client.seeds) - chunks} chunks  {seed}"
        )
        show_progress(line)

    def _show(self) -> None:
        if self._live and os.environ.get("NO_COLOR") is None and self._client.views:
            from .terminal_picture import picture_lines

            lines = picture_lines(list(self._client.views.values()), columns=columns())
            if lines:
                say("\n".join(lines))


def _mark(good: bool) -> str:
    return "ok  " if good else "FAIL"


def _pruner(report: dict[str, str]) -> str:
    if report.get("visual_pruning", "off") == "off":
        return "pruner off"
    kept, tokens = report["visual_tokens_kept"], report["visual_tokens"]
    return f"pruner {report['visual_pruning']}: kept {kept} of {tokens} visual tokens"
