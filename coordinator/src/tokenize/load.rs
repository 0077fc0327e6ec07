//! Loads a tokenizer from a model folder: `tokenizer.json`, and additions from the files beside it.
//! The files are not trusted: a tokenizer is parsed and tried on a thread of its own, within a time
//! limit.
//!
//! As in transformers, tokens are added from `added_tokens_decoder` of `tokenizer_config.json`, or,
//! if that is absent, from `added_tokens.json`; then every special token that the files name and no
//! vocabulary has.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::long::Cuts;
use super::{Tokenizer, bytes, caught};
use crate::request::read_of_model;
use crate::template::{Template, object, special_tokens};
use crate::{Error, Result};

/// Maximum time to parse and try a tokenizer.
const WITHIN: Duration = Duration::from_secs(60);

/// Stack of that thread: nested parts of a tokenizer are parsed recursively.
const STACK_BYTES: usize = 64 << 20;

/// Texts that every tokenizer is tried on.
const PROBES: [&str; 6] = [
    "Hello world",
    " a  b\n\nc\t",
    "né 日本 🦀",
    "1234567890",
    "<|x|> </s> [INST]",
    "!\"#$%&'()*+,-./:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~",
];

/// Maximum factor by which a tokenizer's replacements may lengthen a text.
const MOST_GROWTH: f64 = 1024.0;

/// A character that no vocabulary of words has: its ids are the model's sign for an unknown text.
const UNKNOWN: &str = "\u{10000}";

/// Additions of the files beside `tokenizer.json`.
#[derive(Debug, Clone, Default)]
pub(super) struct Beside {
    /// Tokens to add, in the order of their ids.
    added: Vec<AddedToken>,
    /// The ids that the files give tokens.
    ids: BTreeMap<String, u32>,
    /// Names and texts of special tokens.
    special: Vec<(String, String)>,
    /// Whether a text begins with the token that begins texts, if the files tell.
    adds_bos: Option<bool>,
    /// Whether the files deny a token that begins texts.
    has_no_bos: bool,
}

impl Tokenizer {
    /// Reads a folder's `tokenizer.json` and the additions of the files beside it. The chat
    /// template, if one is used, decides which tokens besides the special ones are marks.
    ///
    /// # Errors
    /// Returns [`Error::Plan`], [`Error::Json`], or [`Error::Tokenizer`] if the file is
    /// not a tokenizer, or does not encode a few plain texts in time.
    pub fn from_folder(folder: &Path, template: Option<&Template>) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        let json = read_of_model(&path)?;
        let beside = Beside::read(folder)?;
        let template = template.cloned();
        let loaded = within(WITHIN, move || {
            check_growth(&json)?;
            let tokenizer = Tokenizer::from_json(&json, template.as_ref(), &beside)?;
            tried(&tokenizer)?;
            Ok(tokenizer)
        });
        loaded.map_err(|cause| Error::Tokenizer(format!("{}: {cause}", path.display())))
    }

    pub(super) fn from_json(
        json: &str,
        template: Option<&Template>,
        beside: &Beside,
    ) -> std::result::Result<Self, tokenizers::Error> {
        let mut marking: tokenizers::Tokenizer = json.parse()?;
        marking.with_padding(None);
        marking.with_truncation(None)?;
        let mut notes = beside.add_to(&mut marking)?;
        let written = template.map(Template::written).unwrap_or_default();
        let mut marks = marking.get_added_tokens_decoder();
        let is_written = |content: &str| !content.trim().is_empty() && written.contains(content);
        marks.retain(|_, token| token.special || is_written(&token.content));
        let mut plain = marking.clone();
        plain.add_special_tokens(marks.values().map(|token| token.clone().special(true)))?;
        plain.set_encode_special_tokens(true);
        let unknown = plain.encode(UNKNOWN, false)?;
        marks.retain(|id, _| !unknown.get_ids().contains(id));
        let first = plain.encode("a", false)?;
        let adds_space = first.get_tokens().first().is_some_and(|token| token.starts_with(['\u{2581}', '\u{120}']));
        let comes_out = template.map(Template::rendered_marks).unwrap_or_default();
        let missing = missing_mark(&comes_out, &marking);
        let in_a_branch = missing_mark(&written, &marking).filter(|_| missing.is_none());
        notes.extend(in_a_branch.map(|mark| {
            format!("the chat template may write {mark}, which is no token of this tokenizer: it is read as letters")
        }));
        let (bos, eos) = (beside.bos(&marking)?, beside.eos(&marking));
        let mark_texts: Vec<String> = marks.values().map(|token| token.content.clone()).collect();
        let written = mark_texts.iter().filter(|text| comes_out.contains(text.as_str())).cloned().collect();
        let marks = marks.into_keys().collect();
        let writing = bytes::writing(&marking);
        let cuts = Cuts::default();
        let mut this =
            Self { writing, marking, plain, marks, mark_texts, written, adds_space, cuts, bos, eos, missing, notes };
        let of = |text: &str, starts| this.pieces_of(&this.plain, text, starts, usize::MAX).ok().map(|piece| piece.ids);
        this.cuts = Cuts::of(&this.plain, of);
        Ok(this)
    }
}

/// Result of a function on a thread of its own, or a message if it panics or takes too long.
fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> std::result::Result<T, tokenizers::Error> + Send + 'static,
) -> std::result::Result<T, String> {
    let (sender, receiver) = channel();
    let run = move || _ = sender.send(caught(work));
    let thread = std::thread::Builder::new().name("tokenizer".into()).stack_size(STACK_BYTES).spawn(run);
    thread.map_err(|error| format!("no thread to read it: {error}"))?;
    match receiver.recv_timeout(limit) {
        Ok(made) => made.map_err(|error| one_line(&error.to_string())),
        Err(RecvTimeoutError::Timeout) => {
            Err(format!("it takes longer than {} s to be read and tried", limit.as_secs()))
        }
        Err(RecvTimeoutError::Disconnected) => Err("it cannot be read".into()),
    }
}

/// A cause that may contain text of a model's file, as one printable line.
fn one_line(text: &str) -> String {
    text.chars().take(300).map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// Encodes and decodes a few texts.
fn tried(tokenizer: &Tokenizer) -> std::result::Result<(), tokenizers::Error> {
    for text in PROBES {
        let piece = tokenizer.encode(text)?;
        let texts = text.len().saturating_mul(64).saturating_add(1024);
        if piece.ids.len() > texts || tokenizer.decode(&piece.ids)?.len() > texts.saturating_mul(16) {
            return Err(format!("it makes {} tokens of {} bytes", piece.ids.len(), text.len()).into());
        }
    }
    Ok(())
}

/// Refuses a tokenizer whose replacements make long texts from short ones: it would control the
/// memory of a request.
fn check_growth(json: &str) -> std::result::Result<(), tokenizers::Error> {
    #[derive(Deserialize)]
    struct Steps {
        normalizer: Option<Value>,
        decoder: Option<Value>,
    }
    let steps: Steps = serde_json::from_str(json)?;
    let most = [steps.normalizer, steps.decoder].iter().flatten().map(growth).fold(1.0, f64::max);
    match most <= MOST_GROWTH {
        true => Ok(()),
        false => Err(format!("its replacements make a text {most:.0} times as long").into()),
    }
}

/// Factor by which a step of a tokenizer can lengthen a text through its replacements.
fn growth(step: &Value) -> f64 {
    let length = |text: &Value| text.as_str().map_or(0, str::len) as f64;
    let inner = ["normalizers", "decoders"].iter().filter_map(|key| step[key].as_array()).flatten();
    let own = match step["type"].as_str() {
        Some("Replace") => length(&step["content"]) / length(&step["pattern"]["String"]).max(1.0),
        Some("Prepend") => 1.0 + length(&step["prepend"]),
        _ => 1.0,
    };
    inner.map(growth).fold(own.max(1.0), |all, one| all * one)
}

impl Beside {
    fn read(folder: &Path) -> Result<Self> {
        let config = object(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        let legacy = object(&folder.join("added_tokens.json"))?.unwrap_or_default();
        let map = object(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
        let mut beside = Self { special: special_tokens(folder)?, ..Self::default() };
        let mut tokens: BTreeMap<u64, AddedToken> = BTreeMap::new();
        if let Some(decoder) = config.get("added_tokens_decoder").and_then(Value::as_object) {
            for (id, token) in decoder {
                if let (Ok(id), Some(token)) = (id.parse(), added(token)) {
                    tokens.insert(id, token);
                }
            }
        } else {
            let ids =
                legacy.iter().filter_map(|(text, id)| Some((id.as_u64()?, AddedToken::from(text.clone(), false))));
            tokens.extend(ids);
        }
        for (id, token) in &tokens {
            beside.ids.extend(u32::try_from(*id).ok().map(|id| (token.content.clone(), id)));
        }
        beside.added.extend(tokens.into_values());
        let named = beside.special.iter().map(|(_, text)| text.clone());
        let more = [&config, &map].into_iter().flat_map(additional);
        let special: Vec<String> = named.chain(more).collect();
        beside.added.extend(special.into_iter().map(|text| AddedToken::from(text, true)));
        beside.adds_bos = config.get("add_bos_token").and_then(Value::as_bool);
        beside.has_no_bos = config.get("bos_token").is_some_and(Value::is_null);
        Ok(beside)
    }

    /// Adds the tokens that a tokenizer lacks; notes ids on which the files disagree.
    pub(super) fn add_to(
        &self,
        tokenizer: &mut tokenizers::Tokenizer,
    ) -> std::result::Result<Vec<String>, tokenizers::Error> {
        let known = tokenizer.get_added_vocabulary().get_vocab().clone();
        for token in self.added.iter().filter(|token| !token.content.is_empty() && !known.contains_key(&token.content))
        {
            let token = [token.clone()];
            if token[0].special {
                tokenizer.add_special_tokens(token)?
            } else {
                tokenizer.add_tokens(token)?
            };
        }
        let differs = |(text, id): (&String, &u32)| {
            let found = tokenizer.token_to_id(text).filter(|found| found != id)?;
            Some(format!("the tokenizer gives `{}` id {found}, the files beside it {id}", text.escape_debug()))
        };
        Ok(self.ids.iter().filter_map(differs).take(3).collect())
    }

    /// The token that begins a text, as in transformers' tokenizer.
    pub(super) fn bos(&self, tokenizer: &tokenizers::Tokenizer) -> std::result::Result<Option<u32>, tokenizers::Error> {
        let named = self.special.iter().find(|(name, _)| name == "bos_token");
        let named = named.and_then(|(_, text)| tokenizer.token_to_id(text));
        match self.adds_bos {
            Some(false) => Ok(None),
            Some(true) if named.is_some() || self.has_no_bos => Ok(named),
            _ => {
                let with = tokenizer.encode("a", true)?;
                let without = tokenizer.encode("a", false)?;
                let added = with.get_ids().len().saturating_sub(without.get_ids().len());
                Ok(with.get_ids().first().copied().filter(|id| added > 0 && without.get_ids().first() != Some(id)))
            }
        }
    }

    /// The token that ends an answer, if the files name one.
    pub(super) fn eos(&self, tokenizer: &tokenizers::Tokenizer) -> Option<u32> {
        let named = self.special.iter().find(|(name, _)| name == "eos_token")?;
        tokenizer.token_to_id(&named.1)
    }
}

/// The first text of a mark's form, `<|name|>`, that is not a token.
fn missing_mark(written: &str, tokenizer: &tokenizers::Tokenizer) -> Option<String> {
    let is_name =
        |name: &&str| !name.is_empty() && name.len() < 40 && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let names = written.split("<|").skip(1).filter_map(|rest| rest.split_once("|>").map(|(name, _)| name));
    let mut marks = names.filter(is_name).map(|name| format!("<|{name}|>"));
    marks.find(|mark| tokenizer.token_to_id(mark).is_none()).map(|mark| format!("`{mark}`"))
}

/// Special tokens without a name of their own.
fn additional(config: &Map<String, Value>) -> Vec<String> {
    let lists = ["additional_special_tokens", "extra_special_tokens"].into_iter().filter_map(|key| config.get(key));
    let values = lists.flat_map(|list| match list {
        Value::Array(tokens) => tokens.iter().collect::<Vec<_>>(),
        Value::Object(tokens) => tokens.values().collect(),
        _ => Vec::new(),
    });
    values.filter_map(|token| token.as_str().or_else(|| token["content"].as_str()).map(str::to_owned)).collect()
}

/// An added token in the format of a tokenizer's configuration.
fn added(token: &Value) -> Option<AddedToken> {
    let flag = |name: &str| token[name].as_bool().unwrap_or(false);
    let special = flag("special");
    Some(AddedToken {
        content: token["content"].as_str()?.to_owned(),
        single_word: flag("single_word"),
        lstrip: flag("lstrip"),
        rstrip: flag("rstrip"),
        normalized: token["normalized"].as_bool().unwrap_or(!special),
        special,
    })
}
