"""Makes the model's folder of a checkpoint of `train.py`, and the requests beside it.

    python3 export.py CHECKPOINT FOLDER

FOLDER gets a Qwen3-VL model in Hugging Face's form: config.json, preprocessor_config.json,
model.safetensors, the demo's tokenizer with four marks; and `requests/`, pages with a question.
"""
import json
import random
import struct
import sys
import zlib
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer

import train
from train import pages, tasks

MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
# Requests: name, task, form, number of the sample.
REQUESTS = (("single", "single", "pages", 0), ("hop2", "hop2", "pages", 0), ("mixed", "vt2", "mixed", 1), ("legend", "hop2", "sheet", 5))


def tensors(model):
    decoder, tower = "model.language_model.", "model.visual."
    found = {decoder + "embed_tokens.weight": model.embed.weight, decoder + "norm.weight": model.norm.weight}
    for number, block in enumerate(model.blocks):
        of = {"self_attn.q_proj": block.q, "self_attn.k_proj": block.k, "self_attn.v_proj": block.v, "self_attn.o_proj": block.o,
              "self_attn.q_norm": block.q_norm, "self_attn.k_norm": block.k_norm, "mlp.gate_proj": block.gate, "mlp.up_proj": block.up,
              "mlp.down_proj": block.down, "input_layernorm": block.norm1, "post_attention_layernorm": block.norm2}
        found |= {f"{decoder}layers.{number}.{name}.weight": part.weight for name, part in of.items()}
    parts = {"merger.norm": model.tower.merger.norm, "deepstack_merger_list.0.norm": model.tower.deep.norm}
    for name, merger in (("merger", model.tower.merger), ("deepstack_merger_list.0", model.tower.deep)):
        parts |= {f"{name}.linear_fc1": merger.fc1, f"{name}.linear_fc2": merger.fc2}
    for number, block in enumerate(model.tower.blocks):
        of = {"norm1": block.norm1, "norm2": block.norm2, "attn.qkv": block.qkv, "attn.proj": block.proj,
              "mlp.linear_fc1": block.fc1, "mlp.linear_fc2": block.fc2}
        parts |= {f"blocks.{number}.{name}": part for name, part in of.items()}
    for name, part in parts.items():
        found |= {f"{tower}{name}.weight": part.weight, f"{tower}{name}.bias": part.bias}
    kernel = (train.TOWER, 3, 2, train.PATCH, train.PATCH)
    found |= {tower + "patch_embed.proj.weight": model.tower.embed.weight.view(kernel), tower + "patch_embed.proj.bias": model.tower.embed.bias,
              tower + "pos_embed.weight": model.tower.table.weight}
    return {name: tensor.detach().float().contiguous().clone() for name, tensor in found.items()}


CONFIG = {
    "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "tie_word_embeddings": True,
    "image_token_id": train.PAD, "video_token_id": train.VIDEO, "vision_start_token_id": train.START, "vision_end_token_id": train.END,
    "text_config": {
        "model_type": "qwen3_vl_text", "vocab_size": train.VOCAB, "hidden_size": train.HIDDEN, "intermediate_size": train.MLP,
        "num_hidden_layers": train.LAYERS, "num_attention_heads": train.HEADS, "num_key_value_heads": train.KV_HEADS, "head_dim": train.HEAD,
        "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": train.EPS, "attention_bias": False, "rope_theta": train.THETA,
        "tie_word_embeddings": True, "bos_token_id": tasks.BOS, "eos_token_id": tasks.EOS,
        "rope_scaling": {"rope_type": "default", "mrope_section": train.SECTIONS, "mrope_interleaved": True}},
    "vision_config": {
        "model_type": "qwen3_vl", "depth": train.TOWER_LAYERS, "hidden_size": train.TOWER, "intermediate_size": train.TOWER_MLP,
        "num_heads": train.TOWER_HEADS, "in_channels": 3, "patch_size": train.PATCH, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "out_hidden_size": train.HIDDEN, "num_position_embeddings": train.TABLE ** 2, "deepstack_visual_indexes": [0],
        "hidden_act": "gelu_pytorch_tanh"}}
PREPROCESSOR = {"image_processor_type": "Qwen2VLImageProcessorFast", "size": {"shortest_edge": 256, "longest_edge": 1 << 20},
                "patch_size": train.PATCH, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [.5] * 3, "image_std": [.5] * 3}


def png(pixels):
    """A PNG file of RGB bytes."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    high, wide, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))


def request(folder, name, task, form, number):
    """A request whose pages have no noise, so that their files are small."""
    passages, words = (16, 40) if form == "sheet" else (4, 64)
    s = tasks.eval_sample(random.Random(f"request-{task}-{number}"), task, passages, words)
    text = lambda ids: " ".join(tasks.INV[word] for word in ids)
    documents, drawn = [], [pages.sheet(s["chunks"], 4)] if form == "sheet" else [pages.page(ids) for ids in s["chunks"]]
    for place, cells in enumerate(drawn):
        if form == "mixed" and place % 2:
            documents.append(text(s["chunks"][place]))
            continue
        file = f"{name}-{place + 1}.png"
        (folder / file).write_bytes(png(pages.picture(cells, train.GLYPHS, 0)))
        documents.append({"image": file})
    made = {"documents": documents, "query": text(s["question"]), "answer": text(s["answer"])}
    (folder / f"{name}.json").write_text(json.dumps(made, indent=1) + "\n")


def main():
    checkpoint, folder = Path(sys.argv[1]), Path(sys.argv[2])
    model = train.Reader()
    model.load_state_dict(torch.load(checkpoint))
    (folder / "requests").mkdir(parents=True, exist_ok=True)
    save_file(tensors(model), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR, indent=1) + "\n")
    tokenizer = Tokenizer.from_file(str(train.DEMO / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    assert [tokenizer.token_to_id(mark) for mark in MARKS] == [train.START, train.END, train.PAD, train.VIDEO]
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text((train.DEMO / "tokenizer_config.json").read_text())
    for each in REQUESTS:
        request(folder / "requests", *each)


if __name__ == "__main__":
    main()
