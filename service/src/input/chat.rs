//! A chat completion request.

use serde::Deserialize;
use serde_json::Value;
use tributary_coordinator::{ChatOptions, Ending, Message, OWN_NAMES, Prepared, RequestSettings, TemplateValues};
use tributary_engine::{Client, Conversation};

use super::documents::{self, Documents};
use super::{Asked, Choices, Completed, Generation, Terms, check_model, others};
use crate::body::Fields;
use crate::delivery::ReasoningWish;
use crate::error::ApiError;
use crate::output::Form;

/// Messages of a chat at most.
pub const MESSAGES: usize = 1024;

/// The likeliest tokens beside each that are told at most.
const TOP_LOGPROBS: u64 = 20;

/// Who may speak.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// What a message may have besides its role and its text. Templates read some of it.
const OF_MESSAGES: [&str; 7] =
    ["name", "id", "reasoning_content", "reasoning", "thinking", "tool_calls", "tool_call_id"];

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
        let messages: Vec<Value> = fields.take("messages")?.unwrap_or_default();
        let options = options(&mut fields)?;
        generation.delivery.reasoning = reasoning(&mut fields)?;
        let Documents { all, empty } = documents::take(&mut fields, terms.limits.documents, terms.ignores_unknown)?;
        others::finish(fields, &others::OF_CHATS, terms.ignores_unknown)?;
        let conversation = Conversation { documents: all, messages: read_all(messages)?, options };
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

/// How the template renders the messages.
fn options(fields: &mut Fields) -> Result<ChatOptions, ApiError> {
    let mut kwargs: TemplateValues = fields.take("chat_template_kwargs")?.unwrap_or_default();
    if let Some(name) = OWN_NAMES.iter().find(|name| kwargs.contains_key(**name)) {
        let message = format!("`chat_template_kwargs.{name}` is the request's own");
        return Err(ApiError::parameter("chat_template_kwargs", message));
    }
    if let Some(thinks) = fields.take::<bool>("enable_thinking")? {
        kwargs.insert("enable_thinking".into(), thinks.into());
    }
    if let Some(effort) = fields.take::<String>("reasoning_effort")? {
        kwargs.insert("reasoning_effort".into(), effort.into());
    }
    let continues = fields.take::<bool>("continue_final_message")?.unwrap_or(false);
    let ending = match (continues, fields.take::<bool>("add_generation_prompt")?) {
        (true, Some(true)) => {
            let message = "`continue_final_message` and `add_generation_prompt` do not go together";
            return Err(ApiError::parameter("continue_final_message", message));
        }
        (true, _) => Ending::Continued,
        (false, Some(false)) => Ending::Nothing,
        (false, _) => Ending::Answer,
    };
    Ok(ChatOptions { kwargs, ending })
}

/// What a client says of the model's reasoning: whether it comes apart from the answer, and whether it comes at all.
fn reasoning(fields: &mut Fields) -> Result<ReasoningWish, ApiError> {
    let is_apart = fields.take("separate_reasoning")?;
    let is_left_out = fields.take("include_reasoning")?.is_some_and(|included: bool| !included);
    Ok(ReasoningWish { is_apart, is_left_out })
}

/// Messages as a template sees them.
fn read_all(messages: Vec<Value>) -> Result<Vec<Message>, ApiError> {
    if messages.len() > MESSAGES {
        let message = format!("{} messages; this service takes at most {MESSAGES}", messages.len());
        return Err(ApiError::parameter("messages", message));
    }
    let read =
        |(index, message)| message_of(message).map_err(|what| ApiError::parameter(format!("messages[{index}]"), what));
    let messages = messages.into_iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
    if messages.iter().all(Message::is_system) {
        return Err(ApiError::parameter("messages", "there is no message of the user"));
    }
    Ok(messages)
}

/// A message from its object. What it has besides its role and its text goes to the template.
fn message_of(message: Value) -> Result<Message, String> {
    let Value::Object(mut fields) = message else {
        return Err("a message is an object with `role` and `content`".into());
    };
    let role = match fields.remove("role") {
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => role,
        Some(Value::String(role)) => return Err(format!("messages of `{role}` are not supported")),
        _ => return Err("`role` is missing; it is a text".into()),
    };
    let content = fields.remove("content").filter(|content| !content.is_null());
    let asks = |value: &Value| !(value.is_null() || value.as_array().is_some_and(Vec::is_empty));
    if let Some(name) = ["audio", "function_call"].into_iter().find(|name| fields.get(*name).is_some_and(asks)) {
        return Err(format!("`{name}` in a message is not supported"));
    }
    // They say something of the text beside it, and nothing to the model.
    ["refusal", "annotations", "audio", "function_call"].iter().for_each(|name| _ = fields.remove(*name));
    let calls = fields.get("tool_calls").is_some_and(asks);
    if !calls {
        fields.remove("tool_calls");
    }
    fields.get_mut("tool_calls").into_iter().for_each(arguments_as_objects);
    let content = match content {
        Some(content) => serde_json::from_value::<Content>(content).map_err(|_| Content::WANTED.to_owned())?.text()?,
        None if calls || fields.contains_key("reasoning_content") => String::new(),
        None => return Err("`content` is missing".into()),
    };
    if let Some(name) = fields.keys().find(|name| !OF_MESSAGES.contains(&name.as_str())) {
        return Err(format!("`{name}` is not known in a message"));
    }
    Ok(Message { role, content, rest: fields })
}

/// Arguments of calls, which clients write as JSON in a text and templates read as objects.
fn arguments_as_objects(calls: &mut Value) {
    for call in calls.as_array_mut().into_iter().flatten() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        let object = arguments.as_str().and_then(|text| serde_json::from_str::<TemplateValues>(text).ok());
        if let Some(object) = object {
            *arguments = object.into();
        }
    }
}

impl Content {
    const WANTED: &str = "`content` is a string or a list of parts of text";

    fn text(self) -> Result<String, String> {
        match self {
            Content::Text(text) => Ok(text),
            Content::Parts(parts) => match parts.iter().find(|part| part.kind != "text") {
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
        let said: Vec<_> =
            conversation.messages.iter().map(|said| (said.role.as_str(), said.content.as_str())).collect();
        assert_eq!(said, [("system", "s"), ("user", "a b"), ("assistant", "c"), ("user", "d")]);
        assert_eq!(conversation.messages[3].rest["name"], "me");
        assert_eq!(conversation.documents.len(), 2);
        let of = |messages: Value| with("messages", messages);
        let (user, system) = (json!({"role": "user", "content": "q"}), json!({"role": "system", "content": "s"}));
        let image = json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]});
        let called = json!({"id": "1", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
        let calls = json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": [called]});
        let answer = json!({"role": "tool", "content": "x", "tool_call_id": "1"});
        let thought =
            json!({"role": "assistant", "content": "a", "reasoning_content": "r", "id": "m", "tool_calls": []});
        let passed = of(json!([system, user, calls, answer, thought, system, user])).expect("a history").conversation;
        assert_eq!(passed.messages[2].rest["tool_calls"][0]["function"]["arguments"], json!({"a": 1}));
        assert!(!passed.messages[4].rest.contains_key("tool_calls"));
        assert_eq!(passed.messages.len(), 7);
        let cases = [
            (json!([]), "messages", "no message of the user"),
            (json!([system, system]), "messages", "no message of the user"),
            (json!([{"role": "robot", "content": "a"}, user]), "messages[0]", "`robot`"),
            (json!([{"content": "a"}, user]), "messages[0]", "`role` is missing"),
            (json!([5]), "messages[0]", "a message is an object"),
            (json!([{"role": "user", "content": {"a": 1}}]), "messages[0]", "`content` is a string or a list"),
            (json!([{"role": "user", "content": [{"text": "a"}]}]), "messages[0]", "`content` is a string or a list"),
            (json!([image]), "messages[0]", "`image_url`"),
            (json!([user, {"role": "assistant", "content": "a", "audio": {"id": "1"}}]), "messages[1]", "`audio`"),
            (json!([{"role": "user"}]), "messages[0]", "`content` is missing"),
            (json!([{"role": "user", "content": "q", "colour": "red"}]), "messages[0]", "`colour`"),
        ];
        for (messages, param, text) in cases {
            let error = of(messages).expect_err(text);
            assert_eq!(error.param.as_deref(), Some(param));
            assert!(error.message.contains(text) && !error.message.contains("expected one of"), "{}", error.message);
        }
    }

    #[test]
    fn what_the_template_reads_comes_from_the_request() {
        let options = |name: &str, value: Value| with(name, value).map(|request| request.conversation.options);
        let kwargs =
            options("chat_template_kwargs", json!({"enable_thinking": false, "a": [1]})).expect("options").kwargs;
        assert_eq!(Value::from(kwargs), json!({"enable_thinking": false, "a": [1]}));
        assert_eq!(options("enable_thinking", true.into()).expect("options").kwargs["enable_thinking"], true);
        assert_eq!(options("reasoning_effort", "low".into()).expect("options").kwargs["reasoning_effort"], "low");
        assert_eq!(options("continue_final_message", true.into()).expect("options").ending, Ending::Continued);
        assert_eq!(options("add_generation_prompt", false.into()).expect("options").ending, Ending::Nothing);
        assert_eq!(options("add_generation_prompt", true.into()).expect("options").ending, Ending::Answer);
        let both = json!({"messages": [{"role": "user", "content": "q"}], "continue_final_message": true, "add_generation_prompt": true});
        assert_eq!(read(&both).expect_err("both").param.as_deref(), Some("continue_final_message"));
        let own = options("chat_template_kwargs", json!({"messages": []})).expect_err("the request's own");
        assert_eq!(own.param.as_deref(), Some("chat_template_kwargs"));
        assert!(
            with("separate_reasoning", true.into()).expect("apart").generation.delivery.reasoning.is_apart
                == Some(true)
        );
        assert!(with("include_reasoning", false.into()).expect("left out").generation.delivery.reasoning.is_left_out);
    }
}
