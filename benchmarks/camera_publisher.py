"""Cameras of a robot in a process of their own: publishes while standard input says ``on``, ends with it.

python -m benchmarks.camera_publisher CAMERAS HEIGHT WIDTH RATE
"""

from __future__ import annotations

import sys
import threading
import time

import rclpy
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image


def main() -> None:
    cameras, height, width, rate = (int(argument) for argument in sys.argv[1:5])
    rclpy.init()
    node = rclpy.create_node("cameras")
    publishers = [
        node.create_publisher(Image, f"camera{index}/image_raw", qos_profile_sensor_data) for index in range(cameras)
    ]
    message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
    message.data.frombytes(bytes(3 * width * height))
    running, ended = threading.Event(), threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            (running.set if line.strip() == "on" else running.clear)()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    due = time.monotonic()
    while not ended.is_set():
        if not running.wait(0.05):
            due = time.monotonic()
            continue
        message.header.stamp = node.get_clock().now().to_msg()
        for publisher in publishers:
            publisher.publish(message)
        due += 1 / rate
        time.sleep(max(0.0, due - time.monotonic()))
    node.destroy_node()
    rclpy.try_shutdown()


if __name__ == "__main__":
    main()
