"""Writes ``alpamayo/``: a tiny random Alpamayo-R1 in its published layout, what it saw, said and drove.

Run with torch and transformers 4.57 or later: ``python make_alpamayo.py``. The language model is transformers' own
Qwen3-VL; the expert and everything around it is written out here from the published description. Weights are rounded
to bfloat16 before the reference runs. The head's row of the marker is set so that a reasoning of three tokens ends.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

HERE = Path(__file__).parent / "alpamayo"
CAMERAS = ("cross_left", "front_wide", "cross_right", "front_tele")
FRAMES, POINTS, WAYPOINTS, BINS, FUTURE_BINS, SAID = 4, 16, 6, 1000, 40, 3
LAYERS, HEADS, KV_HEADS, HEAD, WIDTH, INNER, EMBED, WAVES = 3, 4, 2, 16, 24, 40, 20, 6
TRAJECTORY = FUTURE_BINS + BINS
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
           "<|video_pad|>"]  # fmt: skip
ADDED = ["prompt_start", "prompt_end", "image_start", "image_pre_tkn", "image_end", "traj_history_start",
         "traj_history_pre_tkn", "traj_history_end", "cot_start", "cot_end", "meta_action_start", "meta_action_end",
         "traj_future_start", "traj_future_pre_tkn", "traj_future_end", "traj_history", "traj_future", "image_pad",
         "vectorized_wm", "vectorized_wm_start", "vectorized_wm_end", "vectorized_wm_pre_tkn", "route_start",
         "route_pad", "route_end", "question_start", "question_end", "answer_start", "answer_end"]  # fmt: skip
SYSTEM = "You are a driving assistant that generates safe and accurate actions."
TASK = "output the chain-of-thought reasoning of the driving process, then output the future trajectory."
PIXELS = {"size": {"shortest_edge": 256, "longest_edge": 512}, "patch_size": 4, "temporal_patch_size": 2,
          "merge_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}  # fmt: skip


def tokenizer() -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """That of the language model, and the same with trajectories and marks."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    made.train_from_iterator([SYSTEM, TASK], trainer)
    base = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>")
    whole = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(made.to_str()), eos_token="<|im_end|>")
    whole.add_tokens([f"<i{index}>" for index in range(TRAJECTORY)])
    whole.add_tokens([f"<|{name}|>" for name in ADDED], special_tokens=True)
    return base, whole


def language(base: PreTrainedTokenizerFast) -> dict:
    text = {
        "model_type": "qwen3_vl_text", "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "vocab_size": len(base), "max_position_embeddings": 512, "rope_theta": 5000000,
        "tie_word_embeddings": False, "attention_bias": False, "eos_token_id": base.eos_token_id,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [3, 3, 2], "rope_type": "default"},
    }  # fmt: skip
    vision = {
        "model_type": "qwen3_vl", "depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2,
        "in_channels": 3, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 32,
        "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1], "hidden_act": "gelu_pytorch_tanh",
    }  # fmt: skip
    ids = {f"{name}_token_id": base.convert_tokens_to_ids(f"<|{token}|>") for name, token in
           (("image", "image_pad"), ("video", "video_pad"), ("vision_start", "vision_start"),
            ("vision_end", "vision_end"))}  # fmt: skip
    return {"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], **ids,
            "tie_word_embeddings": False, "text_config": text, "vision_config": vision}  # fmt: skip


def configuration(whole: PreTrainedTokenizerFast) -> dict:
    names = ("history", "future", "history_start", "future_start", "history_end", "future_end")
    return {
        "architectures": ["AlpamayoR1"], "model_type": "alpamayo_r1", "vocab_size": len(whole),
        "vlm_name_or_path": "Qwen/Qwen3-VL-8B-Instruct", "add_special_tokens": True,
        "expert_cfg": {"hidden_size": WIDTH, "intermediate_size": INNER, "num_attention_heads": HEADS,
                       "head_dim": HEAD},
        "action_space_cfg": {
            "_target_": "alpamayo_r1.action_space.UnicycleAccelCurvatureActionSpace", "n_waypoints": WAYPOINTS,
            "dt": 0.1, "accel_mean": 0.03, "accel_std": 0.7, "curvature_mean": 0.0003, "curvature_std": 0.026,
            "accel_bounds": [-9.8, 9.8], "curvature_bounds": [-0.33, 0.33],
        },
        "action_in_proj_cfg": {"hidden_size": EMBED, "max_freq": 100.0, "num_enc_layers": 2,
                               "num_fourier_feats": 2 * WAVES},
        "action_out_proj_cfg": {"_target_": "torch.nn.Linear"},
        "diffusion_cfg": {"int_method": "euler", "num_inference_steps": 10},
        "tokens_per_future_traj": 64, "tokens_per_history_traj": 3 * POINTS, "traj_vocab_size": TRAJECTORY,
        "traj_token_start_idx": whole.convert_tokens_to_ids("<i0>"),
        "traj_token_ids": {name: whole.convert_tokens_to_ids(f"<|traj_{name}|>") for name in names},
        "hist_traj_tokenizer_cfg": {
            "_target_": "alpamayo_r1.models.delta_tokenizer.DeltaTrajectoryTokenizer", "num_bins": BINS,
            "ddxyz_min": [-4, -4, -10], "ddxyz_max": [4, 4, 10],
        },
        "traj_tokenizer_cfg": {"num_bins": FUTURE_BINS}, "expert_non_causal_attention": True,
        "min_pixels": 256, "max_pixels": 512, "dtype": "bfloat16",
    }  # fmt: skip


def random_(tensors: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            tensor.copy_((1 if name.endswith("weight") else 0) + 0.2 * torch.randn_like(tensor))
        else:
            tensor.copy_(torch.randn_like(tensor) * (1.2 / tensor[0].numel() ** 0.5))
        tensor.copy_(tensor.bfloat16().float())


def expert_shapes() -> dict[str, tuple[int, ...]]:
    shapes = {}
    for index in range(LAYERS):
        root = f"expert.layers.{index}."
        shapes |= {
            f"{root}self_attn.q_proj.weight": (HEADS * HEAD, WIDTH),
            f"{root}self_attn.k_proj.weight": (KV_HEADS * HEAD, WIDTH),
            f"{root}self_attn.v_proj.weight": (KV_HEADS * HEAD, WIDTH),
            f"{root}self_attn.o_proj.weight": (WIDTH, HEADS * HEAD),
            f"{root}self_attn.q_norm.weight": (HEAD,), f"{root}self_attn.k_norm.weight": (HEAD,),
            f"{root}mlp.gate_proj.weight": (INNER, WIDTH), f"{root}mlp.up_proj.weight": (INNER, WIDTH),
            f"{root}mlp.down_proj.weight": (WIDTH, INNER), f"{root}input_layernorm.weight": (WIDTH,),
            f"{root}post_attention_layernorm.weight": (WIDTH,),
        }  # fmt: skip
    trunk = "action_in_proj.encoder.trunk."
    return {
        **shapes, "expert.norm.weight": (WIDTH,), f"{trunk}0.weight": (EMBED, 6 * WAVES), f"{trunk}0.bias": (EMBED,),
        f"{trunk}2.weight": (EMBED,), f"{trunk}3.weight": (EMBED, EMBED), f"{trunk}3.bias": (EMBED,),
        f"{trunk}5.weight": (EMBED,), f"{trunk}6.weight": (WIDTH, EMBED), f"{trunk}6.bias": (WIDTH,),
        "action_in_proj.norm.weight": (WIDTH,), "action_in_proj.norm.bias": (WIDTH,),
        "action_out_proj.weight": (2, WIDTH), "action_out_proj.bias": (2,),
    }  # fmt: skip


def rms(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + epsilon) * weight


def fourier(x: torch.Tensor) -> torch.Tensor:
    speeds = torch.from_numpy((10 ** np.linspace(0, 2, WAVES)).astype(np.float32))
    angle = x[..., None] * speeds * 2 * torch.pi
    return torch.cat([torch.sin(angle), torch.cos(angle)], -1) * math.sqrt(2)


def velocity(w: dict, x: torch.Tensor, t: float, cache: list, position: int) -> torch.Tensor:
    """x [W,2] at time t; cache of (keys, values) [kv_heads,P,head]."""
    silu = torch.nn.functional.silu
    trunk = "action_in_proj.encoder.trunk."
    y = torch.cat([fourier(x[:, 0]), fourier(x[:, 1]), fourier(torch.full((len(x),), t))], -1)
    y = silu(y @ w[f"{trunk}0.weight"].T + w[f"{trunk}0.bias"])
    y = silu(rms(y, w[f"{trunk}2.weight"], 1e-5) @ w[f"{trunk}3.weight"].T + w[f"{trunk}3.bias"])
    y = rms(y, w[f"{trunk}5.weight"], 1e-5) @ w[f"{trunk}6.weight"].T + w[f"{trunk}6.bias"]
    y = torch.nn.functional.layer_norm(y, (WIDTH,), w["action_in_proj.norm.weight"], w["action_in_proj.norm.bias"])
    places = position + torch.arange(len(x), dtype=torch.float64)
    angles = places[:, None] / 5e6 ** (torch.arange(HEAD // 2, dtype=torch.float64) * 2 / HEAD)
    cosine, sine = angles.cos().float(), angles.sin().float()

    def rotated(z: torch.Tensor) -> torch.Tensor:
        low, high = z.split(HEAD // 2, -1)
        return torch.cat([low * cosine - high * sine, high * cosine + low * sine], -1)

    for index, (keys, values) in enumerate(cache):
        root = f"expert.layers.{index}."
        z = rms(y, w[f"{root}input_layernorm.weight"], 1e-6)

        def part(name: str, z: torch.Tensor = z, root: str = root) -> torch.Tensor:
            return (z @ w[f"{root}self_attn.{name}_proj.weight"].T).view(len(z), -1, HEAD).transpose(0, 1)

        query = rotated(rms(part("q"), w[f"{root}self_attn.q_norm.weight"], 1e-6))
        own = rotated(rms(part("k"), w[f"{root}self_attn.k_norm.weight"], 1e-6))
        all_keys = torch.cat([keys, own], 1).repeat_interleave(HEADS // KV_HEADS, 0)
        all_values = torch.cat([values, part("v")], 1).repeat_interleave(HEADS // KV_HEADS, 0)
        seen = torch.softmax(query @ all_keys.transpose(1, 2) / HEAD**0.5, -1) @ all_values
        y = y + seen.transpose(0, 1).reshape(len(x), -1) @ w[f"{root}self_attn.o_proj.weight"].T
        z = rms(y, w[f"{root}post_attention_layernorm.weight"], 1e-6)
        z = silu(z @ w[f"{root}mlp.gate_proj.weight"].T) * (z @ w[f"{root}mlp.up_proj.weight"].T)
        y = y + z @ w[f"{root}mlp.down_proj.weight"].T
    return rms(y, w["expert.norm.weight"], 1e-6) @ w["action_out_proj.weight"].T + w["action_out_proj.bias"]


def history_ids(points: np.ndarray, first: int) -> list[int]:
    moves = np.diff(points, axis=0, prepend=np.zeros((1, 3)))
    low, high = np.array([-4, -4, -10]), np.array([4, 4, 10])
    bins = np.clip(np.round((moves - low) / (high - low) * (BINS - 1)), 0, BINS - 1).astype(int)
    return (first + bins.reshape(-1)).tolist()


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    (HERE / "vlm").mkdir(parents=True)
    base, whole = tokenizer()
    base.save_pretrained(HERE / "vlm")
    shape, config = language(base), configuration(whole)
    (HERE / "vlm" / "config.json").write_text(json.dumps(shape, indent=1))
    (HERE / "vlm" / "preprocessor_config.json").write_text(json.dumps(PIXELS, indent=1))
    (HERE / "config.json").write_text(json.dumps(config, indent=1))
    torch.manual_seed(21)
    given = {key: value for key, value in shape.items() if key not in ("model_type", "architectures")}
    given["text_config"] = {**given["text_config"], "vocab_size": len(whole)}
    model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**given)).eval().float()
    w = {name: torch.empty(size) for name, size in expert_shapes().items()}
    rng = np.random.default_rng(4)
    images = np.stack([
        np.clip(128 + 70 * np.sin(np.add.outer(np.arange(16) / 3, np.arange(24) / 2 + index))[..., None]
                + rng.normal(0, 25, (16, 24, 3)), 0, 255) for index in range(16)
    ]).astype(np.uint8)  # fmt: skip
    pixels = Qwen2VLImageProcessorPil(**PIXELS)(images=list(images), return_tensors="pt")
    marks = "".join("<|vision_start|>" + "<|image_pad|>" * (int(grid.prod()) // 4) + "<|vision_end|>"
                    for grid in pixels["image_grid_thw"])  # fmt: skip
    times = np.arange(POINTS) * 0.1 - 1.5
    history = np.stack([5 * times + 0.4 * times**2, 0.3 * times**2, 0.01 * times], 1)
    text = (f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{marks}<|traj_history_start|>"
            f"{'<|traj_history|>' * (3 * POINTS)}<|traj_history_end|>{TASK}<|im_end|>\n<|im_start|>assistant\n"
            "<|cot_start|>")  # fmt: skip
    ids = whole(text, return_tensors="pt")["input_ids"]
    start = config["traj_token_start_idx"]
    ids[ids == config["traj_token_ids"]["history"]] = torch.tensor(history_ids(history, start + FUTURE_BINS))
    marker = config["traj_token_ids"]["future_start"]
    inputs = {"pixel_values": pixels["pixel_values"], "image_grid_thw": pixels["image_grid_thw"],
              "mm_token_type_ids": (ids == shape["image_token_id"]).int()}  # fmt: skip

    def step(**options):
        out = model(use_cache=True, output_hidden_states=True, **options)
        logits = out.logits[0, -1].clone()
        logits[start : start + TRAJECTORY] = -torch.inf
        return out, logits

    with torch.no_grad():
        random_(dict(model.named_parameters()))
        random_(w)
        # as trained ones do, fast waves count little: otherwise a step makes much of the last bit of a number
        share = torch.from_numpy(0.3 * 10 ** -np.linspace(0, 2, WAVES)).float().repeat(6)
        entry = "action_in_proj.encoder.trunk.0.weight"
        w[entry] = (w[entry] * share).bfloat16().float()
        said: list[int] = []
        model.lm_head.weight[marker] = 0
        out, logits = step(input_ids=ids, **inputs)
        earlier = []
        while len(said) < SAID:
            earlier.append(out.hidden_states[-1][0, -1])
            said.append(int(logits.argmax()))
            options = {"input_ids": torch.tensor([said[-1:]]), "past_key_values": out.past_key_values}
            out, logits = step(**options)
        hidden = out.hidden_states[-1][0, -1]
        basis = torch.linalg.qr(torch.stack(earlier, 1))[0]
        own = hidden - basis @ (basis.T @ hidden)  # what no earlier state has
        row = own * (1.6 * logits.max() / (own * hidden).sum())
        model.lm_head.weight[marker] = row.bfloat16().float()
        again: list[int] = []
        out, logits = step(input_ids=ids, **inputs)
        while int(logits.argmax()) != marker:
            again.append(int(logits.argmax()))
            assert len(again) <= SAID
            options = {"input_ids": torch.tensor([again[-1:]]), "past_key_values": out.past_key_values}
            out, logits = step(**options)
        assert again == said, (again, said)
        out, _ = step(input_ids=torch.tensor([[marker]]), past_key_values=out.past_key_values)  # its own keys
        cache = [(layer.keys[0], layer.values[0]) for layer in out.past_key_values.layers]
        length = cache[0][0].shape[1]
        assert length == ids.shape[1] + SAID + 1
        position = length + int(model.model.rope_deltas)
        stored = {}
        for case, steps in (("all", 10), ("steps", 4)):
            noise = rng.standard_normal((WAYPOINTS, 2)).astype(np.float32)
            x = torch.from_numpy(noise.copy())
            for index in range(steps):
                x = x + velocity(w, x, index / steps, cache, position) / steps
            stored |= {f"{case}_noise": noise, f"{case}_normalised": x.numpy()}
    np.savez_compressed(
        HERE / "reference.npz", images=images.reshape(4, FRAMES, *images.shape[1:]), history=history,
        prompt_ids=ids[0].numpy(), said=np.array(said), marker=marker, position=position, **stored,
    )  # fmt: skip
    cases = {"all": {"cameras": CAMERAS, "steps": 10}, "steps": {"cameras": CAMERAS, "steps": 4}}
    (HERE / "reference.json").write_text(json.dumps(cases, indent=1))
    weights = {f"vlm.{name}": tensor for name, tensor in model.state_dict().items()} | w
    speeds = torch.logspace(0, 2, WAVES)[None]
    weights |= {f"action_in_proj.{name}.freqs": speeds for name in
                ("sinus.0", "sinus.1", "timestep_fourier_encoder")}  # fmt: skip
    weights = {name: tensor.bfloat16().contiguous() for name, tensor in weights.items()}
    save_file(weights, HERE / "model.safetensors")


main()
