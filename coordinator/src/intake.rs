//! From a request to the token ids of prefix, chunks and query.

use std::fmt;
use std::str::FromStr;

use crate::chunking::Chunking;
use crate::request::Request;
use crate::template::{Frame, PromptPart, Template};
use crate::tokenize::{Piece, Tokenizer};
use crate::{Error, Result};

/// What stands before the first chunk.
///
/// With a chat template the prefix is the template's head: a text goes into its system message (or, if it takes none, in
/// front of the documents), `bos` and `none` add nothing to it. Where there is no head they mean what they say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prefix {
    /// A text, such as a system prompt.
    Text(String),
    /// The model's beginning-of-sequence token.
    Bos,
    /// Nothing: every chunk's first token becomes an attention sink.
    None,
}

/// Tokens of a text without documents that are computed behind its one chunk, the template's tail among them.
const TEXT_QUERY_TOKENS: usize = 32;

/// How requests are read.
pub struct Intake<'a> {
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The model's chat template, if it has one and it is wanted.
    pub template: Option<&'a Template>,
    /// Where the context is cut.
    pub chunking: &'a Chunking,
    /// What stands before the first chunk.
    pub prefix: &'a Prefix,
    /// The model's beginning-of-sequence token, if it has one.
    pub bos: Option<u32>,
}

/// A request as token ids.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prepared {
    /// Before the first chunk.
    pub prefix: Vec<u32>,
    /// The context, in the request's own order, with the text of each chunk.
    pub chunks: Vec<Piece>,
    /// After the context: the query and the template's tail.
    pub query: Vec<u32>,
    /// What a reader of the result should know about the choices made here.
    pub notes: Vec<String>,
}

impl Prepared {
    /// Number of its tokens.
    pub fn token_count(&self) -> usize {
        self.prefix.len() + self.chunks.iter().map(|chunk| chunk.ids.len()).sum::<usize>() + self.query.len()
    }
}

/// Reads a request: head, chunks and query with tail are encoded each on its own. Documents, query and a prefix text are the
/// user's: no mark of the chat template arises from them.
///
/// # Errors
/// [`Error::EmptyDocument`] and [`Error::EmptyQuery`] for text that gives no token, [`Error::Template`],
/// [`Error::Tokenizer`].
pub fn prepare(request: &Request, intake: &Intake<'_>) -> Result<Prepared> {
    let mut notes = Vec::new();
    let (frame, prefix) = opening(intake, &mut notes)?;
    let chunks = intake.chunking.cut(&request.documents, intake.tokenizer)?;
    if intake.tokenizer.encode(&request.query)?.ids.is_empty() {
        return Err(Error::EmptyQuery);
    }
    let query =
        intake.tokenizer.encode_parts(&[PromptPart::User(&request.query), PromptPart::Template(&frame.tail)])?;
    Ok(Prepared { prefix, chunks, query, notes })
}

/// What stands around a request: the template's frame, and the prefix as token ids.
fn opening(intake: &Intake<'_>, notes: &mut Vec<String>) -> Result<(Frame, Vec<u32>)> {
    let frame = match intake.template {
        Some(template) => template.frame(intake.prefix.text())?,
        None => Frame::default(),
    };
    if frame.system_in_user {
        notes.push("the chat template takes no system message: the prefix stands before the documents".into());
    }
    let prefix = if frame.head().is_empty() {
        bare_prefix(intake, notes)?
    } else {
        intake.tokenizer.encode_parts(&frame.head_parts())?
    };
    if *intake.prefix == Prefix::None && !prefix.is_empty() {
        notes.push("the chat template's head is the prefix; --template none drops it".into());
    }
    Ok((frame, prefix))
}

/// Reads a text without documents. All of it but its last tokens becomes one chunk, which makes every method exact: behind
/// the prefix and before the rest of the text, a single chunk is computed as the whole prompt would be.
///
/// # Errors
/// [`Error::EmptyQuery`] for a text of no token, [`Error::TextTooShort`] for one of a single token without a template's tail
/// behind it; [`Error::Template`], [`Error::Tokenizer`].
pub fn prepare_text(text: &str, intake: &Intake<'_>) -> Result<Prepared> {
    let mut notes = Vec::new();
    let (frame, prefix) = opening(intake, &mut notes)?;
    if intake.tokenizer.encode(text)?.ids.is_empty() {
        return Err(Error::EmptyQuery);
    }
    let mut ids = intake.tokenizer.encode_parts(&[PromptPart::User(text), PromptPart::Template(&frame.tail)])?;
    if ids.len() < 2 {
        return Err(Error::TextTooShort);
    }
    let query = ids.split_off(ids.len().saturating_sub(TEXT_QUERY_TOKENS).max(1));
    Ok(Prepared { prefix, chunks: vec![Piece { ids, ..Piece::default() }], query, notes })
}

/// The prefix where no template gives one.
fn bare_prefix(intake: &Intake<'_>, notes: &mut Vec<String>) -> Result<Vec<u32>> {
    match (intake.prefix, intake.bos) {
        (Prefix::Text(text), _) => Ok(intake.tokenizer.encode(text)?.ids),
        (Prefix::Bos, Some(bos)) => Ok(vec![bos]),
        (Prefix::Bos, None) => {
            notes.push("the model has no beginning-of-sequence token: there is no prefix".into());
            Ok(Vec::new())
        }
        (Prefix::None, _) => Ok(Vec::new()),
    }
}

impl Prefix {
    fn text(&self) -> Option<&str> {
        match self {
            Prefix::Text(text) => Some(text),
            Prefix::Bos | Prefix::None => None,
        }
    }
}

impl FromStr for Prefix {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "bos" => Ok(Prefix::Bos),
            "none" => Ok(Prefix::None),
            "" => Err(Error::Setting {
                name: "--prefix",
                found: "``".into(),
                wanted: "must be a text, bos or none".into(),
            }),
            _ => Ok(Prefix::Text(text.to_owned())),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Prefix::Text(text) => f.write_str(text),
            Prefix::Bos => f.write_str("bos"),
            Prefix::None => f.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Document;
    use crate::tokenize::tests::demo;

    fn prepared(template: Option<&str>, prefix: &str, bos: Option<u32>) -> Prepared {
        let documents = vec![Document { title: None, text: "hugo stays in the house .".into() }];
        let request = Request::new(documents, "question : hugo stays in".into()).unwrap();
        let template = template.map(|source| Template::new(source, "<bos>", "<eos>"));
        let intake = Intake {
            tokenizer: &demo(),
            template: template.as_ref(),
            chunking: &Chunking::Documents,
            prefix: &prefix.parse().unwrap(),
            bos,
        };
        prepare(&request, &intake).unwrap()
    }

    #[test]
    fn a_text_alone_is_one_chunk_and_its_end() {
        let read = |text: &str, template: Option<&str>| {
            let template = template.map(|source| Template::new(source, "<bos>", "<eos>"));
            let (tokenizer, chunking, prefix) = (demo(), Chunking::Documents, Prefix::Bos);
            let (template, bos) = (template.as_ref(), Some(1));
            prepare_text(text, &Intake { tokenizer: &tokenizer, template, chunking: &chunking, prefix: &prefix, bos })
        };
        let long = "hugo stays in the house . ".repeat(10);
        let whole = demo().encode(&long).unwrap().ids;
        let prepared = read(&long, None).unwrap();
        assert_eq!(prepared.prefix, [1]);
        assert_eq!([prepared.chunks[0].ids.clone(), prepared.query.clone()].concat(), whole);
        assert_eq!((prepared.chunks.len(), prepared.query.len()), (1, TEXT_QUERY_TOKENS));
        let short = read("hugo stays", None).unwrap();
        assert_eq!((short.chunks[0].ids.len(), short.query.len()), (1, 1));
        let one = read("hugo", Some(WITHOUT_HEAD)).unwrap();
        assert_eq!((one.chunks[0].ids.len(), one.query.len()), (1, 2), "the template's tail is the rest");
        for nothing in ["", " "] {
            assert!(matches!(read(nothing, None), Err(Error::EmptyQuery)), "`{nothing}`");
        }
        let error = read("hugo", None).expect_err("one token cannot be a chunk and what follows it");
        let line = "the text is a single token; without documents it needs at least 2";
        assert_eq!((error.to_string().as_str(), error.exit_code()), (line, 64));
    }

    const WITH_BOS: &str = "{{ bos_token }}question {{ messages[-1].content }} answer :";
    const WITHOUT_HEAD: &str = "{{ messages[-1].content }} answer :";

    fn ids(text: &str) -> Vec<u32> {
        demo().encode_parts(&[PromptPart::Template(text)]).unwrap()
    }

    #[test]
    fn a_request_cannot_speak_for_the_template() {
        let (bos, eos) = (1, 2);
        let text = "hugo <eos> stays <bos> in";
        let documents = vec![Document { title: Some("<bos>".into()), text: text.into() }];
        let request = Request::new(documents, text.into()).unwrap();
        let template = Template::new(
            "{{ bos_token }} {{ messages[0].content }} {{ messages[-1].content }} {{ eos_token }}",
            "<bos>",
            "<eos>",
        );
        let without_system =
            Template::new("{{ bos_token }} {{ messages[-1].content }} {{ eos_token }}", "<bos>", "<eos>");
        for chunking in ["documents", "4", "separator:hugo"] {
            for (template, head, tail) in [(Some(&template), 1, 1), (Some(&without_system), 1, 1), (None, 0, 0)] {
                let intake = Intake {
                    tokenizer: &demo(),
                    template,
                    chunking: &chunking.parse().unwrap(),
                    prefix: &Prefix::Text(text.into()),
                    bos: Some(bos),
                };
                let prepared = prepare(&request, &intake).unwrap();
                let marks = |ids: &[u32]| ids.iter().filter(|&&id| id == bos || id == eos).count();
                let case = format!("{chunking}, {template:?}");
                assert_eq!(marks(&prepared.prefix), head, "{case}: {:?}", prepared.prefix);
                assert_eq!(marks(&prepared.query), tail, "{case}: {:?}", prepared.query);
                for chunk in &prepared.chunks {
                    assert_eq!(marks(&chunk.ids), 0, "{case}: {chunk:?}");
                }
            }
        }
    }

    #[test]
    fn prefixes_are_what_was_asked_for() {
        let cases = [
            (None, "bos", Some(1), vec![1], 0),
            (None, "bos", None, vec![], 1),
            (None, "none", Some(1), vec![], 0),
            (None, "the cat walks", Some(1), ids("the cat walks"), 0),
            (Some(WITH_BOS), "bos", Some(1), ids("<bos> question"), 0),
            (Some(WITH_BOS), "none", Some(1), ids("<bos> question"), 1),
            (Some(WITH_BOS), "the cat walks", Some(1), ids("<bos> question the cat walks"), 1),
            (Some(WITHOUT_HEAD), "bos", Some(1), vec![1], 0),
            (Some(WITHOUT_HEAD), "none", Some(1), vec![], 0),
            (Some(WITHOUT_HEAD), "the cat walks", Some(1), ids("the cat walks"), 1),
        ];
        for (template, prefix, bos, wanted, notes) in cases {
            let found = prepared(template, prefix, bos);
            assert_eq!(found.prefix, wanted, "{template:?}, {prefix}");
            assert_eq!(found.notes.len(), notes, "{template:?}, {prefix}: {:?}", found.notes);
        }
    }

    #[test]
    fn the_tail_belongs_to_the_query() {
        assert_eq!(prepared(None, "bos", Some(1)).query, ids("question : hugo stays in"));
        let with_tail = prepared(Some(WITH_BOS), "bos", Some(1)).query;
        assert_eq!(with_tail, ids("question : hugo stays in answer :"));
    }

    #[test]
    fn chunks_do_not_depend_on_the_template() {
        assert_eq!(prepared(None, "bos", Some(1)).chunks, prepared(Some(WITH_BOS), "bos", Some(1)).chunks);
    }
}
