"""Facts from published configurations: the keys that matter, and what a family must read from them."""

from __future__ import annotations

from typing import Any

PARSED: dict[str, dict[str, Any]] = {
    "SmolLM2 135M": {
        "config": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 576,
            "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
            "rms_norm_eps": 1e-5, "rope_theta": 100000, "vocab_size": 49152, "tie_word_embeddings": True,
            "max_position_embeddings": 8192, "bos_token_id": 1, "eos_token_id": 2, "rope_interleaved": False,
        },
        "wanted": {
            "family": "llama", "head_dim": 64, "tied": True, "attention_scale": 0.125, "norm_epsilon": 1e-5,
            "query_key_value_bias": False, "window": 0, "activation": "silu", "embedding_scale": 1.0,
        },
    },
    "Llama 3.2 1B": {
        "config": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 2048,
            "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "vocab_size": 128256,
            "tie_word_embeddings": True, "max_position_embeddings": 131072, "bos_token_id": 128000,
            "eos_token_id": [128001, 128008, 128009], "attention_bias": False, "mlp_bias": False,
            "rope_scaling": {
                "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            },
        },
        "wanted": {"family": "llama", "head_dim": 64, "num_hidden_layers": 16, "bos_token_id": 128000, "tied": True},
    },
    "SmolLM3 3B": {
        "config": {
            "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "hidden_act": "silu",
            "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
            "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 5000000.0, "vocab_size": 128256,
            "max_position_embeddings": 65536, "bos_token_id": 128000, "eos_token_id": 128012, "pad_token_id": 128004,
            "layer_types": ["full_attention"] * 36, "max_window_layers": 28, "no_rope_layer_interval": 4,
            "no_rope_layers": [1, 1, 1, 0] * 9, "sliding_window": None, "use_sliding_window": False,
        },
        "wanted": {"family": "smollm3", "head_dim": 128, "tied": True, "window": 0},
    },
    "Qwen2.5 0.5B": {
        "config": {
            "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 896,
            "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "vocab_size": 151936, "tie_word_embeddings": True,
            "max_position_embeddings": 32768, "max_window_layers": 24, "sliding_window": 32768, "use_mrope": False,
            "use_sliding_window": False, "bos_token_id": 151643, "eos_token_id": 151643,
        },
        "wanted": {
            "family": "qwen2", "head_dim": 64, "query_key_value_bias": True, "output_bias": False, "mlp_bias": False,
            "query_key_norm": False, "window": 0, "tied": True,
        },
    },
    "Qwen3 0.6B": {
        "config": {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "hidden_size": 1024,
            "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
            "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "vocab_size": 151936,
            "tie_word_embeddings": True, "max_position_embeddings": 40960, "attention_bias": False,
            "max_window_layers": 28, "rope_scaling": None, "sliding_window": None, "use_sliding_window": False,
            "bos_token_id": 151643, "eos_token_id": 151645,
        },
        "wanted": {
            "family": "qwen3", "head_dim": 128, "query_key_value_bias": False, "query_key_norm": True,
            "attention_scale": 128**-0.5, "hidden_size": 1024,
        },
    },
    "Gemma 2B": {
        "config": {
            "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "hidden_act": "gelu", "hidden_size": 2048,
            "intermediate_size": 16384, "num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1,
            "head_dim": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "vocab_size": 256000,
            "max_position_embeddings": 8192, "attention_bias": False, "bos_token_id": 2, "eos_token_id": 1,
            "pad_token_id": 0, "rope_scaling": None,
        },
        "wanted": {
            "family": "gemma", "activation": "gelu_tanh", "norm_offset": 1.0, "embedding_scale": 2048**0.5,
            "tied": True, "sandwich_norms": False, "attention_scale": 1 / 16,
        },
    },
    "Gemma 2 2B": {
        "config": {
            "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "intermediate_size": 9216,
            "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "vocab_size": 256000, "max_position_embeddings": 8192,
            "attention_bias": False, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
            "query_pre_attn_scalar": 256, "sliding_window": 4096, "cache_implementation": "hybrid",
            "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
        },
        "wanted": {
            "family": "gemma2", "attention_softcap": 50.0, "logit_softcap": 30.0, "sandwich_norms": True,
            "window": 4096, "embedding_scale": 48.0, "query_key_norm": False, "tied": True,
        },
    },
    "Gemma 3 1B": {
        "config": {
            "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
            "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
            "rms_norm_eps": 1e-6, "rope_theta": 1000000, "rope_local_base_freq": 10000, "rope_scaling": None,
            "vocab_size": 262144, "max_position_embeddings": 32768, "attention_bias": False,
            "attn_logit_softcapping": None, "final_logit_softcapping": None, "query_pre_attn_scalar": 256,
            "sliding_window": 512, "sliding_window_pattern": 6, "bos_token_id": 2, "eos_token_id": [1, 106],
            "pad_token_id": 0,
        },
        "wanted": {
            "family": "gemma3", "query_key_norm": True, "sandwich_norms": True, "window": 512, "logit_softcap": 0.0,
            "attention_softcap": 0.0, "embedding_scale": 1152**0.5,
        },
    },
    "Gemma 3 270M": {
        "config": {
            "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "_sliding_window_pattern": 6,
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 640, "intermediate_size": 2048,
            "num_hidden_layers": 18, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
            "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": None,
            "vocab_size": 262144, "max_position_embeddings": 32768, "use_bidirectional_attention": False,
            "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3, "query_pre_attn_scalar": 256,
            "sliding_window": 512, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
        },
        "wanted": {"family": "gemma3", "head_dim": 256, "window": 512, "hidden_size": 640},
    },
    "Gemma 3 4B, its text part": {
        "config": {
            "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 106],
            "image_token_index": 262144, "mm_tokens_per_image": 256,
            "text_config": {
                "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
            },
            "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
        },
        "wanted": {
            "family": "gemma3", "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4,
            "head_dim": 256, "window": 1024, "max_position_embeddings": 131072, "tied": True,
        },
    },
    "Qwen2-VL 2B, its text part": {
        "config": {
            "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", "hidden_act": "silu",
            "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "vocab_size": 151936,
            "tie_word_embeddings": True, "max_position_embeddings": 32768, "max_window_layers": 28,
            "sliding_window": 32768, "use_sliding_window": False, "bos_token_id": 151643, "eos_token_id": 151645,
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "vision_config": {"depth": 32},
        },
        "wanted": {
            "family": "qwen2", "head_dim": 128, "query_key_value_bias": True,
            "extra": {"text_part_of": "Qwen2VLForConditionalGeneration", "mrope_section": [16, 24, 24]},
        },
    },
    "Qwen3-VL 8B, its text part": {
        "config": {
            "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
            "tie_word_embeddings": False,
            "text_config": {
                "attention_bias": False, "bos_token_id": 151643, "dtype": "bfloat16", "eos_token_id": 151645,
                "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288,
                "max_position_embeddings": 262144, "model_type": "qwen3_vl_text", "num_attention_heads": 32,
                "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_theta": 5000000,
                "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
                "vocab_size": 151936,
            },
        },
        "wanted": {"family": "qwen3", "tied": False, "num_hidden_layers": 36, "query_key_norm": True},
    },
    "SmolVLM 500M, its text part": {
        "config": {
            "architectures": ["SmolVLMForConditionalGeneration"], "model_type": "smolvlm",
            "tie_word_embeddings": False, "pad_token_id": 128002,
            "text_config": {
                "architectures": ["VLlama3ForCausalLM"], "head_dim": 64, "hidden_size": 960,
                "intermediate_size": 2560, "max_position_embeddings": 8192, "model_type": "llama",
                "num_attention_heads": 15, "num_hidden_layers": 32, "num_key_value_heads": 5, "pad_token_id": 2,
                "rms_norm_eps": 1e-5, "rope_interleaved": False, "rope_theta": 100000, "vocab_size": 49280,
            },
        },
        "wanted": {"family": "llama", "pad_token_id": 2, "tied": False, "head_dim": 64},
    },
    "InternVL3 2B, its text part": {
        "config": {
            "architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "tie_word_embeddings": False,
            "llm_config": {
                "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 1536,
                "intermediate_size": 8960, "max_position_embeddings": 32768, "max_window_layers": 70,
                "model_type": "qwen2", "num_attention_heads": 12, "num_hidden_layers": 28, "num_key_value_heads": 2,
                "rms_norm_eps": 1e-6, "rope_scaling": {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"},
                "rope_theta": 1000000.0, "sliding_window": None, "tie_word_embeddings": False, "vocab_size": 151674,
            },
        },
        "wanted": {"family": "qwen2", "vocab_size": 151674, "tied": False},
    },
}  # fmt: skip

_LLAMA = PARSED["SmolLM2 135M"]["config"]

REFUSED: dict[str, dict[str, Any]] = {
    "an EAGLE-3 draft head": {
        "config": {**_LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000},
        "sentence": "'LlamaForCausalLMEagle3', which is not built, because it is a draft head",
    },
    "a draft head under a plain name": {
        "config": {**_LLAMA, "num_hidden_layers": 1, "draft_vocab_size": 32000},
        "sentence": "draft_vocab_size is 32000; .* a draft head cannot answer without its base model",
    },
    "a block-parallel draft model": {
        "config": {"architectures": ["DFlashDraftModel"], "model_type": "qwen3"},
        "sentence": "'DFlashDraftModel', which is not built, because it is a draft head",
    },
    "OpenVLA": {
        "config": {"architectures": ["OpenVLAForActionPrediction"], "text_config": {"model_type": "llama"}},
        "sentence": "'OpenVLAForActionPrediction', .* action model",
    },
    "the backbone of GR00T N1.5": {
        "config": {"architectures": ["Eagle2_5_VLForConditionalGeneration"], "text_config": {"model_type": "qwen3"}},
        "sentence": "'Eagle2_5_VLForConditionalGeneration', .* action model",
    },
    "GR00T N1.7": {"config": {"architectures": ["Gr00tN1d7"]}, "sentence": "'Gr00tN1d7', .* action model"},
    "a policy": {"config": {"type": "pi0", "chunk_size": 50}, "sentence": "a policy of the type 'pi0'"},
    "Qwen3 8B in FP8": {
        "config": {
            **PARSED["Qwen3 0.6B"]["config"],
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        },
        "sentence": "quantization_config .method 'fp8'.*not quantised",
    },
    "Qwen2-VL in AWQ": {
        "config": {
            **PARSED["Qwen2-VL 2B, its text part"]["config"],
            "quantization_config": {"quant_method": "awq", "bits": 4},
        },
        "sentence": "quantization_config .method 'awq'",
    },
    "Qwen3 in 4 bits of MLX": {
        "config": {**PARSED["Qwen3 0.6B"]["config"], "quantization": {"group_size": 64, "bits": 4}},
        "sentence": "quantization .method '4 bits'",
    },
    "a mixture of experts": {
        "config": {"architectures": ["Qwen3MoeForCausalLM"]},
        "sentence": r"architectures \['Qwen3MoeForCausalLM'\]; want one of LlamaForCausalLM",
    },
    "no architecture": {"config": {"model_type": "llama"}, "sentence": "architectures None; want one of"},
    "an architecture that is no list": {"config": {"architectures": "LlamaForCausalLM"}, "sentence": "want one of"},
    "a vision model without its text": {
        "config": {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": None},
        "sentence": "text_config is None; want the object of Gemma3ForConditionalGeneration",
    },
}  # fmt: skip
