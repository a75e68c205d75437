"""NVIDIA GPUs: memory, kernels and engines through cuda-python; nothing here is imported before it is used."""
