"""A small tabletop world with a three-joint arm: physics, cameras, tasks in language, a scripted expert and a judge.

Pure NumPy and OpenCV; of ROS know only the world's node and its client. Every state is a batch of worlds, so the same
code steps one world for a robot node and hundreds for a trainer. Units are metres, seconds and radians.
"""
