"""A GGUF file as a Hugging Face folder: config, tokenizer, and weights dequantised to 16-bit floats.

Knows the architectures `llama` and `qwen2`, the pre-tokenizers of SmolLM2 and Qwen2, and the seven
types of blocks that their files have."""

import json
import pathlib
import struct

import numpy as np

from wheels import WRONG_DATA, Failed

# A number for each form of what `convert` writes: folders of another number are made anew.
VERSION = 1

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9

# Type of a block: its elements and bytes.
F32, F16, Q4_1, Q5_0, Q8_0, Q4_K, Q6_K = 0, 1, 3, 6, 8, 12, 14
BLOCKS = {F32: (1, 4), F16: (1, 2), Q4_1: (32, 20), Q5_0: (32, 22), Q8_0: (32, 34), Q4_K: (256, 144), Q6_K: (256, 210)}

NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Gguf:
    """Keys and tensors of a file."""

    def __init__(self, path):
        self.map = np.memmap(path, np.uint8, "r")
        magic, version, tensors, keys = struct.unpack("<4sIQQ", self.map[:24].tobytes())
        if magic != b"GGUF" or version != 3:
            raise Failed(f"{path}: not a GGUF file of version 3", WRONG_DATA)
        self.at = 24
        self.keys = {self.text(): self.value(self.number("I")) for _ in range(keys)}
        self.tensors = {}
        for _ in range(tensors):
            name, dimensions = self.text(), self.number("I")
            shape = [self.number("Q") for _ in range(dimensions)][::-1]
            self.tensors[name] = (shape, self.number("I"), self.number("Q"))
        align = self.keys.get("general.alignment", 32)
        self.start = (self.at + align - 1) // align * align

    def number(self, kind):
        size = struct.calcsize("<" + kind)
        (value,) = struct.unpack("<" + kind, self.map[self.at : self.at + size].tobytes())
        self.at += size
        return value

    def text(self):
        size = self.number("Q")
        text = self.map[self.at : self.at + size].tobytes().decode()
        self.at += size
        return text

    def value(self, kind):
        if kind == TEXT:
            return self.text()
        if kind == LIST:
            of, count = self.number("I"), self.number("Q")
            return [self.value(of) for _ in range(count)]
        return self.number(SCALARS[kind])

    def __getitem__(self, name):
        """A tensor in 32-bit floats."""
        shape, kind, offset = self.tensors[name]
        if kind not in BLOCKS:
            raise Failed(f"{name}: blocks of type {kind} are not known here", WRONG_DATA)
        elements, size = BLOCKS[kind]
        begin = self.start + offset
        raw = np.asarray(self.map[begin : begin + int(np.prod(shape)) // elements * size])
        return dequantised(kind, raw.reshape(-1, size)).reshape(shape)


def halves(raw):
    """Two bytes a row as 16-bit floats."""
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def nibbles(raw):
    """The low four bits of all bytes, then the high ones."""
    return np.concatenate([raw & 15, raw >> 4], 1)


def dequantised(kind, raw):
    """Blocks of a type, a row of bytes each, as numbers."""
    if kind == F32:
        return np.ascontiguousarray(raw).view(np.float32)
    if kind == F16:
        return halves(raw)
    if kind == Q4_1:  # scale, minimum, 32 times 4 bits
        return halves(raw[:, :2]) * nibbles(raw[:, 4:]) + halves(raw[:, 2:4])
    if kind == Q5_0:  # scale, the fifth bits, 32 times 4 bits
        fifth = np.unpackbits(np.ascontiguousarray(raw[:, 2:6]), axis=1, bitorder="little")
        return halves(raw[:, :2]) * ((nibbles(raw[:, 6:]) | fifth << 4).astype(np.float32) - 16)
    if kind == Q8_0:  # scale, 32 times 8 bits
        return halves(raw[:, :2]) * np.ascontiguousarray(raw[:, 2:]).view(np.int8)
    if kind == Q4_K:
        return q4_k(raw)
    return q6_k(raw)


def q4_k(raw):
    """Scale of scales and of minima, 8 of each in 6 bits, 256 times 4 bits."""
    packed = raw[:, 4:16]
    scale = np.concatenate([packed[:, 0:4] & 63, packed[:, 8:12] & 15 | packed[:, 0:4] >> 6 << 4], 1)
    least = np.concatenate([packed[:, 4:8] & 63, packed[:, 8:12] >> 4 | packed[:, 4:8] >> 6 << 4], 1)
    values = raw[:, 16:].reshape(len(raw), 4, 1, 32)
    values = np.concatenate([values & 15, values >> 4], 2).reshape(len(raw), 8, 32)
    return (halves(raw[:, :2]) * scale)[:, :, None] * values - (halves(raw[:, 2:4]) * least)[:, :, None]


def q6_k(raw):
    """4 bits, 2 bits, 16 scales, scale of scales."""
    count = len(raw)
    low = raw[:, :128].reshape(count, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], 2).reshape(count, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    high = raw[:, 128:192].reshape(count, 2, 1, 32) >> shifts & 3
    values = ((low | high << 4).astype(np.float32) - 32).reshape(count, 16, 16)
    scales = np.ascontiguousarray(raw[:, 192:208]).view(np.int8)
    return (halves(raw[:, 208:]) * scales)[:, :, None] * values


def halfsplit(weight, heads):
    """Rows of queries and keys in Hugging Face's order for RoPE; GGUF interleaves `llama`'s."""
    return weight.reshape(heads, -1, 2, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def tensors(file, arch, heads, kv_heads):
    """Name, shape and maker of each tensor, in the file's order. Both models tie head and embedding;
    where the file has the two in different precision, the head's is the better one."""
    for name, (shape, _, _) in file.tensors.items():
        if name == "output.weight":
            continue
        if name == "token_embd.weight":
            best = "output.weight" if "output.weight" in file.tensors else name
            yield "model.embed_tokens.weight", shape, lambda best=best: file[best]
        elif name == "output_norm.weight":
            yield "model.norm.weight", shape, lambda name=name: file[name]
        else:
            _, layer, part, kind = name.split(".")
            turned = {"attn_q": heads, "attn_k": kv_heads}.get(part) if arch == "llama" else None
            make = lambda name=name, turned=turned: halfsplit(file[name], turned) if turned else file[name]
            yield f"model.layers.{layer}.{NAMES[part]}.{kind}", shape, make


def write_weights(listed, path):
    """A safetensors file of 16-bit floats."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, _ in listed:
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(head)) + head)
        for name, shape, make in listed:
            weight = make().astype(np.float16)
            if list(weight.shape) != shape or not np.isfinite(weight).all():
                raise Failed(f"{name}: damaged", WRONG_DATA)
            out.write(weight.tobytes())


def config_of(keys, arch, vocabulary):
    of = lambda name: keys[f"{arch}.{name}"]
    heads, hidden = of("attention.head_count"), of("embedding_length")
    return {
        "architectures": [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[arch]],
        "model_type": arch,
        "hidden_size": hidden,
        "num_hidden_layers": of("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": of("attention.head_count_kv"),
        "head_dim": hidden // heads,
        "intermediate_size": of("feed_forward_length"),
        "vocab_size": vocabulary,
        "max_position_embeddings": of("context_length"),
        "rope_theta": of("rope.freq_base"),
        "rms_norm_eps": float(f"{of('attention.layer_norm_rms_epsilon'):.3g}"),
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": keys["tokenizer.ggml.bos_token_id"],
        "eos_token_id": keys["tokenizer.ggml.eos_token_id"],
        "torch_dtype": "float16",
    }


# How Qwen2 cuts a text into words.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer_of(keys):
    tokens, kinds = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    pre = keys["tokenizer.ggml.pre"]
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    if pre == "smollm":
        normalizer, cut = None, [{"type": "Digits", "individual_digits": True}, bytes_of]
    elif pre == "qwen2":
        words = {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": False}
        normalizer, cut = {"type": "NFC"}, [words, {**bytes_of, "use_regex": False}]
    else:
        raise Failed(f"pre-tokenizer {pre}: not known here", WRONG_DATA)
    usual, control, own = 1, 3, 4
    special = [number for number, kind in enumerate(kinds) if kind in (control, own)]
    in_vocabulary = {number for number, kind in enumerate(kinds) if kind == usual}
    if pre == "smollm":
        in_vocabulary.update(special)
    marks = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": at, "content": tokens[at], **marks, "special": kinds[at] == control} for at in special]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cut},
        "post_processor": None,
        "decoder": bytes_of,
        "added_tokens": added,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: at for at, token in enumerate(tokens) if at in in_vocabulary},
            "merges": keys["tokenizer.ggml.merges"],
        },
    }


def convert(path, out):
    """Writes the folder `out`, which must be there, of a GGUF file."""
    file, out = Gguf(path), pathlib.Path(out)
    keys = file.keys
    arch = keys["general.architecture"]
    if arch not in ("llama", "qwen2"):
        raise Failed(f"architecture {arch}: not known here", WRONG_DATA)
    tokens = keys["tokenizer.ggml.tokens"]
    config = config_of(keys, arch, len(tokens))
    listed = list(tensors(file, arch, config["num_attention_heads"], config["num_key_value_heads"]))
    write_weights(listed, out / "model.safetensors")
    tokenizer_config = {
        "bos_token": None,
        "eos_token": tokens[config["eos_token_id"]],
        "model_max_length": config["max_position_embeddings"],
        "chat_template": keys["tokenizer.chat_template"],
    }
    texts = [
        ("config.json", config, 1),
        ("tokenizer_config.json", tokenizer_config, 1),
        ("tokenizer.json", tokenizer_of(keys), None),
    ]
    for name, content, indent in texts:
        with open(out / name, "w", encoding="utf-8") as text:
            json.dump(content, text, ensure_ascii=False, indent=indent)
