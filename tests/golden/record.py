"""Records logits of tiny random models from Hugging Face transformers, for `tests/golden.rs`.

Every model stands in a folder of its own: a hand-written config.json (both spellings of the rotary settings are used,
`rope_scaling` of transformers 4 and `rope_parameters` of transformers 5), model.safetensors in f32, and
expected.safetensors: `ids` [100] i64, `lengths` [7] i64, `logits` [7, vocab] f32, the last position's logits of the
prompt's first `lengths[i]` tokens.

Run from anywhere: python record.py [name ...]. Needs torch, transformers 5 and safetensors (recorded with torch 2.15.0
and transformers 5.23.0, models with experts and Ministral 3 with torch 2.13.0 and transformers 5.19.0, on a CPU).
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

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
}

CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
           "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM", "glm4_moe": "Glm4MoeForCausalLM",
           "ministral3": "Ministral3ForCausalLM", "glm": "GlmForCausalLM", "glm4": "Glm4ForCausalLM"}


def config_of(family: str, changes: dict) -> dict:
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
    size and attention is neither flat nor a single peak."""
    with torch.no_grad():
        # A router's bias is a buffer.
        biases = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")]
        for name, parameter in sorted([*model.named_parameters(), *biases]):
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(0.5 + torch.rand(parameter.shape, generator=generator))
            elif parameter.dim() == 1:
                parameter.copy_(0.3 * noise)
            elif "embed_tokens" in name:
                parameter.copy_(noise)
            else:
                parameter.copy_(1.3 * noise / parameter.shape[-1] ** 0.5)


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
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    randomise(model, generator)
    ids = torch.randint(3, config.vocab_size, (PROMPT_TOKENS,), generator=generator)
    lengths = torch.tensor(LENGTHS)
    with torch.no_grad():
        logits = model(ids[None]).logits[0, lengths - 1]
        # The prompt cut short says the same: nothing depends on what follows.
        short = model(ids[None, : LENGTHS[2]]).logits[0, -1]
    assert (logits[2] - short).abs().max() < 1e-4, name
    tied = config.tie_word_embeddings
    weights = {key: value.contiguous() for key, value in model.state_dict().items()
               if not (tied and key == "lm_head.weight")}
    assert all(value.dtype == torch.float32 for value in weights.values())
    save_file(as_published(weights), folder / "model.safetensors")
    save_file({"ids": ids, "lengths": lengths, "logits": logits.contiguous()}, folder / "expected.safetensors")
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{name:20} {size_bytes:7} bytes, max |logit| {logits.abs().max():.3f}, "
          f"rotary {model.model.rotary_emb.inv_freq.numel()} pairs x {model.model.rotary_emb.attention_scaling:.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = sys.argv[1:] or list(MODELS)
    for index, name in enumerate(MODELS):
        if name in chosen:
            record(name, seed=1000 + index)
