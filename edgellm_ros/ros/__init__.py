"""The ROS 2 node: translates topics, parameters and lifecycle to the runtime; no model code here."""
