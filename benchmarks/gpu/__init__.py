"""Measurements and checks on an NVIDIA GPU; ``python -m benchmarks.gpu`` says what there is."""
