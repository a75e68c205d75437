"""Cameras of a robot in a process of their own: publishes what standard input says, and ends with it.

python -m benchmarks.camera_publisher CAMERAS HEIGHT WIDTH RATE

A line ``on`` starts frames of that size, ``tiny`` frames of 8 by 8 pixels, ``off`` none; each is answered by a line
with the messages that were published since the last.
"""

from __future__ import annotations

import sys
import threading
import time

import rclpy
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image


def make_image(height: int, width: int) -> Image:
    message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
    message.data.frombytes(bytes(3 * width * height))
    return message


def main() -> None:
    cameras, height, width, rate = (int(argument) for argument in sys.argv[1:5])
    rclpy.init()
    node = rclpy.create_node("cameras")
    publishers = [
        node.create_publisher(Image, f"camera{index}/image_raw", qos_profile_sensor_data) for index in range(cameras)
    ]
    messages = {"off": None, "tiny": make_image(8, 8), "on": make_image(height, width)}
    words, ended = ["off"], threading.Event()
    published = [0]

    def listen() -> None:
        for line in sys.stdin:
            words[0] = line.strip()
            print(published[0], flush=True)
            published[0] = 0
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    due = time.monotonic()
    while not ended.is_set():
        message = messages[words[0]]
        if message is not None:
            message.header.stamp = node.get_clock().now().to_msg()
            for publisher in publishers:
                publisher.publish(message)
                published[0] += 1
        due = max(due + 1 / rate, time.monotonic() - 1)
        time.sleep(max(0.0, due - time.monotonic()))
    node.destroy_node()
    rclpy.try_shutdown()


if __name__ == "__main__":
    main()
