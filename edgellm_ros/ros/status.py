"""Why is it silent? The state of the node in one sentence, naming the first thing that is missing."""

from __future__ import annotations

from dataclasses import dataclass

from .report import Level


@dataclass(frozen=True)
class NodeFacts:
    """What the sentence is made of. ``lifecycle`` is the state's label; names are fully qualified."""

    lifecycle: str
    node_name: str
    prompt_topic: str
    enabled: bool = True
    engine_directory_set: bool = True
    failure: str = ""
    engine_summary: str = ""
    engine_fault: str = ""
    clock_missing: bool = False
    images_missing: str = ""
    running: bool = False
    waiting: int = 0
    prompt_publishers: int = 0


def node_status(facts: NodeFacts) -> tuple[Level, str]:
    """Level and sentence of ``~/status``."""
    command = f"ros2 lifecycle set {facts.node_name}"
    if facts.lifecycle == "unconfigured":
        if facts.failure:
            return Level.ERROR, f"No engine: {facts.failure}"
        if not facts.engine_directory_set:
            return Level.WARN, "No engine: set the parameter engine.directory, then configure the node."
        return Level.WARN, f"No engine is loaded yet: run '{command} configure' or start with autostart true."
    if facts.lifecycle == "inactive":
        return Level.WARN, f"The engine is loaded but the node is inactive: run '{command} activate'."
    if facts.lifecycle != "active":
        return Level.WARN, f"The node is {facts.lifecycle}."
    if facts.engine_fault:
        return Level.ERROR, facts.engine_fault
    if not facts.enabled:
        return Level.WARN, f"Paused: call {facts.node_name}/enable with true."
    if facts.running:
        waiting = f", {facts.waiting} waiting" if facts.waiting else ""
        return Level.OK, f"Answering a prompt{waiting}."
    if facts.clock_missing:
        return Level.WARN, "Ready, but use_sim_time is true and nothing came on /clock: stamps are zero."
    if facts.images_missing:
        return Level.WARN, f"Ready for prompts, but there is nothing to see: {facts.images_missing}"
    if not facts.prompt_publishers:
        return Level.OK, f"Ready: {facts.engine_summary}; nobody publishes on {facts.prompt_topic} yet."
    return Level.OK, f"Ready: {facts.engine_summary}; waiting for a prompt on {facts.prompt_topic}."
