//! A chat completion request.

use serde::Deserialize;
use serde::de::IgnoredAny;
use tributary_coordinator::{Document, Prepared, RequestSettings, Speaker, Turn};
use tributary_engine::{Client, Conversation};

use super::documents::{self, Documents};
use super::{Asked, Choices, Completed, Generation, Terms, check_model, others};
use crate::body::Fields;
use crate::error::ApiError;
use crate::output::Form;

/// Messages of a chat at most.
pub const MESSAGES: usize = 1024;

/// The likeliest tokens beside each that are told at most.
const TOP_LOGPROBS: u64 = 20;

/// What a chat completion request asks for.
#[derive(Debug, Clone)]
pub struct ChatRequest {
    /// Documents, system text, earlier turns and question.
    pub conversation: Conversation,
    /// Number of documents that have no text.
    pub empty_documents: usize,
    /// How the answer is made and given.
    pub generation: Generation,
}

/// One message.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    role: String,
    content: Option<Content>,
    #[serde(rename = "name")]
    _name: Option<String>,
    /// What clients send back of an answer of the model; only without a value does it ask for nothing.
    refusal: Option<IgnoredAny>,
    audio: Option<IgnoredAny>,
    function_call: Option<IgnoredAny>,
    tool_calls: Option<Vec<IgnoredAny>>,
    annotations: Option<Vec<IgnoredAny>>,
}

/// The text of a message: a string, or parts.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "content is a string or a list of parts")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// A part of a message; only `text` is known.
#[derive(Debug, Clone, Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: String,
}

impl Asked for ChatRequest {
    fn read(mut fields: Fields, terms: &Terms<'_>) -> Result<Self, ApiError> {
        check_model(&mut fields, terms.model)?;
        let choices = Choices::take(&mut fields, terms.settings)?;
        let limits = ["max_completion_tokens", "max_tokens"];
        let mut generation = Generation::take(&mut fields, choices, &limits, terms)?;
        let wants = fields.take("logprobs")?.unwrap_or(false);
        match fields.integer("top_logprobs", 0, TOP_LOGPROBS)? {
            Some(1..) if !wants => {
                return Err(ApiError::parameter("top_logprobs", "`top_logprobs` goes with `logprobs` only"));
            }
            top if wants => generation.with_logprobs(top.unwrap_or(0) as u32),
            _ => {}
        }
        let messages: Option<Vec<Message>> = fields.take("messages")?;
        let Documents { all, empty } = documents::take(&mut fields, terms.limits.documents, terms.ignores_unknown)?;
        others::finish(fields, &others::OF_CHATS, terms.ignores_unknown)?;
        let conversation = conversation(messages.unwrap_or_default(), all)?;
        Ok(Self { conversation, empty_documents: empty, generation })
    }

    fn prepare(&self, client: &Client) -> Result<Vec<Prepared>, ApiError> {
        let prepared = client.prepare(&self.conversation)?;
        let is_whole = self.generation.is_scoring() && self.conversation.documents.is_empty();
        Ok(vec![if is_whole { prepared.without_context() } else { prepared }])
    }

    fn empty_documents(&self) -> usize {
        self.empty_documents
    }

    fn settings(
        &self,
        prepared: &Prepared,
        of: (usize, usize),
        terms: &Terms<'_>,
    ) -> Result<RequestSettings, ApiError> {
        self.generation.settings(prepared, of, Form::Chat, terms)
    }

    fn copies(&self) -> usize {
        self.generation.copies
    }
}

impl Completed for ChatRequest {
    const FORM: Form = Form::Chat;

    fn generation(&self) -> &Generation {
        &self.generation
    }
}

/// Documents, system text, earlier turns and question.
///
/// # Errors
/// Messages that do not end with one of the user, or have several of the system.
fn conversation(messages: Vec<Message>, documents: Vec<Document>) -> Result<Conversation, ApiError> {
    if messages.len() > MESSAGES {
        let message = format!("{} messages; this service takes at most {MESSAGES}", messages.len());
        return Err(ApiError::parameter("messages", message));
    }
    let (mut system, mut turns): (Option<String>, Vec<Turn>) = (None, Vec::new());
    for (index, message) in messages.into_iter().enumerate() {
        let wrong = |what: String| ApiError::parameter(format!("messages[{index}]"), what);
        let speaker = match message.role.as_str() {
            "system" | "developer" => None,
            "user" => Some(Speaker::User),
            "assistant" => Some(Speaker::Assistant),
            role => return Err(wrong(format!("messages of `{role}` are not supported"))),
        };
        let text = message.text().map_err(wrong)?;
        match speaker {
            Some(speaker) => turns.push(Turn { speaker, text }),
            None if system.is_some() => return Err(wrong("there is one system message at most".to_owned())),
            None => system = Some(text),
        }
    }
    let last = turns.pop().ok_or_else(|| ApiError::parameter("messages", "there is no message of the user"))?;
    if last.speaker != Speaker::User {
        return Err(ApiError::parameter("messages", "the last message must be of the user"));
    }
    Ok(Conversation { documents, system, turns, query: last.text })
}

impl Message {
    fn text(self) -> Result<String, String> {
        let Self { content, refusal, audio, function_call, tool_calls, annotations, .. } = self;
        let calls = tool_calls.is_some_and(|calls| !calls.is_empty()) || function_call.is_some();
        if calls || audio.is_some() {
            return Err("calls of tools and audio are not supported".to_owned());
        }
        // They say something of the text beside it, and nothing to the model.
        let _ = (refusal, annotations);
        match content {
            None => Err("`content` is missing".to_owned()),
            Some(Content::Text(text)) => Ok(text),
            Some(Content::Parts(parts)) => match parts.iter().find(|part| part.kind != "text") {
                Some(other) => Err(format!("content of type `{}` is not supported", other.kind)),
                None => Ok(parts.iter().map(|part| part.text.as_str()).collect()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use tributary_coordinator::Piece;

    use super::super::{STOPS, kit};
    use super::*;
    use crate::limits::ClientLimits;

    fn read(json: &Value) -> Result<ChatRequest, ApiError> {
        let fields = Fields::from_json(json.to_string().as_bytes())?;
        kit::with_terms(|terms| ChatRequest::read(fields, terms))
    }

    fn with(name: &str, value: Value) -> Result<ChatRequest, ApiError> {
        let mut json = json!({"messages": [{"role": "user", "content": "q"}]});
        json[name] = value;
        read(&json)
    }

    #[test]
    fn what_is_not_honoured_is_named() {
        let refused = [
            ("tools", json!([{"type": "function"}])),
            ("n", 65.into()),
            ("n", "1".into()),
            ("stop", json!(vec!["a"; STOPS + 1])),
            ("stop", "".into()),
            ("stop", json!([5])),
            ("logprobs", 2.into()),
            ("top_logprobs", 3.into()),
            ("top_k", (-2).into()),
            ("top_k", 1.5.into()),
            ("top_k", true.into()),
            ("frequency_penalty", 2.5.into()),
            ("repetition_penalty", 0.into()),
            ("min_p", 1.5.into()),
            ("min_tokens", (-1).into()),
            ("logit_bias", json!({"400": 1})),
            ("logit_bias", json!({"x": 1})),
            ("logit_bias", json!({"3": 101})),
            ("response_format", json!({"type": "json_object"})),
            ("temperature", 2.1.into()),
            ("temperature", "hot".into()),
            ("top_p", 1.1.into()),
            ("max_tokens", (-1).into()),
            ("max_tokens", (ClientLimits::default().answer_tokens + 1).into()),
            ("max_completion_tokens", 1.5.into()),
            ("seed", 1.5.into()),
            ("stream", 1.into()),
            ("stream_options", json!({"include_usage": true})),
            ("document", json!(["a word that is misspelt must not cost the answer its context"])),
            ("documents", json!([5])),
            ("messages", 5.into()),
            ("tributary", json!({"explian": true})),
        ];
        for (name, value) in refused {
            let error = with(name, value.clone()).expect_err(name);
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(name)), "{name}: {value}");
        }
        let passed = [
            ("n", 1.into()),
            ("stop", Value::Null),
            ("stop", json!([])),
            ("logprobs", false.into()),
            ("top_logprobs", 0.into()),
            ("documents", Value::Null),
            ("user", "me".into()),
            ("tools", json!([])),
            ("n", 3.into()),
            ("seed", (-1).into()),
            ("top_p", 0.into()),
            ("max_tokens", 0.into()),
            ("repetition_penalty", 1.0.into()),
            ("min_p", 0.into()),
            ("ignore_eos", true.into()),
            ("min_tokens", 4.into()),
            ("stop_token_ids", json!([])),
            ("logit_bias", json!({})),
        ];
        for (name, value) in passed {
            assert!(with(name, value).is_ok(), "{name}");
        }
    }

    #[test]
    fn parameters_become_settings() {
        let settings = |name: &str, value: Value| {
            let request = with(name, value).expect("a request");
            kit::with_terms(|terms| request.settings(&Prepared::default(), (100, 0), terms)).expect("it fits")
        };
        let top_k = |value: Value| settings("top_k", value).sampling.top_k;
        let drawn = |name: &str, value: Value| settings(name, value).sampling;
        assert_eq!(drawn("logit_bias", json!({"3": -100, "7": 0.5})).logit_bias, [(3, -100.0), (7, 0.5)]);
        assert_eq!(drawn("stop_token_ids", json!([3, 4])).ends(vec![2]), [2, 3, 4]);
        assert_eq!(drawn("ignore_eos", true.into()).ends(vec![2]), Vec::<u32>::new());
        assert_eq!(drawn("presence_penalty", (-0.5).into()).presence_penalty, -0.5);
        assert_eq!(drawn("seed", (-1).into()).seed, u64::MAX);
        assert_eq!((top_k(5.into()), top_k((-1).into()), top_k(0.into()), top_k(false.into())), (5, 0, 0, 0));
        let request = read(&json!({
            "model": "demo",
            "messages": [{"role": "user", "content": "q"}],
            "max_tokens": 3, "max_completion_tokens": 4, "temperature": 2, "top_p": 1, "seed": 9, "stop": "x",
            "logprobs": true, "top_logprobs": 20, "stream": true, "stream_options": {"include_usage": true},
            "tributary": {"method": "relay", "ratio": 0.5, "explain": true},
        }))
        .expect("a request");
        let of = |copy| {
            kit::with_terms(|terms| request.settings(&Prepared::default(), (100, copy), terms)).expect("it fits")
        };
        assert_eq!(
            (of(3).sampling.seed, of(0).method.name),
            (12, "full"),
            "a prompt without context is computed whole"
        );
        let prepared = Prepared { chunks: vec![Piece::default()], ..Prepared::default() };
        let settings = kit::with_terms(|terms| request.settings(&prepared, (100, 0), terms)).expect("it fits");
        let delivery = &request.generation.delivery;
        assert_eq!((settings.max_tokens, settings.sampling.temperature, settings.sampling.seed), (4, 2.0, 9));
        assert_eq!((settings.method.name, settings.ratio), ("relay", Some(0.5)));
        assert!(settings.returns.scores && settings.returns.logprobs == Some(20));
        assert!(delivery.streams && delivery.includes_usage && delivery.has_logprobs && delivery.explains);
        assert_eq!(delivery.stops, ["x"]);
        let length = |json: Value, rows| {
            let request = read(&json).expect("a request");
            kit::with_terms(|terms| request.settings(&Prepared::default(), (rows, 0), terms)).map(|set| set.max_tokens)
        };
        let asked = json!({"messages": [{"role": "user", "content": "q"}]});
        assert_eq!(
            (length(asked.clone(), 192), length(asked.clone(), 8191)),
            (Ok(2048), Ok(1)),
            "as far as the model reaches"
        );
        let error = length(asked, 8192).expect_err("no room for a token");
        assert_eq!((error.code, error.param.as_deref()), (Some("context_length_exceeded"), Some("messages")));
        assert!(error.message.contains("maximum context length is 8192 tokens"), "{}", error.message);
        assert_eq!(with("model", "gpt".into()).expect_err("another model").status.as_u16(), 404);
    }

    #[test]
    fn messages_become_a_conversation() {
        let conversation = read(&json!({
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": "c", "refusal": null, "tool_calls": null, "annotations": []},
                {"role": "user", "content": "d", "name": "me"},
            ],
            "documents": ["one", {"title": "T", "text": "two"}],
        }))
        .expect("a conversation")
        .conversation;
        assert_eq!((conversation.system.as_deref(), conversation.query.as_str()), (Some("s"), "d"));
        let turns: Vec<_> = conversation.turns.iter().map(|turn| (turn.speaker, turn.text.as_str())).collect();
        assert_eq!(turns, [(Speaker::User, "a b"), (Speaker::Assistant, "c")]);
        assert_eq!(conversation.documents.len(), 2);
        let of = |messages: Value| with("messages", messages);
        let (user, system) = (json!({"role": "user", "content": "q"}), json!({"role": "system", "content": "s"}));
        let image = json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]});
        let calls = json!({"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]});
        let cases = [
            (json!([]), "messages", "no message of the user"),
            (json!([system, user, system]), "messages[2]", "one system message"),
            (json!([user, {"role": "assistant", "content": "a"}]), "messages", "the last message"),
            (json!([{"role": "tool", "content": "a"}, user]), "messages[0]", "`tool`"),
            (json!([image]), "messages[0]", "`image_url`"),
            (json!([user, calls, user]), "messages[1]", "tools"),
            (json!([{"role": "user"}]), "messages[0]", "`content` is missing"),
            (json!([{"role": "user", "content": "q", "colour": "red"}]), "messages", "`colour`"),
        ];
        for (messages, param, text) in cases {
            let error = of(messages).expect_err(text);
            assert_eq!(error.param.as_deref(), Some(param));
            assert!(error.message.contains(text), "{}", error.message);
        }
    }
}
