//! The tokenizer.json and tokenizer_config.json that a GGUF file's metadata stand for.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::facts::CONTROL;
use super::file::Gguf;
use super::pre_tokenizer::{bytes, cutting};

/// Types of tokens, besides [`CONTROL`].
const UNKNOWN: u64 = 2;
const USER_DEFINED: u64 = 4;

/// Maximum numbers of tokens, and of pairs of them that are joined; and the longest union of a
/// pair, in bytes.
const MOST_TOKENS: usize = 1 << 20;
const MOST_MERGES: usize = 1 << 22;
const LONGEST_UNION: usize = 256;

/// The sign that stands for a blank in a vocabulary of SentencePiece.
const BLANK: &str = "\u{2581}";

/// The two files.
pub(super) struct Files {
    pub tokenizer: Value,
    pub config: Value,
}

/// The tokens of a file.
struct Vocabulary<'a> {
    file: &'a Gguf,
    tokens: Vec<&'a str>,
    kinds: Vec<u64>,
}

/// The tokenizer of a file.
///
/// # Errors
/// Returns a message if it is of a kind that is not supported, or if its parts do not fit each
/// other.
pub(super) fn files(file: &Gguf) -> Result<Files, String> {
    let vocabulary = Vocabulary::new(file)?;
    let (tokenizer, adds_bos) = match file.text("tokenizer.ggml.model") {
        Some("gpt2") => vocabulary.byte_level()?,
        Some("llama") => vocabulary.sentence_piece()?,
        Some(other) => {
            return Err(format!("tokenizer.ggml.model `{}`: gpt2 and llama are supported", other.escape_debug()));
        }
        None => return Err("it has no tokenizer: `tokenizer.ggml.model` is missing".to_owned()),
    };
    let text = |name: &str| {
        let id = file.number(&format!("tokenizer.ggml.{name}_token_id"))?;
        vocabulary.tokens.get(usize::try_from(id).ok()?).copied()
    };
    let stated = file.metadata.get("tokenizer.ggml.add_bos_token").and_then(Value::as_bool);
    let mut config = Map::new();
    config.insert("add_bos_token".to_owned(), stated.unwrap_or(adds_bos).into());
    for (key, name) in [("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")]
    {
        config.insert(key.to_owned(), text(name).into());
    }
    if let Some(template) = file.text("tokenizer.chat_template") {
        config.insert("chat_template".to_owned(), template.into());
    }
    Ok(Files { tokenizer, config: config.into() })
}

impl<'a> Vocabulary<'a> {
    fn new(file: &'a Gguf) -> Result<Self, String> {
        let list = |name: &str| file.metadata.get(&format!("tokenizer.ggml.{name}")).and_then(Value::as_array);
        let tokens: Option<Vec<&str>> =
            list("tokens").map(|tokens| tokens.iter().map(Value::as_str).collect()).unwrap_or_default();
        let tokens = tokens.ok_or("`tokenizer.ggml.tokens` is missing or no list of texts")?;
        let kinds: Vec<u64> = match list("token_type") {
            None => vec![1; tokens.len()],
            Some(kinds) => kinds.iter().map(|kind| kind.as_u64().unwrap_or_default()).collect(),
        };
        if tokens.len() > MOST_TOKENS {
            return Err(format!("{} tokens; at most {MOST_TOKENS}", tokens.len()));
        }
        if kinds.len() != tokens.len() {
            return Err(format!("{} tokens with {} types", tokens.len(), kinds.len()));
        }
        Ok(Self { file, tokens, kinds })
    }

    /// The tokens with their ids, in the order of ids: a description is the same every time.
    fn listed(&self) -> Map<String, Value> {
        self.tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), id.into())).collect()
    }

    /// The tokens' ids.
    fn ids(&self) -> Result<HashMap<&'a str, usize>, String> {
        let mut ids = HashMap::with_capacity(self.tokens.len());
        for (id, token) in self.tokens.iter().enumerate() {
            if let Some(other) = ids.insert(*token, id) {
                return Err(format!("tokens {other} and {id} are both `{}`", token.escape_debug()));
            }
        }
        Ok(ids)
    }

    /// Tokens that are taken out of a text whole.
    fn added(&self) -> Vec<Value> {
        let one = |(id, (token, &kind)): (usize, (&&str, &u64))| {
            let is_whole = matches!(kind, CONTROL | USER_DEFINED | UNKNOWN) && !token.is_empty();
            is_whole.then(|| {
                json!({
                    "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": kind != USER_DEFINED,
                })
            })
        };
        self.tokens.iter().zip(&self.kinds).enumerate().filter_map(one).collect()
    }

    /// A tokenizer of bytes in letters, and whether a text begins with a token of its own.
    fn byte_level(&self) -> Result<(Value, bool), String> {
        let pre = self.file.text("tokenizer.ggml.pre");
        let cutting =
            cutting(pre.ok_or("`tokenizer.ggml.pre` is missing: how a text is cut into words is not known")?)?;
        let merges = self.file.metadata.get("tokenizer.ggml.merges").filter(|merges| merges.is_array());
        let merges = merges.ok_or("`tokenizer.ggml.merges` is missing")?;
        self.ids()?;
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": self.added(),
            "normalizer": cutting.normalizer, "pre_tokenizer": cutting.steps, "post_processor": null,
            "decoder": bytes(true),
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
                "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": cutting.ignores_merges, "vocab": self.listed(), "merges": merges,
            },
        });
        Ok((tokenizer, cutting.adds_bos))
    }

    /// A tokenizer of SentencePiece's kind, in which the pair whose union has the highest score is
    /// joined first.
    fn sentence_piece(&self) -> Result<(Value, bool), String> {
        let scores = self.file.metadata.get("tokenizer.ggml.scores").and_then(Value::as_array);
        let scores: Vec<f64> = scores.into_iter().flatten().map(|score| score.as_f64().unwrap_or(f64::MIN)).collect();
        if scores.len() != self.tokens.len() {
            return Err(format!("{} tokens with {} scores", self.tokens.len(), scores.len()));
        }
        let ids = self.ids()?;
        let merges: Vec<[&str; 2]> = self.merges(&ids, &scores)?;
        let flag = |name: &str| self.file.metadata.get(&format!("tokenizer.ggml.{name}")).and_then(Value::as_bool);
        let prefixed = flag("add_space_prefix").unwrap_or(true);
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": BLANK});
        let back = json!({"type": "Replace", "pattern": {"String": BLANK}, "content": " "});
        let mut decoders = vec![back, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        let mut normalizers = vec![replace];
        if prefixed {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": BLANK}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let unknown = self.file.number("tokenizer.ggml.unknown_token_id").unwrap_or(0);
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": self.added(),
            "normalizer": {"type": "Sequence", "normalizers": normalizers}, "pre_tokenizer": null,
            "post_processor": null, "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {
                "type": "BPE", "dropout": null, "unk_token": self.tokens.get(unknown as usize),
                "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
                "byte_fallback": true, "ignore_merges": false, "vocab": self.listed(), "merges": merges,
            },
        });
        Ok((tokenizer, true))
    }

    /// All pairs of tokens whose union is a token, the highest score first.
    fn merges(&self, ids: &HashMap<&'a str, usize>, scores: &[f64]) -> Result<Vec<[&'a str; 2]>, String> {
        let mut merges: Vec<(usize, usize, usize)> = Vec::new();
        for (id, token) in self.tokens.iter().enumerate().filter(|(_, token)| token.len() <= LONGEST_UNION) {
            if merges.len() > MOST_MERGES {
                return Err(format!("more than {MOST_MERGES} pairs of tokens are tokens"));
            }
            for (at, _) in token.char_indices().skip(1) {
                let (left, right) = token.split_at(at);
                if let (Some(&left), Some(&right)) = (ids.get(left), ids.get(right)) {
                    merges.push((id, left, right));
                }
            }
        }
        merges.sort_by(|one, other| {
            let by_score = scores[other.0].total_cmp(&scores[one.0]);
            by_score.then(one.cmp(other))
        });
        Ok(merges.iter().map(|&(_, left, right)| [self.tokens[left], self.tokens[right]]).collect())
    }
}
