"""A node with cameras, and another one that publishes what they see."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import rclpy
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image

from edgellm_ros.ros.images import CameraInputs
from edgellm_ros.ros.parameters import Settings
from edgellm_ros.ros.qos_events import QosWatch

DISCOVERY = 60.0


def image_message(clock: Any, value: int = 7, *, height: int = 4, width: int = 6, frame: str = "lens") -> Image:
    message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
    message.data = bytes([value]) * (3 * width * height)
    message.header.frame_id = frame
    message.header.stamp = clock.now().to_msg()
    return message


class CameraBench:
    """A node with the cameras of ``parameters``, and one that publishes, each in a thread of its own."""

    def __init__(self, parameters: dict[str, Any], overrides: dict[str, Any]) -> None:
        self.context = Context()
        rclpy.init(context=self.context)
        self.warnings: list[tuple[str, str]] = []
        self.node = Node(
            "sees",
            context=self.context,
            parameter_overrides=[Parameter(name, value=value) for name, value in overrides.items()],
        )
        self.robot = Node("robot", context=self.context)
        self.settings = Settings.from_values(parameters)
        self.qos = QosWatch(lambda topic, sentence: self.warnings.append((topic, sentence)))
        self.executors = [SingleThreadedExecutor(context=self.context) for _ in range(2)]
        for executor, node in zip(self.executors, (self.node, self.robot), strict=True):
            executor.add_node(node)
            threading.Thread(target=self._spin, args=(executor,), daemon=True).start()
        self.cameras: CameraInputs | None = None

    @staticmethod
    def _spin(executor: SingleThreadedExecutor) -> None:
        with contextlib.suppress(ExternalShutdownException):
            executor.spin()

    def open(self, **options: Any) -> CameraInputs:
        values = {"boxes": lambda height, width: np.array([[0.0, 0.0, 1.0, 0.5], [0.0, 0.5, 1.0, 1.0]]), **options}
        self.cameras = CameraInputs(
            self.node,
            self.settings,
            self.qos,
            lambda kind, sentence: self.warnings.append((kind, sentence)),
            **values,
        )
        return self.cameras

    def publish_until(self, publisher: Any, make: Callable[[], Any], condition: Callable[[], Any]) -> None:
        """Publish at 50 Hz, as a camera does, until the condition holds."""
        end = time.monotonic() + DISCOVERY
        while not condition():
            assert time.monotonic() < end, self.warnings
            publisher.publish(make())
            time.sleep(0.02)

    def wait(self, condition: Callable[[], Any], deadline: float = 10.0) -> None:
        end = time.monotonic() + deadline
        while not condition():
            assert time.monotonic() < end, self.warnings
            time.sleep(0.005)

    def take(self, **changes: Any) -> Any:
        assert self.cameras is not None
        values = {f"images.{name}": value for name, value in changes.items()}
        settings = Settings.from_values({**self.settings.values(), **values})
        return self.cameras.take(settings.images, stopped=lambda: False, deadline=time.monotonic() + 10)

    def close(self) -> None:
        for executor in self.executors:
            executor.shutdown(timeout_sec=2.0)
        if self.cameras is not None:
            self.cameras.close()
        self.node.destroy_node()
        self.robot.destroy_node()
        rclpy.try_shutdown(context=self.context)
