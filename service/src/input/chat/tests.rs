//! Bodies of chats: the meaning of each field, and refusals.

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
}

#[test]
fn what_is_harmless_is_taken() {
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
    let of =
        |copy| kit::with_terms(|terms| request.settings(&Prepared::default(), (100, copy), terms)).expect("it fits");
    assert_eq!((of(3).sampling.seed, of(0).method.name), (12, "full"), "a prompt without context is computed whole");
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
    let said: Vec<_> = conversation.messages.iter().map(|said| (said.role.as_str(), said.content.as_str())).collect();
    assert_eq!(said, [("system", "s"), ("user", "a b"), ("assistant", "c"), ("user", "d")]);
    assert_eq!(conversation.messages[3].rest["name"], "me");
    assert_eq!(conversation.documents.len(), 2);
    let of = |messages: Value| with("messages", messages);
    let (user, system) = (json!({"role": "user", "content": "q"}), json!({"role": "system", "content": "s"}));
    let image = json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]});
    let called = json!({"id": "1", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
    let calls = json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": [called]});
    let answer = json!({"role": "tool", "content": "x", "tool_call_id": "1"});
    let thought = json!({"role": "assistant", "content": "a", "reasoning_content": "r", "id": "m", "tool_calls": []});
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
        (json!([image]), "messages[0]", "pictures are not fetched: send a data: URL"),
        (json!([user, {"role": "assistant", "content": "a", "audio": {"id": "1"}}]), "messages[1]", "`audio`"),
        (json!([{"role": "user"}]), "messages[0]", "`content` is missing"),
        (json!([{"role": "user", "content": "q", "colour": "red"}]), "messages[0]", "`colour`"),
        (json!([{"role": "user", "content": [{"type": "text", "text": "q", "txet": "r"}]}]), "messages[0]", "`txet`"),
    ];
    for (messages, param, text) in cases {
        let error = of(messages).expect_err(text);
        assert_eq!(error.param.as_deref(), Some(param));
        assert!(error.message.contains(text) && !error.message.contains("expected one of"), "{}", error.message);
    }
}

#[test]
fn a_message_says_nothing_twice() {
    let text = r#"{"messages": [{"role": "user", "content": "a", "content": "b"}]}"#;
    let fields = Fields::from_json(text.as_bytes()).expect("an object");
    let error = kit::with_terms(|terms| ChatRequest::read(fields, terms)).expect_err("twice");
    assert!(
        error.param.as_deref() == Some("messages[0]") && error.message.contains("`content` is there twice"),
        "{error:?}"
    );
}

#[test]
fn what_the_template_reads_comes_from_the_request() {
    let options = |name: &str, value: Value| with(name, value).map(|request| request.conversation.options);
    let kwargs = options("chat_template_kwargs", json!({"enable_thinking": false, "a": [1]})).expect("options").kwargs;
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
        with("separate_reasoning", true.into()).expect("apart").generation.delivery.reasoning.is_apart == Some(true)
    );
    assert!(with("include_reasoning", false.into()).expect("left out").generation.delivery.reasoning.is_left_out);
}

#[test]
fn pictures_of_messages_become_documents() {
    let read = |messages: Value, documents: Value| {
        let json = json!({"messages": messages, "documents": documents});
        let fields = Fields::from_json(json.to_string().as_bytes()).expect("an object");
        kit::with_pictures(|terms| ChatRequest::read(fields, terms))
    };
    let image = |name: &str| json!({"type": "image_url", "image_url": {"url": kit::data_url(name)}});
    let text = |text: &str| json!({"type": "text", "text": text});
    let said = |role: &str, parts: Vec<Value>| json!({"role": role, "content": parts});
    let shape = |request: &ChatRequest| {
        let documents = request.conversation.documents.iter();
        let documents: Vec<(String, usize, bool)> =
            documents.map(|document| (document.text.clone(), document.pictures.len(), document.goes_on)).collect();
        let messages: Vec<String> =
            request.conversation.messages.iter().map(|message| message.content.clone()).collect();
        (documents, messages)
    };
    let of = |parts: &[(&str, usize, bool)]| {
        parts.iter().map(|&(text, pictures, goes_on)| (text.to_owned(), pictures, goes_on)).collect::<Vec<_>>()
    };
    let both = said("user", vec![text("Look: "), image("d"), text(" and"), text(" "), image("f"), text(" why?")]);
    let request = read(json!([{"role": "system", "content": "s"}, both]), json!(["one"])).expect("a request");
    let wanted = of(&[("one", 0, false), ("Look: ", 0, true), ("", 1, true), (" and ", 0, true), ("", 1, true)]);
    assert_eq!(shape(&request), (wanted, vec!["s".to_owned(), " why?".to_owned()]));
    assert!(request.notes.is_empty(), "{:?}", request.notes);
    let turns = json!([
        said("user", vec![image("d"), text("a")]), {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]);
    let request = read(turns, Value::Null).expect("a later turn");
    assert_eq!(shape(&request), (of(&[("", 1, true)]), ["a", "b", "c"].map(str::to_owned).to_vec()));
    assert!(request.notes.is_empty());
    let last = json!([
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, said("user", vec![text("c"), image("d")])]);
    let request = read(last, Value::Null).expect("moved");
    assert_eq!(shape(&request), (of(&[("c", 0, true), ("", 1, true)]), ["a", "b", ""].map(str::to_owned).to_vec()));
    assert!(
        request.notes[0].contains("before the first one") && request.notes[1].contains("the question stands before")
    );
    let (user, answer) = (json!({"role": "user", "content": "q"}), json!({"role": "assistant", "content": "a"}));
    let pictured = |role: &str| said(role, vec![image("d")]);
    for (messages, param, wanted) in [
        (json!([pictured("system"), user]), "messages[0]", "not of `system`"),
        (json!([user, pictured("assistant"), user]), "messages[1]", "not of `assistant`"),
        (json!([user, answer, pictured("user"), answer, user]), "messages[2]", "in the first and last message"),
        (
            json!([said(
                "user",
                vec![image("d"), json!({"type": "image_url", "image_url": {"url": "data:;base64,QUJD"}})]
            )]),
            "messages[0]",
            "picture 2 of messages[0]: the file is no PNG",
        ),
        (json!([said("user", vec![image("d"); 257])]), "messages[0]", "at most 256"),
    ] {
        let error = read(messages, Value::Null).expect_err(wanted);
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(param)), "{wanted}");
        assert!(error.message.contains(wanted), "{wanted}: {}", error.message);
    }
    let error = with("messages", json!([pictured("user")])).expect_err("a model of texts");
    assert_eq!((error.param.as_deref(), &*error.message), (Some("messages"), "model demo reads no pictures"));
}
