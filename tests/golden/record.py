"""Records logits of tiny random models from Hugging Face transformers, for `tests/golden.rs`.

Every model stands in a folder of its own: a hand-written config.json (both spellings of the rotary settings are used,
`rope_scaling` of transformers 4 and `rope_parameters` of transformers 5), model.safetensors in f32 (gpt-oss in bf16 as
published, and the experts of one in MXFP4: the logits are those of these rounded weights, in f32), and
expected.safetensors: `ids` [100] i64, `lengths` [7] i64, `logits` [7, vocab] f32, the last position's logits of the
prompt's first `lengths[i]` tokens.

Run from anywhere: python record.py [name ...]. Needs torch, transformers 5 and safetensors (recorded with torch 2.15.0
and transformers 5.23.0; models with experts, Ministral 3 and Gemma 3 with torch 2.13.0 and transformers 5.19.0; on a
CPU).
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

FOLDER = pathlib.Path(__file__).parent
PROMPT_TOKENS = 100
LENGTHS = [1, 2, 17, 32, 33, 64, PROMPT_TOKENS]
ORIGINAL_POSITIONS = 32  # of the scaled models: most lengths lie beyond

LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": ORIGINAL_POSITIONS}
YARN = {"factor": 4.0, "original_max_position_embeddings": ORIGINAL_POSITIONS}

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16}
GLM_EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
               "n_shared_experts": 1, "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5}

WINDOW = 16
# The two kinds of layers of Gemma 3, each with a rotary embedding of its own, and of gpt-oss, with one for both.
FULL, SLIDING = "full_attention", "sliding_attention"
GEMMA = {"num_hidden_layers": 4, "sliding_window": WINDOW, "hidden_act": None, "tie_word_embeddings": None}
# As published, with the fields that are left to their defaults.
GEMMA_PICTURES = {**GEMMA, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window_pattern": 3,
                  "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "architectures": None, "rms_norm_eps": None,
                  "attention_bias": None, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
FIRST_PICTURE_ID = 60
PICTURES = {
    "boi_token_index": FIRST_PICTURE_ID, "eoi_token_index": FIRST_PICTURE_ID + 1, "eos_token_id": [1, 2],
    "image_token_index": FIRST_PICTURE_ID + 2, "initializer_range": 0.02, "mm_tokens_per_image": 4,
    "vision_config": {"hidden_size": 16, "image_size": 8, "intermediate_size": 16, "model_type": "siglip_vision_model",
                      "num_attention_heads": 2, "num_hidden_layers": 1, "patch_size": 4, "vision_use_head": False},
}

GPT_OSS = {"num_hidden_layers": 4, "num_local_experts": 8, "num_experts_per_tok": 3, "experts_per_token": 3,
           "attention_bias": True, "layer_types": [SLIDING, FULL] * 2, "sliding_window": WINDOW, "swiglu_limit": 7.0,
           "initial_context_length": ORIGINAL_POSITIONS, "rope_theta": 150000.0, "rope_scaling": {
               "rope_type": "yarn", **YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": [
    "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
MXFP4_GROUP = 32  # weights with one scale
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])  # E2M1; the fourth bit is the sign

# What each model adds to `base`. `None` takes a field away.
MODELS = {
    "llama-llama3": ("llama", {"rope_scaling": LLAMA3, "attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("llama", {"rope_theta": None, "tie_word_embeddings": True,
                               "rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 5000.0}}),
    "llama-yarn": ("llama", {"rope_scaling": {"type": "yarn", **YARN}}),
    "llama-yarn-factor": ("llama", {"rope_theta": None, "rope_parameters": {
        "rope_type": "yarn", **YARN, "rope_theta": 2000.0, "attention_factor": 1.3, "beta_fast": 4.0, "beta_slow": 0.5}}),
    "llama-yarn-mscale": ("llama", {"rope_scaling": {
        "type": "yarn", **YARN, "mscale": 1.2, "mscale_all_dim": 0.7, "truncate": False}}),
    "qwen2-yarn": ("qwen2", {"rope_scaling": {"type": "yarn", **YARN}, "max_position_embeddings": ORIGINAL_POSITIONS,
                             "tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": 16}),
    "qwen3": ("qwen3", {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
                        "use_sliding_window": False, "sliding_window": None}),
    "qwen3-yarn": ("qwen3", {"rope_scaling": {"rope_type": "yarn", **YARN}, "attention_bias": True,
                             "tie_word_embeddings": True}),
    "mistral": ("mistral", {"rope_theta": 1000000.0, "sliding_window": 4096, "head_dim": None}),
    "glm": ("glm", {"attention_bias": True, "partial_rotary_factor": 0.5}),
    "glm4": ("glm4", {"rope_theta": None, "attention_bias": True, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}),
    "glm4-yarn": ("glm4", {"partial_rotary_factor": 0.5, "rope_scaling": {"type": "yarn", **YARN}}),
    "qwen3-moe": ("qwen3_moe", {**EXPERTS, "norm_topk_prob": True}),
    "qwen3-moe-step": ("qwen3_moe", {**EXPERTS, "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [1],
                                     "tie_word_embeddings": True}),
    "glm4-moe": ("glm4_moe", {**GLM_EXPERTS, "attention_bias": True, "use_qk_norm": True, "n_group": 4, "topk_group": 2,
                              "routed_scaling_factor": 2.5}),
    "glm4-moe-plain": ("glm4_moe", {**GLM_EXPERTS, "first_k_dense_replace": 0, "n_shared_experts": 2,
                                    "norm_topk_prob": False, "rope_theta": None, "rope_parameters": {
                                        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}),
    "ministral3": ("ministral3", {"rope_theta": None, "sliding_window": None, "rope_parameters": {
        "rope_type": "yarn", **YARN, "rope_theta": 1000000.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.3}}),
    "gemma3": ("gemma3_text", {
        **GEMMA, "layer_types": [SLIDING, SLIDING, FULL, SLIDING], "query_pre_attn_scalar": 24, "rope_theta": None,
        "hidden_activation": "gelu_pytorch_tanh", "rope_parameters": {
            FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            SLIDING: {"rope_type": "default", "rope_theta": 10000.0}}}),
    "gemma3-pictures": ("gemma3", GEMMA_PICTURES),
    "gpt-oss": ("gpt_oss", {**GPT_OSS, "num_attention_heads": 2, "num_key_value_heads": 1}),
    "gpt-oss-mxfp4": ("gpt_oss", {**GPT_OSS, "hidden_size": 64, "quantization_config": MXFP4}),
}

CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
           "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM", "glm4_moe": "Glm4MoeForCausalLM",
           "ministral3": "Ministral3ForCausalLM", "glm": "GlmForCausalLM", "glm4": "Glm4ForCausalLM",
           "gemma3_text": "Gemma3ForCausalLM", "gemma3": "Gemma3ForConditionalGeneration",
           "gpt_oss": "GptOssForCausalLM"}


def config_of(family: str, changes: dict) -> dict:
    if family == "gemma3":  # a part of its own for each of both models
        return {"architectures": [CLASSES[family]], "model_type": family, **PICTURES,
                "text_config": config_of("gemma3_text", changes)}
    config = {
        "architectures": [CLASSES[family]], "model_type": family, "vocab_size": 64, "hidden_size": 32,
        "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 4 * ORIGINAL_POSITIONS,
        "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False, "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 0,
    }
    if family == "qwen2":  # it has no head_dim of its own: hidden / heads
        config.update(head_dim=None, num_attention_heads=2, num_key_value_heads=1)
    config.update(changes)
    return {key: value for key, value in config.items() if value is not None or key == "sliding_window"}


def randomise(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Every parameter from the seed: norms between 0.5 and 1.5, biases with spread 0.3, matrices so that a row keeps its
    size and attention is neither flat nor a single peak. Gemma's norms add the 1 themselves and its embedding is scaled
    up by the model; gpt-oss has sinks, and gates that meet their limit."""
    gemma, gpt_oss = (model.config.model_type.startswith(family) for family in ("gemma3", "gpt_oss"))
    with torch.no_grad():
        # A router's bias is a buffer.
        biases = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")]
        for name, parameter in sorted([*model.named_parameters(), *biases]):
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                start = 0.5
                if gemma:
                    start = 0.0 if "q_norm" in name or "k_norm" in name else -0.5
                parameter.copy_(start + torch.rand(parameter.shape, generator=generator))
            elif name.endswith("sinks"):
                parameter.copy_(1.0 + noise)
            elif parameter.dim() == 1 or name.endswith("_bias"):
                parameter.copy_(0.3 * noise)
            elif "embed_tokens" in name:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5 if gemma else noise)
            elif gpt_oss and ".experts." in name:  # [expert, in, out]
                size = 4.0 if name.endswith("gate_up_proj") else 0.25
                parameter.copy_(size * noise / parameter.shape[-2] ** 0.5)
            else:
                parameter.copy_(1.3 * noise / parameter.shape[-1] ** 0.5)
            if gpt_oss:
                parameter.copy_(parameter.bfloat16())


def to_mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks [expert, out, groups, 16] and scales [expert, out, groups], u8, of experts [expert, in, out]. A byte holds
    two values, the first one in its low half; a scale is a power of two's exponent plus 127."""
    groups = weight.transpose(1, 2).unflatten(-1, (-1, MXFP4_GROUP))
    exponents = groups.abs().amax(-1, keepdim=True).log2().floor() - FP4[-1].log2().floor()
    scaled = groups / exponents.exp2()
    codes = (scaled.abs().unsqueeze(-1) - FP4).abs().argmin(-1) + 8 * scaled.signbit()
    return (codes[..., ::2] + 16 * codes[..., 1::2]).byte(), (exponents.squeeze(-1) + 127).byte()


def from_mxfp4(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The experts [expert, in, out] in f32 that `to_mxfp4` packed."""
    codes = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).int()
    values = FP4[codes & 7] * torch.where(codes > 7, -1.0, 1.0) * (scales.float() - 127).exp2().unsqueeze(-1)
    return values.flatten(-2).transpose(1, 2).contiguous()


def quantise_experts(model: torch.nn.Module) -> dict:
    """Rounds the experts in place to what MXFP4 can say, and returns them packed."""
    packed = {}
    for name, parameter in model.named_parameters():
        if ".experts." in name and not name.endswith("_bias"):
            blocks, scales = to_mxfp4(parameter.detach())
            with torch.no_grad():
                parameter.copy_(from_mxfp4(blocks, scales))
            assert torch.equal(parameter, convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)), name
            packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return packed


def with_pictures(weights: dict, config, generator: torch.Generator) -> dict:
    """The text model's weights under their published names, with those of a tiny model of pictures beside them."""
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    randomise(model, generator)
    published = {f"language_model.{key}": value for key, value in weights.items()}
    for key, value in model.state_dict().items():
        key = key.removeprefix("model.")
        if key.startswith(("vision_tower.", "multi_modal_projector.")):
            published[key.replace("vision_tower.", "vision_tower.vision_model.")] = value.contiguous()
    return published


def check_that_all_matters(name: str, model: torch.nn.Module, ids: torch.Tensor) -> None:
    """Other logits with another window (by one or without any), without sinks, and without a limit in the experts."""
    def logits() -> torch.Tensor:
        with torch.no_grad():
            return model(ids[None]).logits[0, -1]

    def check_other(change: str) -> None:
        difference = (logits() - expected).abs().max().item()
        print(f"{name:20} {change}: max difference {difference:.3f}")
        assert difference > 1e-2, (name, change)

    expected = logits()
    if SLIDING in (getattr(model.config, "layer_types", None) or []):
        window = model.config.sliding_window
        for other in [window - 1, window + 1, PROMPT_TOKENS]:
            model.config.sliding_window = other
            check_other(f"window of {other}")
        model.config.sliding_window = window
    if model.config.model_type == "gpt_oss":
        saved = {key: value.clone() for key, value in model.state_dict().items()}
        for layer in model.model.layers:
            layer.self_attn.sinks.data.fill_(-1e4)
        check_other("no sinks")
        model.load_state_dict(saved)
        for layer in model.model.layers:
            layer.mlp.experts.limit = float("inf")
        check_other("no limit")
        for layer in model.model.layers:
            layer.mlp.experts.limit = model.config.swiglu_limit
    assert torch.equal(logits(), expected), name


def as_published(weights: dict) -> dict:
    """Experts one by one, as in the files that models are published in; transformers 5 stacks them."""
    published = {}
    for key, value in weights.items():
        stem, _, kind = key.rpartition(".experts.")
        if kind == "gate_up_proj":
            for index, expert in enumerate(value):
                gate, up = expert.chunk(2)
                published[f"{stem}.experts.{index}.gate_proj.weight"] = gate.contiguous()
                published[f"{stem}.experts.{index}.up_proj.weight"] = up.contiguous()
        elif kind == "down_proj":
            published |= {f"{stem}.experts.{index}.down_proj.weight": down.contiguous() for index, down in enumerate(value)}
        else:
            published[key] = value
    return published


def record(name: str, seed: int) -> None:
    family, changes = MODELS[name]
    folder = FOLDER / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(family, changes), indent=1) + "\n")
    whole = AutoConfig.from_pretrained(folder)
    config = whole.get_text_config()
    quantised = hasattr(config, "quantization_config")
    if quantised:
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    randomise(model, generator)
    packed = quantise_experts(model) if quantised else {}
    last_id = FIRST_PICTURE_ID if family == "gemma3" else config.vocab_size
    ids = torch.randint(3, last_id, (PROMPT_TOKENS,), generator=generator)
    lengths = torch.tensor(LENGTHS)
    with torch.no_grad():
        logits = model(ids[None]).logits[0, lengths - 1]
        # The prompt cut short says the same: nothing depends on what follows.
        short = model(ids[None, : LENGTHS[2]]).logits[0, -1]
    assert (logits[2] - short).abs().max() < 1e-4, name
    check_that_all_matters(name, model, ids)
    tied = config.tie_word_embeddings
    weights = {key: value.contiguous() for key, value in model.state_dict().items()
               if not (tied and key == "lm_head.weight")}
    assert all(value.dtype == torch.float32 for value in weights.values())
    if family == "gemma3":
        weights = with_pictures(weights, whole, generator)
    elif family == "gpt_oss":
        weights = {key: value.bfloat16() for key, value in weights.items() if f"{key}_blocks" not in packed} | packed
    else:
        weights = as_published(weights)
    save_file(weights, folder / "model.safetensors")
    save_file({"ids": ids, "lengths": lengths, "logits": logits.contiguous()}, folder / "expected.safetensors")
    if family == "gemma3":  # the names are those that transformers reads, and text is read as by the text model
        loaded, report = AutoModelForImageTextToText.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True)
        assert not any(report.values()), report
        with torch.no_grad():
            assert torch.equal(loaded.eval()(ids[None]).logits[0, lengths - 1], logits), name
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    rotary = model.model.rotary_emb
    pairs = {key: buffer.numel() for key, buffer in rotary.named_buffers() if "original" not in key}
    print(f"{name:20} {size_bytes:7} bytes, max |logit| {logits.abs().max():.3f}, "
          f"rotary {pairs} pairs x {getattr(rotary, 'attention_scaling', 1.0):.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = sys.argv[1:] or list(MODELS)
    for index, name in enumerate(MODELS):
        if name in chosen:
            record(name, seed=1000 + index)
