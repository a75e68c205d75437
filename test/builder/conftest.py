"""Small checkpoints, and a place for what is built of them."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    from edgellm_ros.builder.random_weights import write_random_llama_checkpoint

    return write_random_llama_checkpoint(tmp_path_factory.mktemp("m") / "checkpoint")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "engine"


@pytest.fixture(scope="module")
def block_model(tmp_path_factory):
    """A Llama folder whose widths are whole blocks of GGUF: (folder, config, tensors)."""
    from reference_llama import read_folder

    from edgellm_ros.builder.random_weights import write_random_llama_checkpoint

    folder = write_random_llama_checkpoint(
        tmp_path_factory.mktemp("model"), hidden_size=64, intermediate_size=96, num_attention_heads=4,
        num_key_value_heads=2, head_dim=24 * 2, rms_norm_eps=9.999999747378752e-06, tie_word_embeddings=False,
    )  # fmt: skip
    return folder, *read_folder(folder)
