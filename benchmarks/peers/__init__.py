"""Other engines that run the same weights; each works in a process of its own and may be missing."""
