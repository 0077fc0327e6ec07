//! How a byte-level tokenizer cuts a text into words, by the name that a GGUF file gives.
//! (llama.cpp, `src/llama-vocab.cpp`.)

use serde_json::{Value, json};

/// Llama 3's words.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Qwen 2's: every digit is a word.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Mistral's Tekken.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// GPT-4o's, and gpt-oss's.
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A way of cutting.
pub(super) struct Cutting {
    /// The steps of a tokenizer.json.
    pub steps: Value,
    /// The normalizer of its models' tokenizer.json.
    pub normalizer: Value,
    /// Whether a word that is a token is taken as it is.
    pub ignores_merges: bool,
    /// Whether a text begins with a token of its own, if a file does not say.
    pub adds_bos: bool,
}

/// The way of cutting of a name.
///
/// # Errors
/// Returns a message if the name is not known.
pub(super) fn cutting(name: &str) -> Result<Cutting, String> {
    let plain = Cutting { steps: Value::Null, normalizer: Value::Null, ignores_merges: false, adds_bos: false };
    Ok(match name {
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "pixtral" => {
            Cutting { steps: split(LLAMA3), ignores_merges: true, adds_bos: true, ..plain }
        }
        "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => Cutting { steps: split(LLAMA3), ..plain },
        "qwen2" | "deepseek-r1-qwen" => Cutting { steps: split(QWEN2), normalizer: json!({"type": "NFC"}), ..plain },
        "stablelm2" | "hunyuan" | "megrez" => Cutting { steps: split(QWEN2), ..plain },
        "tekken" => Cutting { steps: split(TEKKEN), ignores_merges: true, adds_bos: true, ..plain },
        "gpt-4o" | "llama4" => Cutting { steps: split(GPT_4O), ..plain },
        "gpt-2" | "mpt" | "olmo" | "phi-2" => Cutting { steps: sequence(json!([bytes(true)])), ..plain },
        "smollm" | "starcoder" | "refact" | "command-r" => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            Cutting { steps: sequence(json!([digits, bytes(true)])), ..plain }
        }
        other => {
            let known = "llama-bpe, qwen2, smollm, gpt-2, gpt-4o, tekken, glm4 and their relatives are known";
            return Err(format!("tokenizer.ggml.pre `{}`: {known}", other.escape_debug()));
        }
    })
}

/// Bytes as letters; with words as GPT-2 cuts them, or of words that are cut already.
pub(super) fn bytes(cuts: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": cuts})
}

fn split(pattern: &str) -> Value {
    let words = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    sequence(json!([words, bytes(false)]))
}

fn sequence(steps: Value) -> Value {
    json!({"type": "Sequence", "pretokenizers": steps})
}
