//! The tokens that chunks are prefilled after: those with which every prompt of a model begins, so
//! that a chunk is the same after any system text. The rest of a prompt's prefix is its lead.

use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value, json};

use crate::conversation::{ChatOptions, Message, TemplateValues};
use crate::error::setting;
use crate::template::{PromptPart, Rendering, Template};
use crate::tokenize::Tokenizer;
use crate::{Error, Result};

/// Maximum tokens of a piece of a lead.
const PIECE_TOKENS: usize = 256;

/// Moments for the date in a prompt, more than a year, a month and a weekday apart.
const MOMENTS: [u64; 2] = [951_782_400, 1_735_603_200];

/// Stands for the text after everything that is before a prompt's documents.
const DOCUMENTS: &str = "\u{F8FF}DOCUMENTS\u{F8FE}";

/// The option, for messages.
const OPTION: &str = "--chunk-prefix";

/// Part of a prompt's prefix that chunks are prefilled after.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ChunkPrefix {
    /// All of it, with the system text.
    #[default]
    System,
    /// The head, the tokens with which every prompt begins, and a number of tokens after it.
    Head {
        /// Number of tokens after the head.
        more: usize,
    },
}

impl FromStr for ChunkPrefix {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "system" => Ok(ChunkPrefix::System),
            "head" => Ok(ChunkPrefix::Head { more: 0 }),
            _ => match text.parse() {
                Ok(more) if text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(ChunkPrefix::Head { more }),
                _ => Err(setting(
                    OPTION,
                    format!("`{text}`"),
                    "must be head, system, or a number of tokens after the head",
                )),
            },
        }
    }
}

impl fmt::Display for ChunkPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChunkPrefix::System => f.write_str("system"),
            ChunkPrefix::Head { more: 0 } => f.write_str("head"),
            ChunkPrefix::Head { more } => write!(f, "{more}"),
        }
    }
}

/// The tokens with which every prompt of a model begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    ids: Vec<u32>,
    more: usize,
}

impl Head {
    /// The head of prompts that a template writes, or that begin with `bos` where there is none.
    /// It is the longest common beginning of prompts without a system text and with two different
    /// ones, with tools and without, of two dates, and with reasoning on and off. If they have no
    /// first token in common, it is that of a prompt without a system text.
    ///
    /// # Errors
    /// Returns [`Error::Plan`] if no token stands before the documents of a prompt.
    pub fn find(
        template: Option<&Template>,
        tokenizer: &Tokenizer,
        bos: Option<u32>,
        kwargs: &TemplateValues,
        more: usize,
    ) -> Result<Self> {
        let ids = match template {
            Some(template) => common(&prompts(template, tokenizer, kwargs)?),
            None => bos.into_iter().collect(),
        };
        if ids.is_empty() {
            let wanted = "needs a token with which every prompt begins, and there is none before the documents: \
                          --chunk-prefix system prefills chunks after the whole prefix";
            return Err(setting(OPTION, ChunkPrefix::Head { more }, wanted));
        }
        Ok(Self { ids, more })
    }

    /// Number of a prefix's tokens that its chunks are prefilled after: those that it has in common
    /// with the head, at least the first, and a number of tokens after them.
    pub fn tokens_of(&self, prefix: &[u32]) -> usize {
        self.tokens_in_common(prefix).max(1).saturating_add(self.more).min(prefix.len())
    }

    /// Number of the head's tokens.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// Number of tokens with which both the head and a prefix begin.
    pub fn tokens_in_common(&self, prefix: &[u32]) -> usize {
        self.ids.iter().zip(prefix).take_while(|(head, found)| head == found).count()
    }
}

/// The tokens of each piece of a lead that begins at token `from` of a prefix. It is cut at `cuts`,
/// ascending places in the prefix, and before it is longer than a piece may be.
pub fn pieces(from: usize, tokens: usize, cuts: &[usize]) -> Vec<u32> {
    let (mut pieces, mut start) = (Vec::new(), from);
    for end in cuts.iter().copied().filter(|cut| (from..tokens).contains(cut)).chain([tokens]) {
        while start < end {
            let length = PIECE_TOKENS.min(end - start);
            pieces.push(length as u32);
            start += length;
        }
    }
    pieces
}

/// Byte positions after each blank line of a text.
pub fn blank_lines(text: &str) -> Vec<usize> {
    text.match_indices("\n\n").map(|(at, found)| at + found.len()).collect()
}

/// Tokens before the documents of prompts that differ in everything that clients may change. The
/// first is one without a system text.
fn prompts(template: &Template, tokenizer: &Tokenizer, kwargs: &TemplateValues) -> Result<Vec<Vec<u32>>> {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let tool = json!({"name": "weather", "description": "The weather in a city.", "parameters": parameters});
    let tools = json!([{"type": "function", "function": tool}]);
    let (mut prompts, mut refusal) = (Vec::new(), None);
    for system in [None, Some("You are a helpful assistant."), Some("Antworte kurz.\n\nSage nichts anderes.")] {
        let messages: Vec<Message> = system.map(|system| Message::new("system", system)).into_iter().collect();
        let messages = [messages, vec![Message::new("user", DOCUMENTS)]].concat();
        for tools in [&Value::Null, &tools] {
            for (moment, date) in MOMENTS.into_iter().zip(["29 Feb 2000", "31 Dec 2024"]) {
                for thinking in [None, Some(true), Some(false)] {
                    let mut values: Map<String, Value> = kwargs.clone();
                    values.insert("date_string".into(), date.into());
                    if let Some(thinking) = thinking {
                        values.insert("enable_thinking".into(), thinking.into());
                        values.insert("thinking".into(), thinking.into());
                        values.insert("reasoning_effort".into(), if thinking { "high" } else { "low" }.into());
                    }
                    let options = ChatOptions { kwargs: values, ..ChatOptions::default() };
                    let rendering = Rendering { tools: tools.clone(), unix_s: Some(moment) };
                    match template.text(&messages, &options, &rendering) {
                        Ok(text) => {
                            let Some(end) = text.find(DOCUMENTS) else { continue };
                            let part = PromptPart::Template(&text[..end]);
                            prompts.push(tokenizer.encode_parts(&[part], true, usize::MAX)?);
                        }
                        // Many templates take no system message, or no tools.
                        Err(error) => refusal = refusal.or(Some(error)),
                    }
                }
            }
        }
    }
    match refusal {
        Some(error) if prompts.is_empty() => Err(error),
        _ => Ok(prompts),
    }
}

/// The longest common beginning; the first one's first token if that is empty.
fn common(prompts: &[Vec<u32>]) -> Vec<u32> {
    let Some((first, rest)) = prompts.split_first() else { return Vec::new() };
    let with = |other: &Vec<u32>| first.iter().zip(other).take_while(|(a, b)| a == b).count();
    let length = rest.iter().map(with).min().unwrap_or(first.len());
    first[..length.max(1).min(first.len())].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenize::tests::demo;

    fn ids(text: &str) -> Vec<u32> {
        demo().encode(text).expect("known words").ids
    }

    fn head(source: &str) -> Result<Head> {
        Head::find(Some(&Template::new(source, "<bos>", "<eos>")), &demo(), Some(1), &Map::new(), 0)
    }

    #[test]
    fn its_spelling_is_read_and_printed() {
        for text in ["head", "system", "7"] {
            assert_eq!(text.parse::<ChunkPrefix>().expect(text).to_string(), text);
        }
        assert_eq!("0".parse::<ChunkPrefix>().expect("a number").to_string(), "head");
        for text in ["", "heads", "-1", "+1", "1.5", "99999999999999999999999"] {
            let error = text.parse::<ChunkPrefix>().expect_err(text).to_string();
            assert!(error.contains("--chunk-prefix") && error.contains("head, system"), "{error}");
        }
    }

    #[test]
    fn the_head_ends_where_prompts_differ() {
        let user = "{% for m in messages %}{{ m.content }} {% endfor %}";
        for (middle, expected) in [
            ("", "the house"),
            ("{% if tools %}hugo {% endif %}stays ", "the house"),
            ("{% if strftime_now('%m') == '02' %}hugo {% endif %}stays ", "the house"),
            ("{% if date_string[:2] == '29' %}hugo {% endif %}stays ", "the house"),
            ("{% if enable_thinking is defined and not enable_thinking %}hugo {% endif %}stays ", "the house"),
            ("stays ", "the house stays"),
        ] {
            let found = head(&format!("{{{{ bos_token }}}}the house {middle}{user}")).expect("a head");
            assert_eq!(found.ids, [vec![1], ids(expected)].concat(), "{middle}");
        }
    }

    #[test]
    fn a_template_that_refuses_system_texts_has_a_head_and_one_without_any_has_none() {
        let refusing = "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}the \
                        house {{ messages[0].content }}";
        assert_eq!(head(refusing).expect("a head").ids, [vec![1], ids("the house")].concat());
        let error = head("{{ messages[-1].content }}").expect_err("no token").to_string();
        assert!(error.contains("--chunk-prefix system"), "{error}");
        let error = Head::find(None, &demo(), None, &Map::new(), 3).expect_err("no token").to_string();
        assert!(error.contains("3") && error.contains("--chunk-prefix system"), "{error}");
        let first = head(
            "{% if messages|length > 1 %}{{ messages[0].content }} {% else %}hugo stays {% endif %}\
                          {{ messages[-1].content }}",
        );
        assert_eq!(first.expect("a token").ids, ids("hugo"), "that of a prompt without a system text");
    }

    #[test]
    fn chunks_follow_the_head_and_a_number_of_tokens_but_never_nothing() {
        let head = |more| Head { ids: vec![1, 2, 3], more };
        let of = |more, prefix: &[u32]| head(more).tokens_of(prefix);
        assert_eq!((of(0, &[1, 2, 3, 4, 5]), of(1, &[1, 2, 3, 4, 5]), of(9, &[1, 2, 3, 4, 5])), (3, 4, 5));
        assert_eq!((of(0, &[1, 2]), of(0, &[1, 7, 3]), of(0, &[7, 8]), of(0, &[])), (2, 1, 1, 0));
        assert_eq!((of(1, &[7, 8, 9]), of(usize::MAX, &[1])), (2, 1));
    }

    #[test]
    fn leads_are_cut_at_blank_lines_and_where_they_are_long() {
        assert_eq!(pieces(3, 3, &[]), Vec::<u32>::new());
        assert_eq!(pieces(3, 10, &[1, 3, 5, 10, 11]), [2, 5]);
        assert_eq!(pieces(0, 600, &[300]), [256, 44, 256, 44]);
        assert_eq!(pieces(0, 700, &[300])[..2], pieces(0, 600, &[300])[..2], "a longer text keeps the first pieces");
        assert_eq!(blank_lines("a\n\nb\n\n\nc\nd"), [3, 6]);
    }
}
