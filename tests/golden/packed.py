"""Records tiny models in the forms that quantised weights are published in, with logits from Hugging Face transformers.

Each model stands in a folder of its own, `packed/NAME`: `model.gguf`, or config.json and model.safetensors with a
`quantization_config`; and expected.safetensors as `record.py` writes it: `ids` [100] i64, `lengths` [7] i64, `logits`
[7, vocab] f32. The logits are those of the weights as the format's own code unpacks them (gguf-py, compressed-tensors,
GPTQModel's and AutoAWQ's arithmetic as transformers and vLLM have it), in f32. Folders with a tokenizer have texts.json:
[[text, ids], ...], without the ids that begin or end a text. `packed/blocks.safetensors` has single GGUF blocks of every type,
`TYPE.raw` u8 [n, bytes] and `TYPE.values` f32 [n, elements].

Run from anywhere: python packed.py LIBRARIES [name ...], where LIBRARIES is the folder with libggml-base.so and libllama
of @node-llama-cpp/linux-x64: ggml packs the blocks, and llama.cpp judges every GGUF file (its names, its order of rows, its
tokenizer). Needs torch, transformers 5, safetensors, gguf and compressed-tensors (recorded with torch 2.13.0, transformers
5.19.0, gguf 0.19.0, compressed-tensors 0.17.0, node-llama-cpp 3.22.1 with llama.cpp v0.4.0; on a CPU).
"""

import copy
import ctypes
import json
import pathlib
import re
import sys
import tempfile

import numpy as np
import torch
from compressed_tensors.compressors.naive_quantized.base import FloatQuantizationCompressor, IntQuantizationCompressor
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from gguf import GGML_QUANT_SIZES, GGUFReader, GGUFWriter, MODEL_ARCH, MODEL_ARCH_NAMES, get_tensor_name_map
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from llama_judge import Llama
from record import FULL, LENGTHS, ORIGINAL_POSITIONS, PROMPT_TOKENS, SLIDING, WINDOW, YARN, as_published, config_of, randomise

FOLDER = pathlib.Path(__file__).parent / "packed"
VOCABULARY = 320

# ---------------------------------------------------------------------------------------------------------------- blocks

# Offsets of the 16-bit scales in a block.
SCALES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
          T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.MXFP4: [], T.IQ4_NL: [0], T.IQ4_XS: [0]}


class Ggml:
    """The reference code of the blocks, in C."""

    def __init__(self, libraries: pathlib.Path):
        self.library = ctypes.CDLL(str(libraries / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        self.library.ggml_quantize_chunk.restype = ctypes.c_size_t
        self.library.ggml_quantize_chunk.argtypes = [
            ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]

    def pack(self, values: np.ndarray, kind: T) -> np.ndarray:
        """Rows of numbers as rows of bytes."""
        values = np.ascontiguousarray(values, np.float32)
        if kind == T.F32:
            return values
        elements, size = GGML_QUANT_SIZES[kind]
        assert values.shape[-1] % elements == 0, (values.shape, kind)
        packed = np.zeros(values.size // elements * size, np.uint8)
        rows, columns = values.size // values.shape[-1], values.shape[-1]
        wrote = self.library.ggml_quantize_chunk(int(kind), values.ctypes.data, packed.ctypes.data, 0, rows, columns, None)
        assert wrote == packed.size, (kind, wrote, packed.size)
        return packed.reshape(*values.shape[:-1], -1)

    def unpack(self, packed: np.ndarray, kind: T) -> np.ndarray:
        elements, size = GGML_QUANT_SIZES[kind]
        function = getattr(self.library, "dequantize_row_" + kind.name.lower().replace("_k", "_K"))
        function.restype, function.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        packed = np.ascontiguousarray(packed)
        values = np.zeros((len(packed), packed.shape[1] // size * elements), np.float32)
        function(packed.ctypes.data, values.ctypes.data, values.size)
        return values


def record_blocks(ggml: Ggml) -> None:
    """First blocks that ggml packed, then random bytes with tame scales (codes that no quantiser writes), then all ones."""
    random, found = np.random.default_rng(7), {}
    for kind, scales in SCALES.items():
        elements, size = GGML_QUANT_SIZES[kind]
        count = 2 if elements == 256 else 4
        packed = ggml.pack(random.standard_normal((count, elements)), kind)
        wild = random.integers(0, 256, (count + 1, size), dtype=np.uint8)
        wild[-1] = 255
        for at in scales:
            drawn = (random.standard_normal(count + 1) * 0.05).astype(np.float16)
            wild[:, at:at + 2] = drawn.view(np.uint8).reshape(-1, 2)
        if kind == T.MXFP4:
            wild[:, 0] = [0, 1, 2, 120, 200]
        raw = np.concatenate([packed, wild])
        values = dequantize(raw, kind)
        assert (values.view(np.int32) == ggml.unpack(raw, kind).view(np.int32)).all(), kind
        found |= {f"{kind.name}.raw": torch.from_numpy(raw), f"{kind.name}.values": torch.from_numpy(values)}
    halves = torch.from_numpy(random.standard_normal((1, 16)).astype(np.float32))
    for name, short in [("F16", halves.half()), ("BF16", halves.bfloat16())]:
        found |= {f"{name}.raw": short.view(torch.uint8), f"{name}.values": short.float()}
    save_file(found, FOLDER / "blocks.safetensors")


# ------------------------------------------------------------------------------------------------------------ tokenizers

CORPUS = """The quick brown fox jumps over the lazy dog, and the dog doesn't mind: it'll sleep there until the other dogs come.
There are 12345 reasons to read this then, and 67 not to; the theory of the thing is that these are the words it needs.
She said: "I'm sure they're here, we've seen them, haven't we?" Then they all went in, one and another and the others.
if (x == 0) { return f(x, y); } else { for (i = 0; i < 10; i++) { print("%d\\n", i); } }
naïve café, Größe, 日本語のテキスト, привет мир
"""
TEXTS = ["Hello", " Hello ", "the other theory  of   things", "they're HERE, I'LL say; don't", "naïve café Größe",
         "日本語のテキスト 🙂", "x = [i**2 for i in range(1000)]  # 12345\n\n\n  end", "\t\ttabs\r\n", "3.14159 and 1,000,000",
         "a<|im_start|>user\nhi<|im_end|>\n<think>no</think>", ""]
SPLITS = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                 r"|\s+(?!\S)|\s+",
}
CHAT = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def byte_level(pre: str) -> tuple[dict, Tokenizer]:
    """Keys of a GGUF file and the same tokenizer for transformers."""
    added = [("<|endoftext|>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL), ("<think>", USER),
             ("</think>", USER)]
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    if pre == "smollm":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(SPLITS[pre]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trained = VOCABULARY - len(added) - 1  # one id stays without a token
    tokenizer.train_from_iterator([CORPUS], trainers.BpeTrainer(
        vocab_size=trained, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    assert tokenizer.get_vocab_size() == trained
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    tokenizer.add_special_tokens([text for text, kind in added if kind == CONTROL])
    tokenizer.add_tokens([text for text, kind in added if kind == USER])
    by_id = {at: text for text, at in tokenizer.get_vocab().items()}
    tokens = [by_id.get(at, f"[PAD{at}]") for at in range(VOCABULARY)]
    kinds = [NORMAL] * trained + [kind for _, kind in added] + [UNUSED]
    keys = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": kinds, "merges": [" ".join(pair) for pair in merges],
            "bos_token_id": trained, "eos_token_id": trained + 2, "padding_token_id": trained, "add_bos_token": False}
    return keys, tokenizer


def sentence_piece() -> tuple[dict, Tokenizer]:
    """As Llama 2's: pieces with scores, bytes for what has no piece, a blank before the text."""
    specials = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    trainer = Tokenizer(models.BPE())
    trainer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    text = CORPUS.replace("\n", " ")
    # The 24 commonest; the trainer's own choice among equals differs from run to run.
    alphabet = sorted(set(text) - {" "}, key=lambda letter: (-text.count(letter), letter))[:24]
    text = "".join(letter if letter in alphabet else " " for letter in text)
    trainer.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(specials) - 256, show_progress=False))
    learned = json.loads(trainer.to_str())["model"]
    joined = ["".join(pair) for pair in learned["merges"]]
    single = sorted(piece for piece in learned["vocab"] if piece not in joined)
    tokens = [text for text, _ in specials] + [f"<0x{byte:02X}>" for byte in range(256)] + joined + single
    kinds = [kind for _, kind in specials] + [BYTE] * 256 + [NORMAL] * (len(joined) + len(single))
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(joined) + len(single))]
    assert len(tokens) == len(set(tokens)) == VOCABULARY, len(tokens)
    vocabulary = {text: at for at, text in enumerate(tokens)}
    # Every way to make a token of two, the best token first.
    merges = [(text[:cut], text[cut:]) for text in joined for cut in range(1, len(text))
              if text[:cut] in vocabulary and text[cut:] in vocabulary]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    keys = {"model": "llama", "pre": "default", "tokens": tokens, "scores": scores, "token_type": kinds, "bos_token_id": 1,
            "eos_token_id": 2, "unknown_token_id": 0, "add_bos_token": True, "add_eos_token": False}
    return keys, tokenizer


# ------------------------------------------------------------------------------------------------------------------ GGUF

LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": ORIGINAL_POSITIONS}
WIDE = {"hidden_size": 256, "head_dim": 16, "intermediate_size": 96, "vocab_size": VOCABULARY}
NARROW = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": VOCABULARY}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True}
GLM_EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
               "n_shared_experts": 1, "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5}
SMALL = {"hidden_size": 64, "intermediate_size": 64}

# Name: architecture in GGUF, family and changes for `config_of`, tokenizer, and the type of each matrix by its name's end;
# a list has a type for each layer. Others are Q4_0, routers and all that is no matrix F32.
MODELS = {
    "llama-k": ("llama", "llama", {**WIDE, "tie_word_embeddings": True}, sentence_piece, {
        "token_embd": T.Q6_K, "attn_q": [T.Q4_K, T.Q6_K], "attn_k": [T.Q5_K, T.Q2_K], "attn_v": [T.Q6_K, T.Q3_K],
        "attn_output": [T.Q5_0, T.Q8_0], "ffn_gate": [T.Q4_K, T.Q2_K], "ffn_up": [T.Q3_K, T.Q5_K], "ffn_down": [T.Q8_0, T.Q5_1]}),
    "llama-32": ("llama", "llama", {**NARROW, "rope_scaling": LLAMA3}, lambda: byte_level("llama-bpe"), {
        "token_embd": T.Q5_0, "output": T.Q8_0, "attn_q": [T.Q4_0, T.Q5_1], "attn_k": [T.Q8_0, T.BF16], "attn_v": [T.F16, T.Q4_1],
        "attn_output": [T.Q5_0, T.Q4_0], "ffn_gate": [T.Q4_1, T.MXFP4], "ffn_up": [T.Q5_1, T.Q8_0], "ffn_down": [T.BF16, T.F16]}),
    "llama-biases": ("llama", "llama", {**SMALL, "attention_bias": True, "rope_scaling": {"rope_type": "linear", "factor": 2.5}},
                     None, {"attn_q": T.Q8_0, "attn_k": T.Q4_0, "token_embd": T.Q8_0}),
    "qwen2": ("qwen2", "qwen2", {**NARROW, "tie_word_embeddings": True, "rope_theta": 1000000.0}, lambda: byte_level("qwen2"), {
        "token_embd": T.Q8_0, "attn_q": T.Q4_0, "attn_k": T.Q5_0, "attn_v": T.Q8_0, "attn_output": T.Q4_1, "ffn_gate": T.Q4_0,
        "ffn_up": T.Q5_1, "ffn_down": T.Q8_0}),
    "qwen3": ("qwen3", "qwen3", {**SMALL, "rope_scaling": {"rope_type": "yarn", **YARN}}, None, {
        "attn_q": T.Q8_0, "attn_k": T.Q8_0, "ffn_down": T.Q4_0, "output": T.F16, "token_embd": T.F16}),
    "qwen3-moe": ("qwen3moe", "qwen3_moe", {**SMALL, **EXPERTS}, None, {
        "attn_q": T.Q8_0, "ffn_gate_exps": T.Q4_0, "ffn_up_exps": [T.Q5_1, T.Q4_1], "ffn_down_exps": [T.Q8_0, T.Q4_0]}),
    "gemma3": ("gemma3", "gemma3_text", {
        **SMALL, "num_hidden_layers": 7, "sliding_window": WINDOW, "hidden_act": None, "tie_word_embeddings": None,
        "query_pre_attn_scalar": 16, "rope_theta": None, "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": [SLIDING] * 5 + [FULL, SLIDING], "rope_parameters": {
            FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            SLIDING: {"rope_type": "default", "rope_theta": 10000.0}}}, None, {
        "token_embd": T.Q8_0}),
    "gpt-oss": ("gpt-oss", "gpt_oss", {
        "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2, "num_local_experts": 8,
        "num_experts_per_tok": 3, "experts_per_token": 3, "attention_bias": True, "layer_types": [SLIDING, FULL],
        "sliding_window": WINDOW, "swiglu_limit": 7.0, "initial_context_length": ORIGINAL_POSITIONS, "rope_theta": 150000.0,
        "rope_scaling": {"rope_type": "yarn", **YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}}, None, {
        "ffn_gate_exps": T.MXFP4, "ffn_up_exps": T.MXFP4, "ffn_down_exps": T.MXFP4, "attn_q": T.Q8_0, "attn_v": T.BF16}),
    "glm4": ("glm4", "glm4", {**SMALL, "attention_bias": True, "partial_rotary_factor": 0.5}, None, {
        "attn_q": T.Q8_0, "attn_k": T.Q4_0, "ffn_up": T.Q4_0, "ffn_down": T.Q5_0}),
    "glm4-moe": ("glm4moe", "glm4_moe", {
        **SMALL, **GLM_EXPERTS, "num_hidden_layers": 2, "attention_bias": True, "use_qk_norm": True, "routed_scaling_factor": 2.5,
        "norm_topk_prob": True, "n_group": 1, "topk_group": 1}, None, {
        "ffn_gate_exps": T.Q4_0, "ffn_up_exps": T.Q4_0, "ffn_down_exps": T.Q8_0, "ffn_down_shexp": T.Q8_0, "ffn_gate": T.Q8_0}),
    "ministral3": ("mistral3", "ministral3", {
        **SMALL, "rope_theta": None, "sliding_window": None, "rope_parameters": {
            "rope_type": "yarn", **YARN, "rope_theta": 1000000.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "llama_4_scaling_beta": 0.3}}, None, {
        "attn_q": T.Q8_0, "attn_k": T.Q4_0, "ffn_down": T.Q5_0}),
}
NEXT_TOKEN_LAYERS = "num_nextn_predict_layers"


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries and keys in the order of Meta's own RoPE (conversion/llama.py of llama.cpp)."""
    return weight.reshape(heads, 2, len(weight) // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def half_split(weight: np.ndarray, heads: int) -> np.ndarray:
    """The way back (`LlamaTensorProcessor` of transformers)."""
    return weight.reshape(heads, len(weight) // heads // 2, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


class Layout:
    """Names and order of an architecture's tensors."""

    def __init__(self, arch: str, config):
        self.arch, self.config = arch, config
        kind = next(key for key, value in MODEL_ARCH_NAMES.items() if value == arch)
        self.names = get_tensor_name_map(kind, config.num_hidden_layers + 1)

    def heads(self, name: str) -> int | None:
        """Of a tensor whose rows are permuted."""
        if self.arch in ("llama", "mistral3"):
            if ".attn_q." in name:
                return self.config.num_attention_heads
            if ".attn_k." in name:
                return self.config.num_key_value_heads
        return None

    def name(self, name: str) -> str:
        stem, _, kind = name.rpartition(".")
        if kind not in ("weight", "bias"):
            stem, kind = name, "weight"
        if stem.endswith("_bias"):
            stem, kind = stem.removesuffix("_bias"), "bias"
        return f"{self.names.get_name(stem)}.{kind}"

    def to_gguf(self, weights: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
        found = {}
        for name, value in weights.items():
            value = value.float().numpy()
            if ".experts.gate_up_proj" in name:
                if self.arch == "gpt-oss":  # interleaved, and [expert, in, out]
                    pair = value[..., ::2], value[..., 1::2]
                    pair = [np.swapaxes(part, 1, 2) for part in pair] if value.ndim == 3 else pair
                else:
                    pair = np.split(value, 2, 1)
                for part, made in zip(pair, ("gate_proj", "up_proj")):
                    found[self.name(name.replace("gate_up_proj", made))] = part
                continue
            if self.arch == "gpt-oss" and name.endswith(".experts.down_proj"):
                value = np.swapaxes(value, 1, 2)
            written = self.name(name.replace("e_score_correction_bias", "e_score_correction.bias"))
            if self.arch == "gemma3" and name.endswith("norm.weight"):
                value = value + np.float32(1)
            heads = self.heads(written)
            assert written not in found and "None" not in written, (name, written)
            found[written] = permuted(value, heads) if heads else value
        return {name: np.ascontiguousarray(value) for name, value in found.items()}

    def from_gguf(self, tensors: dict[str, np.ndarray], like: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The other way, for transformers' model: `like` has its names."""
        weights = {}
        for name, old in like.items():
            if ".experts.gate_up_proj" in name:
                gate, up = (tensors[self.name(name.replace("gate_up_proj", made))] for made in ("gate_proj", "up_proj"))
                if self.arch == "gpt-oss":
                    gate, up = (np.swapaxes(part, 1, 2) if part.ndim == 3 else part for part in (gate, up))
                    value = np.stack([gate, up], -1).reshape(*gate.shape[:-1], -1)
                else:
                    value = np.concatenate([gate, up], 1)
            else:
                written = self.name(name.replace("e_score_correction_bias", "e_score_correction.bias"))
                value = tensors[written]
                if self.arch == "gpt-oss" and name.endswith(".experts.down_proj"):
                    value = np.swapaxes(value, 1, 2)
                if self.arch == "gemma3" and name.endswith("norm.weight"):
                    value = value - np.float32(1)
                heads = self.heads(written)
                value = half_split(value, heads) if heads else value
            weights[name] = torch.from_numpy(np.array(value, order="C")).reshape(old.shape)
        return weights


def write_keys(writer: GGUFWriter, arch: str, config, next_layers: int) -> None:
    """What llama.cpp's conversion writes of a config (conversion/base.py and the model's own file)."""
    def number(key: str, value: int) -> None:
        writer.add_uint32(f"{arch}.{key}", value)

    def real(key: str, value: float) -> None:
        writer.add_float32(f"{arch}.{key}", value)

    get = lambda name: getattr(config, name, None)
    head = get("head_dim") or config.hidden_size // config.num_attention_heads
    number("block_count", config.num_hidden_layers + next_layers)
    number("context_length", config.max_position_embeddings)
    number("embedding_length", config.hidden_size)
    number("feed_forward_length", config.intermediate_size)
    number("attention.head_count", config.num_attention_heads)
    number("attention.head_count_kv", config.num_key_value_heads)
    real("attention.layer_norm_rms_epsilon", config.rms_norm_eps)
    if arch != "qwen2":
        number("attention.key_length", head)
        number("attention.value_length", head)
    rope = config.rope_parameters
    if FULL in rope:
        if arch != "gemma3":
            real("rope.freq_base_swa", rope[SLIDING]["rope_theta"])
        rope = rope[FULL]
    real("rope.freq_base", rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_string(f"{arch}.rope.scaling.type", rope["rope_type"])
        real("rope.scaling.factor", rope["factor"])
    if rope["rope_type"] == "yarn":
        number("rope.scaling.original_context_length", rope["original_max_position_embeddings"])
        for key in ("beta_fast", "beta_slow"):
            if rope.get(key) is not None:
                real(f"rope.scaling.yarn_{key}", rope[key])
    if arch in ("llama", "mistral3"):
        number("vocab_size", config.vocab_size)
        number("rope.dimension_count", head)
    if arch == "mistral3":
        real("rope.scaling.yarn_log_multiplier", rope["mscale_all_dim"])
        real("attention.temperature_scale", rope["llama_4_scaling_beta"])
    if arch in ("glm4", "glm4moe"):
        number("rope.dimension_count", int(head * rope["partial_rotary_factor"]))
    if arch in ("gemma3", "gpt-oss"):
        number("attention.sliding_window", config.sliding_window)
    experts = get("num_local_experts") or get("num_experts") or get("n_routed_experts")
    if experts:
        number("expert_count", experts)
        number("expert_used_count", config.num_experts_per_tok)
        number("expert_feed_forward_length", get("moe_intermediate_size") or config.intermediate_size)
    if arch == "glm4moe":
        number("expert_shared_count", config.n_shared_experts)
        number("leading_dense_block_count", config.first_k_dense_replace)
        number("expert_gating_func", 2)
        number("expert_group_count", config.n_group)
        number("expert_group_used_count", config.topk_group)
        real("expert_weights_scale", config.routed_scaling_factor)
        writer.add_bool(f"{arch}.expert_weights_norm", config.norm_topk_prob)
        number("nextn_predict_layers", next_layers)


def write_tokenizer(writer: GGUFWriter, keys: dict) -> None:
    for key, value in keys.items():
        name = f"tokenizer.ggml.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)


def placeholder_tokenizer(size: int) -> dict:
    """llama.cpp loads no model without one."""
    keys, _ = byte_level("qwen2")
    alphabet = keys["tokens"][:256]
    tokens = [alphabet[at] if at < len(alphabet) else f"[PAD{at}]" for at in range(size)]
    return {"model": "gpt2", "pre": "qwen2", "tokens": tokens, "token_type": [NORMAL] * size, "merges": keys["merges"][:1],
            "bos_token_id": 1, "eos_token_id": 2, "add_bos_token": False}


def write_gguf(path: pathlib.Path, arch: str, config, tensors: dict[str, np.ndarray], types: dict, tokenizer: dict,
               next_layers: int, ggml: Ggml) -> None:
    writer = GGUFWriter(path, arch)
    writer.add_string("general.type", "model")
    writer.add_string("general.name", f"tiny {arch}")
    write_keys(writer, arch, config, next_layers)
    writer.add_quantization_version(2)
    write_tokenizer(writer, tokenizer)
    if tokenizer.get("eos_token_id", 0) > 2:
        writer.add_string("tokenizer.chat_template", CHAT)
    for name, value in tensors.items():
        part = name.removesuffix(".weight").split(".")
        matrix = value.ndim > 1 and name.endswith(".weight") and part[-1] != "ffn_gate_inp"
        kind = types.get(part[-1], T.Q4_0) if matrix and types else T.F32
        if isinstance(kind, list):
            kind = kind[int(part[1])]
        writer.add_tensor(name, ggml.pack(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_gguf(path: pathlib.Path) -> dict[str, np.ndarray]:
    return {tensor.name: dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1].tolist())
            for tensor in GGUFReader(path).tensors}


def prompt(vocabulary: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(3, vocabulary, (PROMPT_TOKENS,), generator=generator)


def logits_of(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(ids[None]).logits[0, torch.tensor(LENGTHS) - 1]


def save_expected(folder: pathlib.Path, ids: torch.Tensor, logits: torch.Tensor) -> None:
    save_file({"ids": ids, "lengths": torch.tensor(LENGTHS), "logits": logits.contiguous()}, folder / "expected.safetensors")


def relative(found, expected) -> float:
    found, expected = torch.as_tensor(found), torch.as_tensor(expected)
    return ((found - expected).norm() / expected.norm()).item()


def tiny(family: str, changes: dict, seed: int):
    """A model of transformers with drawn weights, and what draws on."""
    with tempfile.TemporaryDirectory() as place:
        (pathlib.Path(place) / "config.json").write_text(json.dumps(config_of(family, changes)))
        config = AutoConfig.from_pretrained(place)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    randomise(model, generator)
    return model, generator


def as_llama_has_it(model: torch.nn.Module, arch: str) -> torch.nn.Module:
    """llama.cpp rounds the ends of YaRN's band, which gpt-oss does not and its GGUF file does not say."""
    if arch != "gpt-oss":
        return model
    config = copy.deepcopy(model.config)
    config.rope_parameters["truncate"] = True
    other = type(model)(config).eval()
    other.load_state_dict(model.state_dict())
    return other


def record_gguf(name: str, seed: int, ggml: Ggml, llama: Llama) -> None:
    arch, family, changes, tokenizer, types = MODELS[name]
    folder = FOLDER / name
    folder.mkdir(exist_ok=True, parents=True)
    model, generator = tiny(family, changes, seed)
    config = model.config
    next_layers = changes.get(NEXT_TOKEN_LAYERS, 0)
    layout = Layout(arch, config)
    state = {key: value for key, value in model.state_dict().items()
             if not (key == "lm_head.weight" and config.tie_word_embeddings)}
    tensors = layout.to_gguf(state)
    rope = config.rope_parameters
    if rope.get("rope_type") == "llama3":
        head = config.head_dim
        plain = 1.0 / (rope["rope_theta"] ** (torch.arange(0, head, 2).float() / head))
        tensors["rope_freqs.weight"] = (plain / model.model.rotary_emb.inv_freq).numpy()
    for layer in range(config.num_hidden_layers, config.num_hidden_layers + next_layers):  # to be skipped
        last = f"blk.{config.num_hidden_layers - 1}."
        copies = {key: value for key, value in tensors.items() if key.startswith(last)}
        tensors |= {key.replace(last, f"blk.{layer}."): value for key, value in copies.items()}
        wide = np.zeros((config.hidden_size, 2 * config.hidden_size), np.float32)
        norm = np.ones(config.hidden_size, np.float32)
        tensors |= {f"blk.{layer}.nextn.eh_proj.weight": wide, f"blk.{layer}.nextn.enorm.weight": norm,
                    f"blk.{layer}.nextn.hnorm.weight": norm, f"blk.{layer}.nextn.shared_head_norm.weight": norm}
    keys, for_transformers = tokenizer() if tokenizer else (placeholder_tokenizer(config.vocab_size), None)
    ids = prompt(config.vocab_size, generator)

    # All in f32: llama.cpp must say the same, so that names and orders are right.
    with tempfile.TemporaryDirectory() as place:
        plain = pathlib.Path(place) / "plain.gguf"
        write_gguf(plain, arch, config, tensors, {}, keys, next_layers, ggml)
        judged, _ = llama.judge(plain, ids.tolist(), LENGTHS)
        away = relative(judged, logits_of(as_llama_has_it(model, arch), ids))
        assert away < 5e-3, (name, away)  # its cache is in f16

    path = folder / "model.gguf"
    write_gguf(path, arch, config, tensors, types, keys, next_layers, ggml)
    rounded = layout.from_gguf(read_gguf(path), state)
    moved = max(relative(rounded[key], state[key]) for key in state)
    model.load_state_dict(rounded, strict=False)
    logits = logits_of(model, ids)
    save_expected(folder, ids, logits)
    judged, texts = llama.judge(path, ids.tolist(), LENGTHS, TEXTS)
    packed_away = relative(judged, logits_of(as_llama_has_it(model, arch), ids))  # it rounds activations too
    if for_transformers:
        own = [for_transformers.encode(text, add_special_tokens=False).ids for text in TEXTS]
        for text, theirs, ours in zip(TEXTS, texts, own):
            if theirs != ours:
                print(f"  {name}: {text!r}: llama.cpp {theirs}, tokenizers {ours}")
        (folder / "texts.json").write_text(json.dumps([list(pair) for pair in zip(TEXTS, own)], ensure_ascii=False) + "\n")
    print(f"{name:14} {path.stat().st_size:7} bytes, rounding {moved:.2f}, max |logit| {logits.abs().max():.2f}, "
          f"llama.cpp away {away:.1e} in f32, {packed_away:.1e} packed")


# --------------------------------------------------------------------------------------------- Hugging Face's folders

FP8 = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8).max
Packed = tuple[dict[str, torch.Tensor], torch.Tensor]  # tensors by their last name, and the f32 values they say


def by_blocks(scales: torch.Tensor, block: int, shape: torch.Size) -> torch.Tensor:
    """A scale for each weight: the last blocks of rows and of columns may be cut short."""
    return scales.float().repeat_interleave(block, 0)[: shape[0]].repeat_interleave(block, 1)[:, : shape[1]]


def fp8_blocks(weight: torch.Tensor, block: int = 128, dtype: torch.dtype = torch.float32) -> Packed:
    rows, columns = (-(-size // block) for size in weight.shape)
    padded = torch.nn.functional.pad(weight, (0, columns * block - weight.shape[1], 0, rows * block - weight.shape[0]))
    largest = padded.reshape(rows, block, columns, block).abs().amax((1, 3))
    scales = (largest / FP8_MAX).to(dtype)
    packed = (weight / by_blocks(scales, block, weight.shape)).clamp(-FP8_MAX, FP8_MAX).to(FP8)
    if weight.shape[0] % block == 0 and weight.shape[1] % block == 0:
        theirs = Fp8Dequantize._dequantize_one(None, packed, scales, torch.float32)
        assert torch.equal(theirs, packed.float() * by_blocks(scales, block, weight.shape))
    return {"weight": packed, "weight_scale_inv": scales}, packed.float() * by_blocks(scales, block, weight.shape)


def fp8_blocks_bf16(weight: torch.Tensor) -> Packed:
    return fp8_blocks(weight, dtype=torch.bfloat16)


def fp8_tensor(weight: torch.Tensor) -> Packed:
    scale = weight.abs().max() / FP8_MAX
    packed = (weight / scale).clamp(-FP8_MAX, FP8_MAX).to(FP8)
    return {"weight": packed, "weight_scale": scale, "input_scale": torch.tensor(0.05)}, packed.float() * scale


class Compressed:
    """As compressed-tensors packs a weight, and as it unpacks it."""

    def __init__(self, compressor: type, weights: dict, dtype: torch.dtype = torch.bfloat16):
        self.compressor, self.dtype = compressor, dtype
        self.scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))

    def __call__(self, weight: torch.Tensor) -> Packed:
        args = self.scheme.weights
        groups = weight.reshape(len(weight), -1, args.group_size or weight.shape[1])
        least, most = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scale, zero = calculate_qparams(least, most, args)
        state = {"weight": weight, "weight_scale": scale.to(self.dtype)}
        if not args.symmetric:
            state["weight_zero_point"] = zero
        packed = self.compressor.compress(state, self.scheme)
        # In f32: the library's own product would be rounded to the type of the scales.
        exact = {**packed, "weight_scale": packed["weight_scale"].float()}
        values = self.compressor.decompress(exact, self.scheme)["weight"]
        assert values.dtype == torch.float32 and relative(values, weight) < 0.2
        return {key: value.contiguous() for key, value in packed.items()}, values


def four_bits(weight: torch.Tensor, group: int, symmetric: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [in, out] of 0 to 15, zero points [groups, out] and scales [groups, out] in f16."""
    groups = weight.T.reshape(-1, group, len(weight))
    if symmetric:
        scales = (groups.abs().amax(1) / 7.5).half()
        zeros = torch.full_like(scales, 8, dtype=torch.int32)
    else:
        least, most = groups.amin(1).clamp(max=0), groups.amax(1).clamp(min=0)
        scales = ((most - least) / 15).half()
        zeros = (-least / scales.float()).round().clamp(1, 15).int()  # GPTQ's readers differ about 0
    codes = (groups / scales.float()[:, None] + zeros[:, None]).round().clamp(0, 15).int()
    return codes.reshape(weight.shape[1], -1), zeros, scales


def eight_in_one(codes: torch.Tensor, dimension: int) -> torch.Tensor:
    """Eight numbers of 4 bits in each i32 along a dimension, the first in the lowest bits."""
    parts = codes.movedim(dimension, -1).unflatten(-1, (-1, 8)).to(torch.int64)
    packed = (parts << (4 * torch.arange(8))).sum(-1)
    return packed.to(torch.uint32).view(torch.int32).movedim(-1, dimension).contiguous()


AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # which of eight columns stand in an i32, from its lowest bits


class Awq:
    def __init__(self, group: int):
        self.group = group

    def __call__(self, weight: torch.Tensor) -> Packed:
        codes, zeros, scales = four_bits(weight, self.group, False)
        ordered = [part.unflatten(-1, (-1, 8))[..., AWQ_ORDER].flatten(-2) for part in (codes, zeros)]
        packed = {"qweight": eight_in_one(ordered[0], 1), "qzeros": eight_in_one(ordered[1], 1), "scales": scales}
        values = (codes - zeros.repeat_interleave(self.group, 0)) * scales.float().repeat_interleave(self.group, 0)
        return packed, values.T.contiguous()


class Gptq:
    """The first form of its files keeps each zero point less one. With an order of activation, each row of the
    input says its own group."""

    def __init__(self, group: int, symmetric: bool, ordered: bool = False, version: int = 1):
        self.group, self.symmetric, self.ordered, self.version = group, symmetric, ordered, version
        self.generator = torch.Generator().manual_seed(5)

    def __call__(self, weight: torch.Tensor) -> Packed:
        columns = weight.shape[1]
        order = torch.randperm(columns, generator=self.generator) if self.ordered else torch.arange(columns)
        codes, zeros, scales = four_bits(weight[:, order], self.group, self.symmetric)
        groups = torch.empty(columns, dtype=torch.int32)
        groups[order] = torch.arange(columns, dtype=torch.int32) // self.group
        codes = codes[order.argsort()]
        stored = zeros - 1 if self.version == 1 else zeros
        packed = {"qweight": eight_in_one(codes, 0), "qzeros": eight_in_one(stored, 1), "scales": scales, "g_idx": groups}
        values = (codes - zeros[groups.long()]) * scales.float()[groups.long()]
        return packed, values.T.contiguous()


def compressed_config(form: str, weights: dict, activations: dict | None = None, ignore: list | None = None) -> dict:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
            "config_groups": {"group_0": group}, "ignore": ignore or ["lm_head"], "kv_cache_scheme": None,
            "global_compression_ratio": None}


def awq_config(group: int) -> dict:
    return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm",
            "modules_to_not_convert": None}


def gptq_config(group: int, symmetric: bool, ordered: bool, form: str | None) -> dict:
    config = {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": ordered, "sym": symmetric,
              "damp_percent": 0.01, "static_groups": False, "true_sequential": True, "lm_head": False}
    return config | ({"checkpoint_format": form} if form else {})


CHANNEL_FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
TOKEN_FP8 = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
CHANNEL_INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False}
TOKEN_INT8 = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True, "dynamic": False}
INT4_ODD = {**INT4, "group_size": 20, "symmetric": False}
IGNORED = ["lm_head", r"re:.*layers\.1\.mlp\.(down|up)_proj$", "model.layers.0.self_attn.k_proj"]
HALF = {"hidden_size": 64, "intermediate_size": 96}

# Name: family and changes for `config_of`, type of what is not packed, quantization_config, packer, and which linear modules
# stay as they are besides the head.
FOLDERS = {
    "fp8": ("qwen3", {"hidden_size": 160, "intermediate_size": 144, "num_hidden_layers": 1}, torch.bfloat16, {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        fp8_blocks_bf16, None),
    "fp8-experts": ("qwen3_moe", {**HALF, **EXPERTS, "hidden_size": 256, "moe_intermediate_size": 16, "num_experts": 4,
                                  "num_hidden_layers": 1, "tie_word_embeddings": True}, torch.bfloat16, {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm", "model.layers.0.mlp.gate",
                                   "model.layers.0.self_attn.v_proj"]}, fp8_blocks, r"v_proj|mlp\.gate$"),
    "fp8-tensor": ("llama", HALF, torch.bfloat16, {
        "quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head", "model.layers.1.mlp.down_proj"]},
        fp8_tensor, r"1\.mlp\.down_proj"),
    "compressed-fp8": ("llama", HALF, torch.bfloat16, compressed_config("float-quantized", CHANNEL_FP8, TOKEN_FP8),
                       Compressed(FloatQuantizationCompressor, CHANNEL_FP8), None),
    "compressed-int8": ("qwen2", HALF, torch.bfloat16, compressed_config("int-quantized", CHANNEL_INT8, TOKEN_INT8),
                        Compressed(IntQuantizationCompressor, CHANNEL_INT8), None),
    "compressed-int4": ("llama", HALF, torch.bfloat16, compressed_config("pack-quantized", INT4, None, IGNORED),
                        Compressed(PackedQuantizationCompressor, INT4), r"1\.mlp\.(down|up)_proj|0\.self_attn\.k_proj"),
    "compressed-int4-odd": ("llama", {"hidden_size": 80, "intermediate_size": 100, "num_attention_heads": 5,
                                      "num_key_value_heads": 5}, torch.float16,
                            compressed_config("pack-quantized", INT4_ODD),
                            Compressed(PackedQuantizationCompressor, INT4_ODD, torch.float16), None),
    "awq": ("qwen2", HALF, torch.float16, awq_config(32), Awq(32), None),
    "gptq": ("llama", {**HALF, "tie_word_embeddings": True}, torch.float16, gptq_config(32, True, False, None),
             Gptq(32, True), None),
    "gptq-order": ("qwen3", HALF, torch.float16, gptq_config(32, False, True, "gptq"), Gptq(32, False, True), None),
    "gptq-v2": ("llama", HALF, torch.float16, gptq_config(32, False, False, "gptq_v2"), Gptq(32, False, False, 2), None),
}


def record_folder(name: str, seed: int) -> None:
    family, changes, dtype, quantisation, packer, kept = FOLDERS[name]
    folder = FOLDER / name
    folder.mkdir(exist_ok=True, parents=True)
    model, generator = tiny(family, changes, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype))
    ids = prompt(model.config.vocab_size, generator)
    weights, rounded = {}, {}
    for key, value in as_published(model.state_dict()).items():
        if key == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        stem = key.removesuffix(".weight")
        linear = key.endswith("_proj.weight")
        if not linear or (kept and re.search(kept, stem)):
            weights[key] = value.to(dtype)
            rounded[key] = value
            continue
        packed, rounded[key] = packer(value)
        weights |= {f"{stem}.{part}": tensor.contiguous() for part, tensor in packed.items()}
    state = dict(rounded)
    for key in model.state_dict():  # experts are stacked in transformers 5
        stem, _, kind = key.rpartition(".experts.")
        if stem:
            parts = [("gate_proj", "up_proj") if kind == "gate_up_proj" else ("down_proj",)][0]
            count = model.config.num_experts
            state[key] = torch.stack([torch.cat([rounded[f"{stem}.experts.{at}.{part}.weight"] for part in parts])
                                      for at in range(count)])
    missing = model.load_state_dict({key: value for key, value in state.items() if key in model.state_dict()}, strict=False)
    assert all(key == "lm_head.weight" for key in missing.missing_keys), missing
    config = config_of(family, changes) | {"torch_dtype": str(dtype).removeprefix("torch."), "quantization_config": quantisation}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    logits = logits_of(model, ids)
    save_expected(folder, ids, logits)
    size = (folder / "model.safetensors").stat().st_size
    print(f"{name:20} {size:7} bytes, max |logit| {logits.abs().max():.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    libraries, *chosen = sys.argv[1:]
    ggml, llama = Ggml(pathlib.Path(libraries)), Llama(libraries)
    FOLDER.mkdir(exist_ok=True)
    if not chosen:
        record_blocks(ggml)
    for index, name in enumerate(MODELS):
        if not chosen or name in chosen:
            record_gguf(name, 2000 + index, ggml, llama)
    for index, name in enumerate(FOLDERS):
        if not chosen or name in chosen:
            record_folder(name, 3000 + index)
