//! Formats of traces: RAGPulse's folder (flashserve/RAGPulse), Mooncake's trace
//! (kvcache-ai/Mooncake), Bailian's (alibaba-edu/qwen-bailian-usagetraces-anon), and our own, which
//! has documents.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Deserializer, Map, Value};

use super::{MOST_TOKENS, Part, Trace, TraceRequest};
use crate::error::{Error, Result};

/// Tokens of a block of Mooncake's trace, and of Bailian's.
const MOONCAKE_BLOCK: usize = 512;
const BAILIAN_BLOCK: usize = 16;

/// Largest time, in the format's unit: more is a mistake.
const MOST_TIME: f64 = 1e13;

/// Names and identity columns of RAGPulse's tables, and a request's field that refers to each.
const RAGPULSE: [(&str, &str, &str); 5] = [
    ("1_sys_prompt.jsonl", "sys_prompt_id", "sys_prompt"),
    ("2_passages.jsonl", "passage_id", "passages_ids"),
    ("3_history.jsonl", "history_id", "history"),
    ("4_user_input.jsonl", "user_input_id", "user_input"),
    ("5_web_search.jsonl", "web_search_id", "web_search"),
];

/// An object of a file, with its place for messages.
struct Row {
    place: String,
    object: Map<String, Value>,
}

/// Reads a trace: RAGPulse's folder, or a file of one JSON object a request. Blank lines and
/// several objects on a line are accepted. Requests that are not in the order of their times are
/// sorted.
///
/// # Errors
/// Returns an error with the line of an object that is no request of the trace's format.
pub fn read(path: &Path) -> Result<Trace> {
    let (format, mut requests) = match path.is_dir() {
        true => ("ragpulse", ragpulse(path)?),
        false => file(path)?,
    };
    if requests.is_empty() {
        return Err(Error::usage(format!("{}: no request", path.display())));
    }
    let unordered = requests.windows(2).filter(|pair| pair[1].at_s < pair[0].at_s).count();
    requests.sort_by(|one, other| one.at_s.total_cmp(&other.at_s));
    let first = requests[0].at_s;
    requests.iter_mut().for_each(|request| request.at_s -= first);
    Ok(Trace { format, requests, unordered })
}

fn rows(path: &Path) -> Result<Vec<Row>> {
    let text = std::fs::read_to_string(path).map_err(Error::read(path))?;
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let place = || format!("{}:{}", path.display(), number + 1);
        for object in Deserializer::from_str(line).into_iter::<Map<String, Value>>() {
            let object = object.map_err(|cause| Error::usage(format!("{}: {cause}", place())))?;
            rows.push(Row { place: place(), object });
        }
    }
    Ok(rows)
}

impl Row {
    fn wrong(&self, what: impl std::fmt::Display) -> Error {
        Error::usage(format!("{}: {what}", self.place))
    }

    /// A time, which some traces write as a text.
    fn time(&self) -> Result<f64> {
        let value = self.object.get("timestamp");
        let time = value.and_then(|value| value.as_f64().or_else(|| value.as_str()?.trim().parse().ok()));
        let time = time.filter(|time: &f64| time.abs() <= MOST_TIME);
        time.ok_or_else(|| self.wrong("`timestamp` is no time"))
    }

    fn count(&self, name: &str) -> Result<usize> {
        count(self.object.get(name)).ok_or_else(|| self.wrong(format!("`{name}` is no number of tokens")))
    }

    fn ids(&self, value: Option<&Value>, name: &str) -> Result<Vec<u64>> {
        let list = match value {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(value) => value.as_array().ok_or_else(|| self.wrong(format!("`{name}` is no list")))?,
        };
        let id = |value: &Value| value.as_u64().ok_or_else(|| self.wrong(format!("`{name}`: {value} is no identity")));
        list.iter().map(id).collect()
    }

    /// A request of these parts.
    fn request(&self, at_s: f64, [system, documents, rest]: [Vec<Part>; 3]) -> Result<TraceRequest> {
        let request = TraceRequest { at_s, output_tokens: self.count("output_length")?, system, documents, rest };
        match request.prompt_tokens() {
            0 => Err(self.wrong("the request has no token")),
            _ => Ok(request),
        }
    }
}

fn count(value: Option<&Value>) -> Option<usize> {
    usize::try_from(value?.as_u64()?).ok().filter(|tokens| *tokens <= MOST_TOKENS)
}

/// An identity that no other kind of part has.
fn of_kind(kind: u64, id: u64) -> u64 {
    id ^ (kind << 56)
}

fn ragpulse(folder: &Path) -> Result<Vec<TraceRequest>> {
    let table = |(file, column, _): &(&str, &str, &str)| -> Result<HashMap<u64, usize>> {
        let entry = |row: &Row| {
            let id = row.object.get(*column).and_then(Value::as_u64);
            Ok((id.ok_or_else(|| row.wrong(format!("`{column}` is no identity")))?, row.count("token_length")?))
        };
        rows(&folder.join(file))?.iter().map(entry).collect()
    };
    let tables = RAGPULSE.iter().map(table).collect::<Result<Vec<_>>>()?;
    let request = |row: &Row| {
        let lists = row.object.get("hash_ids").and_then(Value::as_object);
        let lists = lists.ok_or_else(|| row.wrong("`hash_ids` is no object"))?;
        let parts = |kind: usize| -> Result<Vec<Part>> {
            let name = RAGPULSE[kind].2;
            let part = |id: u64| match tables[kind].get(&id) {
                Some(&tokens) => Ok(Part { id: of_kind(kind as u64, id), tokens }),
                None => Err(row.wrong(format!("`{name}`: {id} is not in {}", RAGPULSE[kind].0))),
            };
            row.ids(lists.get(name), name)?.into_iter().map(part).collect()
        };
        // Results of a search belong to one question: they are no documents of a corpus.
        row.request(row.time()?, [parts(0)?, parts(1)?, [parts(4)?, parts(2)?, parts(3)?].concat()])
    };
    rows(&folder.join("0_trace.jsonl"))?.iter().map(request).collect()
}

/// Reads the request of an object and its number in the file.
type ReadRow = fn(&Row, usize) -> Result<TraceRequest>;

fn file(path: &Path) -> Result<(&'static str, Vec<TraceRequest>)> {
    let rows = rows(path)?;
    let Some(first) = rows.first() else { return Ok(("none", Vec::new())) };
    let has = |name: &str| first.object.contains_key(name);
    let (format, request): (&str, ReadRow) = match () {
        () if has("query") => ("tributary", own),
        () if has("chat_id") => ("bailian", |row, _| blocks(row, row.time()?, BAILIAN_BLOCK)),
        () if first.object.get("hash_ids").is_some_and(Value::is_array) => {
            ("mooncake", |row, _| blocks(row, row.time()? / 1e3, MOONCAKE_BLOCK))
        }
        () => {
            let known = "RAGPulse's folder, Mooncake's trace, Bailian's, or objects with `query`";
            return Err(first.wrong(format!("an unknown format: a trace is {known}")));
        }
    };
    let requests = rows.iter().enumerate().map(|(number, row)| request(row, number)).collect::<Result<_>>()?;
    Ok((format, requests))
}

/// A prompt as blocks of `block_tokens` tokens, the last one perhaps shorter.
fn blocks(row: &Row, at_s: f64, block_tokens: usize) -> Result<TraceRequest> {
    let (length, ids) = (row.count("input_length")?, row.ids(row.object.get("hash_ids"), "hash_ids")?);
    let expected = length.div_ceil(block_tokens);
    if ids.len() != expected {
        let what = format!("{length} tokens are {expected} blocks of {block_tokens}, and `hash_ids` has {}", ids.len());
        return Err(row.wrong(what));
    }
    let part = |(index, id): (usize, u64)| Part { id, tokens: block_tokens.min(length - index * block_tokens) };
    row.request(at_s, [Vec::new(), Vec::new(), ids.into_iter().enumerate().map(part).collect()])
}

/// A request of our own format; a query without an identity is its own.
fn own(row: &Row, number: usize) -> Result<TraceRequest> {
    let part = |kind: u64, value: &Value, name: &str, usual: Option<u64>| {
        let id = match value.get("id") {
            Some(Value::String(text)) => Some(of_kind(kind, hash(text))),
            Some(id) => id.as_u64().map(|id| of_kind(kind, id)),
            None => usual.map(|number| of_kind(3, number)),
        };
        let id = id.ok_or_else(|| row.wrong(format!("`{name}` needs an `id`, a text or a whole number")))?;
        let tokens = count(value.get("tokens"));
        let tokens = tokens.ok_or_else(|| row.wrong(format!("`{name}`: `tokens` is no number of tokens")))?;
        Ok(Part { id, tokens })
    };
    let absent = |name: &str| row.object.get(name).filter(|value| !value.is_null());
    let system = absent("system").map(|value| part(0, value, "system", None)).transpose()?;
    let documents = match absent("documents") {
        None => Vec::new(),
        Some(Value::Array(list)) => {
            list.iter().map(|value| part(1, value, "documents", None)).collect::<Result<_>>()?
        }
        Some(_) => return Err(row.wrong("`documents` is no list")),
    };
    let query = absent("query").ok_or_else(|| row.wrong("`query` is missing"))?;
    let query = part(2, query, "query", Some(number as u64))?;
    row.request(row.time()? / 1e3, [system.into_iter().collect(), documents, vec![query]])
}

/// FNV-1a, of the text's bytes.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
