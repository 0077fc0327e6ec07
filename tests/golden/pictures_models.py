"""Writes two tiny models of text and pictures with random weights from a seed: Hugging Face folders (config, weights, tokenizer,
preprocessor). See pictures_record.py."""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen3VLConfig,
                          Qwen3VLForConditionalGeneration)

HERE = Path(__file__).parent
MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
FIRST_MARK = 256
VOCAB = 272  # more than there are tokens, as in the published models

# One message after the other; an image part is its three marks. Text of the template is the template's, everything else the user's.
TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    "{%- if message['content'] is string -%}{{- message['content'] -}}"
    "{%- else -%}{%- for part in message['content'] -%}"
    "{%- if part['type'] in ('image', 'image_url') -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- elif 'text' in part -%}{{- part['text'] -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def tokenizer():
    """A token a byte, and the marks."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tok = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    assert tok.token_to_id(MARKS[0]) == FIRST_MARK
    return tok


def ids():
    return {"bos": FIRST_MARK, "start": FIRST_MARK + 1, "end": FIRST_MARK + 2, "vision_start": FIRST_MARK + 3,
            "vision_end": FIRST_MARK + 4, "image": FIRST_MARK + 5, "video": FIRST_MARK + 6}


def qwen3vl():
    i = ids()
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [8, 4, 4], "mrope_interleaved": True},
            "bos_token_id": i["bos"], "eos_token_id": i["end"], "tie_word_embeddings": False},
        vision_config={
            "depth": 5, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "patch_size": 16, "spatial_merge_size": 2,
            "temporal_patch_size": 2, "out_hidden_size": 64, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 2, 3],
            "in_channels": 3, "hidden_act": "gelu_pytorch_tanh"},
        image_token_id=i["image"], video_token_id=i["video"], vision_start_token_id=i["vision_start"],
        vision_end_token_id=i["vision_end"], tie_word_embeddings=False)
    preprocessor = {"size": {"shortest_edge": 4096, "longest_edge": 65536}, "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
                    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "processor_class": "Qwen3VLProcessor",
                    "image_processor_type": "Qwen2VLImageProcessorFast"}
    return Qwen3VLForConditionalGeneration, config, preprocessor


def qwen25vl():
    i = ids()
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2,
            "num_key_value_heads": 1, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [4, 6, 6]},
            "bos_token_id": i["bos"], "eos_token_id": i["end"], "use_sliding_window": False, "tie_word_embeddings": False},
        vision_config={
            "depth": 4, "hidden_size": 32, "intermediate_size": 44, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2,
            "temporal_patch_size": 2, "out_hidden_size": 64, "window_size": 56, "fullatt_block_indexes": [1, 3], "in_channels": 3,
            "hidden_act": "silu", "tokens_per_second": 2},
        image_token_id=i["image"], video_token_id=i["video"], vision_start_token_id=i["vision_start"],
        vision_end_token_id=i["vision_end"], tie_word_embeddings=False)
    preprocessor = {"min_pixels": 3136, "max_pixels": 50176, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
                    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
                    "processor_class": "Qwen2_5_VLProcessor", "image_processor_type": "Qwen2VLImageProcessor"}
    return Qwen2_5_VLForConditionalGeneration, config, preprocessor


def draw_weights(model, seed):
    """Weights that make every part count: no product is near zero, norms are not ones, biases are not zeros."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            numbers = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 1 and "norm" in name and name.endswith("weight") or name.endswith("ln_q.weight"):
                weight.copy_(1.0 + 0.2 * numbers)
            elif weight.dim() == 1:
                weight.copy_(0.1 * numbers)
            elif "embed_tokens" in name or "pos_embed" in name:
                weight.copy_(0.5 * numbers)
            else:
                fan_in = weight[0].numel()
                gain = 2.0 if any(part in name for part in ("q_proj", "k_proj", "qkv")) else 1.0
                weight.copy_(gain * numbers / math.sqrt(fan_in))


def published(name):
    """The names in published Qwen2.5-VL files: `visual.` and `model.` without `language_model.`."""
    return name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")


TEXT = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
        "hidden_act", "max_position_embeddings", "rms_norm_eps", "bos_token_id", "eos_token_id", "attention_bias", "use_sliding_window")
VISION = ("depth", "hidden_size", "intermediate_size", "num_heads", "in_channels", "patch_size", "spatial_merge_size", "temporal_patch_size",
          "out_hidden_size", "num_position_embeddings", "deepstack_visual_indexes", "hidden_act", "window_size", "fullatt_block_indexes",
          "tokens_per_second")


def written(name, config):
    """The config as published folders have it: `rope_scaling` and `rope_theta` beside each other; Qwen2.5-VL's text fields on top."""
    of = lambda part, names: {key: part.to_dict()[key] for key in names if key in part.to_dict()}
    text, rope = of(config.text_config, TEXT), dict(config.text_config.rope_parameters)
    text |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    vision = of(config.vision_config, VISION)
    marks = {f"{mark}_token_id": getattr(config, f"{mark}_token_id") for mark in ("image", "video", "vision_start", "vision_end")}
    plain = {"architectures": [name], "model_type": config.model_type, **marks, "tie_word_embeddings": False}
    if config.model_type == "qwen3_vl":
        text["model_type"], vision["model_type"] = "qwen3_vl_text", "qwen3_vl"
        return plain | {"text_config": text, "vision_config": vision}
    rope["type"] = "mrope"
    rope.pop("rope_type")
    return plain | text | {"vision_config": vision}


def write(folder, make, seed, rename):
    kind, config, preprocessor = make()
    model = kind(config).float().eval()
    draw_weights(model, seed)
    folder.mkdir(exist_ok=True)
    state = {rename(name): tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(written(kind.__name__, config), indent=1) + "\n")
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor, indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [ids()["end"], ids()["bos"]]}) + "\n")
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": TEMPLATE,
    }, indent=1) + "\n")
    print(folder.name, f"{sum(t.numel() for t in state.values()) / 1e6:.3f} M", f"{(folder / 'model.safetensors').stat().st_size / 1e6:.2f} MB")
    return model


if __name__ == "__main__":
    torch.set_num_threads(1)
    write(HERE / "qwen3vl-tiny", qwen3vl, 20260305, lambda name: name)
    write(HERE / "qwen25vl-tiny", qwen25vl, 20260306, published)
