"""A shape with drawn weights, as a Hugging Face folder for each type and as GGUF files, so that
several programs read the same numbers.

    export.py CONFIG.json OUT [SEED]

Writes OUT/f32 and OUT/bf16 (config, safetensors, a tokenizer of one word a token) and OUT/f32.gguf,
OUT/f16.gguf, OUT/bf16.gguf. Every weight is a number that bf16 holds: all types of a shape have
equal weights but for numbers below 2^-24 in f16. Needs torch, safetensors, and PyPI's gguf.
"""

import json
import math
import pathlib
import shutil
import sys

import gguf
import torch
from safetensors.torch import save_file

# A number for each form of what is written: folders of another number are made anew.
VERSION = 1
# Least number of positions of the exported config: the longest prompt and the decoded tokens.
POSITIONS = 32768

GGUF_NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def shapes(config: dict):
    """Name and shape of every tensor."""
    hidden, mlp, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(layers):
        at = f"model.layers.{layer}"
        for name, outputs in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{at}.self_attn.{name}_proj.weight", (outputs, hidden)
            if config["model_type"] == "qwen2":
                yield f"{at}.self_attn.{name}_proj.bias", (outputs,)
        yield f"{at}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{at}.mlp.gate_proj.weight", (mlp, hidden)
        yield f"{at}.mlp.up_proj.weight", (mlp, hidden)
        yield f"{at}.mlp.down_proj.weight", (hidden, mlp)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}.{norm}.weight", (hidden,)
    yield "model.norm.weight", (hidden,)


def drawn(config: dict, seed: int) -> dict:
    """Weights that keep the size of what passes through; norms around one, biases around zero."""
    if not config["tie_word_embeddings"]:
        sys.exit("a head of its own is not known here")
    generator, weights = torch.Generator().manual_seed(seed), {}
    for name, shape in shapes(config):
        values = torch.randn(shape, generator=generator)
        if len(shape) == 2:
            values /= math.sqrt(shape[1])
        elif name.endswith("bias"):
            values *= 0.1
        else:
            values = 1 + 0.1 * values
        weights[name] = values.bfloat16()
    return weights


def write_folder(out: pathlib.Path, config: dict, weights: dict, dtype: torch.dtype):
    out.mkdir(parents=True)
    config = {**config, "dtype": str(dtype).removeprefix("torch."), "torch_dtype": str(dtype).removeprefix("torch.")}
    (out / "config.json").write_text(json.dumps(config, indent=1))
    save_file({name: weight.to(dtype) for name, weight in weights.items()}, out / "model.safetensors", {"format": "pt"})
    words = {f"t{number}": number for number in range(config["vocab_size"])}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None, "decoder": None, "model": {"type": "WordLevel", "vocab": words, "unk_token": "t0"},
    }
    (out / "tokenizer.json").write_text(json.dumps(tokenizer))


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of queries and keys in GGUF's order for `llama`: the halves of a head in turn."""
    return weight.reshape(heads, 2, -1, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def gguf_name(name: str) -> str:
    if not name.startswith("model.layers."):
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"


def write_gguf(path: pathlib.Path, config: dict, weights: dict, kind: str):
    arch = config["model_type"]
    types = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16, "bf16": gguf.GGMLQuantizationType.BF16}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type({"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16, "bf16": gguf.LlamaFileType.MOSTLY_BF16}[kind])
    # Token ids are fed directly, and the package asks for a tokenizer all the same.
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"t{number}" for number in range(config["vocab_size"])])
    writer.add_token_types([gguf.TokenType.NORMAL] * config["vocab_size"])
    writer.add_token_merges(["t 0"])
    for name, weight in weights.items():
        turned = {"q_proj.weight": heads, "k_proj.weight": kv_heads}.get(".".join(name.split(".")[-2:])) if arch == "llama" else None
        if turned:
            weight = interleaved(weight, turned)
        numbers = weight.float().numpy()
        # llama.cpp wants vectors in f32.
        of = types[kind] if weight.dim() == 2 else types["f32"]
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(numbers, of), raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    source, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    config = json.loads(source.read_text())
    config["max_position_embeddings"] = max(config["max_position_embeddings"], POSITIONS)
    made = json.dumps({"version": VERSION, "seed": seed, "config": config})
    if (out / "made.json").exists() and (out / "made.json").read_text() == made:
        return
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    weights = drawn(config, seed)
    write_folder(out / "f32", config, weights, torch.float32)
    write_folder(out / "bf16", config, weights, torch.bfloat16)
    for kind in ("f32", "f16", "bf16"):
        write_gguf(out / f"{kind}.gguf", config, weights, kind)
    (out / "made.json").write_text(made)


main()
