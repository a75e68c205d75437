"""The managed node: its topics and services, and what each transition does.

Everything here runs in the executor's thread and none of it waits for the engine, but for the transitions: loading
takes as long as it takes, and ending requests is bounded.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import rclpy
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from std_msgs.msg import Empty, String
from std_srvs.srv import SetBool, Trigger

from ..errors import BackendError, MisuseError, Refusal, RefusalCode
from ..resources import resource_path
from .cameras import refuse_unseen, unseen
from .counters import Counters, Throttle
from .dds_profile import PROFILE_NAME, profile_warning
from .engine_host import EngineHost
from .glances import GLANCE, GlancingGroup
from .history import ConversationHistory
from .images import CameraInputs
from .memory import release_memory
from .monitor import Monitor, NodeState
from .parameter_server import ParameterServer
from .parameters import Settings
from .policy_host import unfit
from .policy_io import PolicyIO
from .publishers import Publishers, publishable, reliable
from .qos_events import QosWatch
from .requests import PromptBridge
from .transitions import refuse_impossible_transitions, transition

CANCELLED = Refusal(RefusalCode.CANCELLED, "The request was cancelled.")
RESET = Refusal(RefusalCode.CANCELLED, "The request was cancelled by a reset.")
DISABLED = Refusal(RefusalCode.DISABLED, "The node is paused; call its service enable with true.")
LEFT = Refusal(RefusalCode.SUPERSEDED, "A prompt that is no task took the place of the task that moved the robot.")
DEACTIVATED = Refusal(RefusalCode.NOT_ACTIVE, "The node was deactivated.")
SHUT_DOWN = Refusal(RefusalCode.SHUTTING_DOWN, "The node is shutting down.")
FAILED = Refusal(RefusalCode.NOT_ACTIVE, "The node stopped after a transition that failed.")


class EdgeLLMNode(LifecycleNode):  # type: ignore[misc]
    """One engine behind ``prompt`` and ``response``."""

    def __init__(self, node_name: str = "edgellm", **options: Any) -> None:
        """``options`` are those of ``rclpy.node.Node``.

        :raises EdgeLLMError: a parameter given at start is refused.
        """
        super().__init__(node_name, **options)
        self._throttle = Throttle()
        self.state = NodeState()
        self.parameters = ParameterServer(self, lambda: str(self._state_machine.current_state[1]))
        self.counters = Counters()
        self.history = ConversationHistory()
        self.qos = QosWatch(lambda topic, sentence: self.warn(f"qos {topic}", sentence))
        self.outputs = Publishers(self, self.counters, self.qos)
        self.bridge = PromptBridge(
            self.outputs, self.counters, self.history, lambda refusal: self.warn(refusal.code.value, refusal.message)
        )
        self.monitor = Monitor(
            self,
            self.state,
            self.parameters,
            self.outputs,
            self.bridge,
            self.counters,
            self.history,
            self.qos,
        )
        refuse_impossible_transitions(self)
        self._create_inputs()
        # A clock of its own: with use_sim_time and no /clock, a timer of ROS time would never say why it is silent.
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(1.0, self.guarded(self.monitor.tick), clock=steady)
        self.create_timer(GLANCE, self.default_callback_group.look, clock=steady)
        if self.parameters.settings().autostart:
            self._autostart_timer = self.create_timer(0.0, self._autostart, clock=steady)
        self._tell_what_was_found()

    @functools.cached_property
    def default_callback_group(self) -> GlancingGroup:
        """The group of everything that is created without one, by ``Node`` as well."""
        return GlancingGroup()

    def _create_inputs(self) -> None:
        for kind, topic, callback, depth in (
            (String, "prompt", self._on_prompt, 10),
            (Empty, "cancel", self._on_cancel, 1),
        ):
            self.create_subscription(
                kind,
                topic,
                self.guarded(callback),
                reliable(depth),
                event_callbacks=self.qos.subscription_callbacks(self.resolve_topic_name(topic)),
                qos_overriding_options=self.qos.overridable(),
            )
        self.create_service(Trigger, "~/cancel", self._on_cancel_service)
        self.create_service(Trigger, "~/reset", self._on_reset)
        self.create_service(SetBool, "~/enable", self._on_enable)

    def _tell_what_was_found(self) -> None:
        """Say at start what will not work as somebody may expect."""
        middleware = rclpy.get_rmw_implementation_identifier()
        self.state.profile_warning = profile_warning(os.environ, middleware, profile=resource_path(PROFILE_NAME)) or ""
        for sentence in (*self.parameters.unknown_overrides(), self.state.profile_warning):
            if sentence:
                self.get_logger().warning(sentence)
        self.monitor.tick()

    def warn(self, kind: str, sentence: str) -> None:
        """Log a warning, at most one of a kind every few seconds. Any thread may call it."""
        message = self._throttle.admit(kind, publishable(sentence))
        if message:
            self.get_logger().warning(message)

    def guarded(self, callback: Callable[..., None]) -> Callable[..., None]:
        """A callback whose exception is logged instead of ending the process."""

        @functools.wraps(callback)
        def call(*arguments: Any) -> None:
            try:
                callback(*arguments)
            except Exception as error:
                self.warn(callback.__name__, f"{callback.__name__} failed: {type(error).__name__}: {error}")

        return call

    # -- inputs ------------------------------------------------------------------------------------------------

    def _on_prompt(self, message: String) -> None:
        refusal = None
        if self.parameters.lifecycle() != "active":
            refusal = Refusal(RefusalCode.NOT_ACTIVE, f"The prompt was refused. {self.monitor.status()[1]}")
        elif not self.state.enabled:
            refusal = DISABLED
        request = self.bridge.offer(message.data, self.parameters.settings(), refusal)
        self.get_logger().debug(f"prompt {request.request_id}: {message.data}")

    def _on_cancel(self, _message: Empty) -> None:
        self._cancel_all(CANCELLED)

    def _hold(self, refusal: Refusal) -> None:
        """Stop motion at once, before anything that may take time; and behind it, for a task that began in between."""
        if self.state.policy is not None:
            self.state.policy.stop(refusal)

    def _cancel_all(self, refusal: Refusal) -> tuple[int, int]:
        self._hold(refusal)
        counts = self.bridge.cancel_all(refusal)
        self._hold(refusal)
        return counts

    def _stop(self, refusal: Refusal) -> None:
        self._hold(refusal)
        try:
            self.bridge.stop(refusal)
        finally:
            self._hold(refusal)

    def _on_cancel_service(self, _request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        running, waiting = self._cancel_all(CANCELLED)
        response.success = True
        response.message = f"Cancelled {running} running and {waiting} waiting requests."
        return response

    def _on_reset(self, _request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        running, waiting = self._cancel_all(RESET)
        if self.state.policy is not None:
            self.state.policy.host.seeds.reset()
        turns = self.history.clear()
        response.success = True
        response.message = (
            f"Forgot {turns} turns of history; cancelled {running} running and {waiting} waiting requests."
        )
        return response

    def _on_enable(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        self.state.enabled = bool(request.data)
        response.success = True
        response.message = "Prompts are answered."
        if not self.state.enabled:
            running, waiting = self._cancel_all(DISABLED)
            response.message = f"Prompts are refused; stopped {running} running and {waiting} waiting requests."
        self.guarded(self.monitor.tick)()
        return response

    # -- transitions -------------------------------------------------------------------------------------------

    @transition(TransitionCallbackReturn.FAILURE)
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load the engine and warm it up."""
        settings = self.parameters.settings()
        self.monitor.say(f"Loading {settings.engine.directory or 'the fake engine'}.")
        host = EngineHost.load(settings)
        try:
            self._open_cameras(host, settings)
            self._open_policy(host, settings)
        except BaseException:
            self._close_inputs()
            host.close()
            raise
        self.state.host = host
        cameras = self.state.cameras
        sees = f"cameras {', '.join(camera.topic for camera in cameras.cameras)}" if cameras else "text only"
        acts = "; a prompt is a task" if host.policy is not None else ""
        self.get_logger().info(f"Loaded {host.facts.summary} in {host.facts.load_time:.2f} s; {sees}{acts}.")
        return TransitionCallbackReturn.SUCCESS

    @transition(TransitionCallbackReturn.FAILURE)
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start to answer prompts."""
        if self.state.host is None:
            raise MisuseError("no engine is loaded; clean up and configure the node.")
        self.bridge.start(self.state.host, self.state.cameras)
        return TransitionCallbackReturn.SUCCESS

    @transition(TransitionCallbackReturn.ERROR)
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """End every request with a reason and stop answering."""
        self._stop(DEACTIVATED)
        return TransitionCallbackReturn.SUCCESS

    @transition(TransitionCallbackReturn.ERROR)
    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free the engine."""
        self._free_engine()
        return TransitionCallbackReturn.SUCCESS

    @transition(TransitionCallbackReturn.FAILURE)
    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """End every request and free the engine, from any state."""
        self._stop(SHUT_DOWN)
        self._free_engine()
        return TransitionCallbackReturn.SUCCESS

    @transition(TransitionCallbackReturn.SUCCESS)
    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Give back what can be given back, so that the node can be configured again."""
        try:
            self._stop(FAILED)
        finally:
            self._free_engine()
        return TransitionCallbackReturn.SUCCESS

    def _open_cameras(self, host: EngineHost, settings: Settings) -> None:
        if not host.takes_images and host.policy is None:
            refuse_unseen(settings)
            self.parameters.unserved = unseen
            return
        names = () if host.policy is None else [slot.name for slot in host.policy.manifest.seen_cameras]
        boxes = host.token_boxes if host.takes_images else None
        driving = host.policy.manifest.driving if host.policy is not None else None
        series = driving.frames if driving is not None else 1
        self.state.cameras = CameraInputs(self, settings, self.qos, self.warn, boxes, names, series)

    def _open_policy(self, host: EngineHost, settings: Settings) -> None:
        if host.policy is not None and self.state.cameras is not None:
            host.policy.manifest.present_cameras([camera.name for camera in self.state.cameras.cameras])
            self.state.policy = PolicyIO(self, host.policy, self.state.cameras, self.counters)
            host.act = self.state.policy.make_run
            host.leave = functools.partial(self.state.policy.motion.leave, LEFT)
            self.parameters.unserved = functools.partial(unfit, host.policy.manifest)

    def _close_inputs(self) -> None:
        policy, self.state.policy = self.state.policy, None
        cameras, self.state.cameras = self.state.cameras, None
        for part in (policy, cameras):
            if part is not None:
                part.close()

    def _free_engine(self) -> None:
        host, self.state.host = self.state.host, None
        self.parameters.unserved = lambda _name, _value: None
        self._close_inputs()
        if host is None:
            return
        closed = host.close()
        del host
        release_memory()
        if not closed:
            raise BackendError(
                "A step of the engine does not return, so its memory could not be freed; restart the process.",
                RefusalCode.STEP_TIMEOUT,
            )

    def _autostart(self) -> None:
        self.destroy_timer(self._autostart_timer)
        if self.parameters.lifecycle() == "unconfigured":
            self.trigger_configure()
        if self.parameters.lifecycle() == "inactive":
            self.trigger_activate()
        self.guarded(self.monitor.tick)()
