//! The document, made of the types. It is written anew by `UPDATE_SCHEMAS=1 cargo test --release -p
//! tributary-service openapi`.

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::{OpenApi, ToSchema};

use super::TEXT;
use super::bodies::{ChatBody, ChunksBody, CompletionBody, asking_nothing, by_hand};
use crate::body::Fields;
use crate::error::ApiError;
use crate::hand_over::told::Told as Prefill;
use crate::input::kit::with_terms;
use crate::input::{Asked, chat::ChatRequest, chunks::ChunksRequest, completion::CompletionRequest, others};
use crate::output::{ChatCompletion, ChatPart, ChunksAnswer, TextCompletion};
use crate::status::Status;

/// A request that gets no answer.
#[derive(Serialize, ToSchema)]
#[schema(as = Error)]
struct ErrorBody {
    /// Description of the failure.
    error: ErrorObject,
}

/// Description of the failure.
#[derive(Serialize, ToSchema)]
struct ErrorObject {
    /// In one line.
    message: String,
    /// The kind of failure.
    r#type: ErrorType,
    /// The parameter that is wrong, if it is one.
    param: Option<String>,
    /// Word by which programs distinguish failures of one kind, where there is one.
    code: Option<String>,
}

/// The kind of failure.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[allow(dead_code, clippy::enum_variant_names, reason = "it is described, not made; the names are OpenAI's")]
enum ErrorType {
    /// The request is wrong.
    InvalidRequestError,
    /// There are too many.
    RateLimitError,
    /// The service or its ranks have failed.
    ServerError,
}

/// A model.
#[derive(ToSchema)]
#[allow(dead_code, reason = "it is described, not made")]
struct Model {
    /// Its name.
    id: String,
    /// `model`.
    object: String,
    /// 0.
    created: u64,
    /// `tributary`.
    owned_by: String,
    /// Tokens of a prompt and its answer together at most.
    max_model_len: usize,
    /// Kinds of content that it reads: `text`, and `image` where it reads pictures.
    input_modalities: Vec<String>,
}

/// The models that are served: there is one.
#[derive(ToSchema)]
#[allow(dead_code, reason = "it is described, not made")]
struct Models {
    /// `list`.
    object: String,
    /// The models.
    data: Vec<Model>,
}

/// Which program this is.
#[derive(ToSchema)]
#[allow(dead_code, reason = "it is described, not made")]
struct Version {
    /// The program's version.
    version: String,
}

/// Answers a chat: a completion, or, with `stream`, events of parts of one.
#[utoipa::path(post, path = "/v1/chat/completions", request_body = ChatBody, responses(
    (status = 200, description = "The answer, or a stream of its parts that ends with `[DONE]`.",
     content((ChatCompletion = "application/json"), (ChatPart = "text/event-stream")))))]
#[allow(dead_code, reason = "it is described, not called")]
fn chat() {}

/// Continues a text: a completion, or, with `stream`, events of parts of one.
#[utoipa::path(post, path = "/v1/completions", request_body = CompletionBody, responses(
    (status = 200, description = "The answer, or a stream of its parts that ends with `[DONE]`.",
     content((TextCompletion = "application/json"), (TextCompletion = "text/event-stream")))))]
#[allow(dead_code, reason = "it is described, not called")]
fn completions() {}

/// Prefills documents ahead of use.
#[utoipa::path(post, path = "/v1/chunks", request_body = ChunksBody, responses(
    (status = 200, description = "The chunks are there for later requests.", body = ChunksAnswer)))]
#[allow(dead_code, reason = "it is described, not called")]
fn chunks() {}

/// Prefills a prompt for another program, which decodes: the answer comes as soon as it is planned.
#[utoipa::path(post, path = "/v1/prefill", request_body = ChatBody, responses(
    (status = 202, description = "The prompt is planned; its keys and values can be waited for.", body = Prefill)))]
#[allow(dead_code, reason = "it is described, not called")]
fn prefill() {}

/// State of a prefill for another program.
#[utoipa::path(get, path = "/v1/prefill/{id}", params(("id" = String, Path, description = "The prefill's id.")),
    responses((status = 200, description = "Its state.", body = Prefill)))]
#[allow(dead_code, reason = "it is described, not called")]
fn prefill_state() {}

/// Releases a prefill for another program, in any state.
#[utoipa::path(delete, path = "/v1/prefill/{id}", params(("id" = String, Path, description = "The prefill's id.")),
    responses((status = 204, description = "It is released.")))]
#[allow(dead_code, reason = "it is described, not called")]
fn release() {}

/// Keys and values of a layer, once they are there.
#[utoipa::path(get, path = "/v1/kv/{id}/{layer}", params(
    ("id" = String, Path, description = "The prefill's id."),
    ("layer" = usize, Path, description = "The layer, from 0 on."),
    ("first" = Option<usize>, Query, description = "The first row; 0 where absent."),
    ("rows" = Option<usize>, Query, description = "Number of rows; all others where absent."),
    ("first_head" = Option<usize>, Query, description = "The first KV head; 0 where absent."),
    ("heads" = Option<usize>, Query, description = "Number of KV heads; all others where absent.")),
    responses((status = 200, description = "`[rows, 2, heads, head_dim]`, little-endian: keys after RoPE, then \
     values, of each row; then the 32 bytes of the BLAKE3 hash of all bytes before it.",
     body = Vec<u8>, content_type = "application/octet-stream")))]
#[allow(dead_code, reason = "it is described, not called")]
fn layer() {}

/// The models that are served.
#[utoipa::path(get, path = "/v1/models", responses((status = 200, description = "The models.", body = Models)))]
#[allow(dead_code, reason = "it is described, not called")]
fn models() {}

/// A model by its name.
#[utoipa::path(get, path = "/v1/models/{name}", params(("name" = String, Path, description = "The model's name.")),
    responses((status = 200, description = "The model.", body = Model)))]
#[allow(dead_code, reason = "it is described, not called")]
fn model() {}

/// Whether the process lives.
#[utoipa::path(get, path = "/health", responses((status = 200, description = "It lives.", body = String, content_type = "text/plain")))]
#[allow(dead_code, reason = "it is described, not called")]
fn health() {}

/// Whether requests are taken.
#[utoipa::path(get, path = "/ready", responses(
    (status = 200, description = "Requests are taken.", body = String, content_type = "text/plain"),
    (status = 503, description = "Requests are not taken now.", body = String, content_type = "text/plain")))]
#[allow(dead_code, reason = "it is described, not called")]
fn ready() {}

/// Metrics as Prometheus reads them.
#[utoipa::path(get, path = "/metrics", responses((status = 200, description = "The metrics.", body = String, content_type = "text/plain")))]
#[allow(dead_code, reason = "it is described, not called")]
fn metrics() {}

/// State of the service.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, description = "What it is doing.", body = Status)))]
#[allow(dead_code, reason = "it is described, not called")]
fn status() {}

/// A page for people, which asks this interface only.
#[utoipa::path(get, path = "/", responses((status = 200, description = "The page.", body = String, content_type = "text/html")))]
#[allow(dead_code, reason = "it is described, not called")]
fn page() {}

/// Which program this is.
#[utoipa::path(get, path = "/version", responses((status = 200, description = "Its version.", body = Version)))]
#[allow(dead_code, reason = "it is described, not called")]
fn version() {}

/// This document.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, description = "The document.", body = Object)))]
#[allow(dead_code, reason = "it is described, not called")]
fn openapi() {}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "tributary serve",
        description = "An OpenAI-compatible interface with documents beside the messages.",
        license(name = "MIT OR Apache-2.0")
    ),
    paths(
        chat,
        completions,
        chunks,
        prefill,
        prefill_state,
        release,
        layer,
        models,
        model,
        status,
        page,
        health,
        ready,
        metrics,
        version,
        openapi
    ),
    components(schemas(ErrorBody))
)]
struct Described;

/// Statuses of failures, and their meanings.
const FAILURES: [(u16, &str); 13] = [
    (400, "A parameter or a text that cannot be; a request that can never fit into memory, with both numbers."),
    (401, "The API key is missing or wrong."),
    (403, "The Host header names another machine, and the service is for its own only."),
    (404, "An unknown model, or a prefill that is not held."),
    (408, "The request did not arrive in time."),
    (413, "The body is too long."),
    (415, "The body is not JSON by its Content-Type."),
    (429, "Too many requests wait already; `Retry-After` says when to come again."),
    (431, "The headers are too long."),
    (500, "The request alone has failed."),
    (502, "The server that decodes has failed."),
    (503, "The ranks have failed, or the service ends; `Retry-After` says when to come again."),
    (504, "The request took longer than any may."),
];

/// The failures of an operation.
fn failures(method: &str, path: &str) -> Vec<u16> {
    match (method, path) {
        ("post", _) => FAILURES.iter().map(|(status, _)| *status).collect(),
        (_, "/" | "/health" | "/ready") => vec![403, 431],
        (_, "/v1/models/{name}" | "/v1/prefill/{id}") => vec![401, 403, 404, 431],
        (_, "/v1/kv/{id}/{layer}") => vec![400, 401, 403, 404, 431, 500, 503, 504],
        _ => vec![401, 403, 431],
    }
}

/// An event of a stream, whose data are such parts.
fn event(part: &Value) -> Value {
    let json = json!({"anyOf": [part, {"$ref": "#/components/schemas/Error"}]});
    json!({
        "type": "object",
        "description": "An event. Its data is a part, `[DONE]` at the end, and an error where there is no end.",
        "required": ["data"],
        "properties": {
            "data": {
                "type": "string",
                "anyOf": [{"const": "[DONE]"}, {"contentMediaType": "application/json", "contentSchema": json}],
            },
        },
    })
}

/// Bodies that an operation answers, each with its name; the fuzzing tool sends them too.
fn examples(path: &str) -> Value {
    let messages = json!([{"role": "user", "content": "where does alice live"}]);
    let documents = json!(["alice lives in paris .", "bob lives in seoul ."]);
    match path {
        "/v1/chat/completions" => json!({
            "whole": {"value": {"messages": messages, "documents": documents, "max_tokens": 8}},
            "streamed": {"value": {
                "messages": messages, "documents": documents, "max_tokens": 8,
                "stream": true, "stream_options": {"include_usage": true},
            }},
        }),
        "/v1/completions" => json!({
            "whole": {"value": {"prompt": "alice lives in", "max_tokens": 8}},
            "streamed": {"value": {"prompt": "alice lives in", "max_tokens": 8, "stream": true}},
        }),
        "/v1/prefill" => json!({"chat": {"value": {
            "messages": messages, "documents": documents, "tributary": {"method": "infoflow"},
        }}}),
        "/v1/chunks" => json!({"documents": {"value": {"documents": documents}}}),
        _ => panic!("{path} takes a body and has no example"),
    }
}

/// The document as it should be.
fn made() -> Value {
    let mut document = serde_json::to_value(Described::openapi()).expect("JSON");
    document["info"]["version"] = "1".into();
    for (path, methods) in document["paths"].as_object_mut().expect("paths") {
        for (method, operation) in methods.as_object_mut().expect("methods") {
            for status in failures(method, path) {
                let (_, description) = FAILURES.iter().find(|(known, _)| *known == status).expect("it is known");
                let mut response = json!({
                    "description": description,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
                });
                if status == 431 {
                    // The server answers before anything of this program has seen the request.
                    response.as_object_mut().expect("an object").remove("content");
                }
                operation["responses"][status.to_string()] = response;
            }
            if let Some(body) = operation.pointer_mut("/requestBody/content/application~1json") {
                body["examples"] = examples(path);
            }
            if let Some(streamed) = operation.pointer_mut("/responses/200/content/text~1event-stream/schema") {
                *streamed = event(streamed);
            }
        }
    }
    let schemas = &mut document["components"]["schemas"];
    for (body, field, mut schema) in by_hand() {
        schema["description"] = schemas[body]["properties"][field]["description"].clone();
        schemas[body]["properties"][field] = schema;
    }
    for (body, own) in [
        ("ChatRequest", names(&others::OF_CHATS)),
        ("CompletionRequest", names(&others::OF_TEXTS)),
        ("ChunksRequest", Vec::new()),
    ] {
        for name in own.into_iter().chain(names(&others::OF_BOTH)) {
            let mut schema = asking_nothing(name);
            schema["description"] = "Not supported: only what asks for nothing.".into();
            schemas[body]["properties"][name] = schema;
        }
        for name in others::WITHOUT_EFFECT {
            schemas[body]["properties"][name] = json!({"description": "It changes nothing here."});
        }
    }
    for body in ["ChatRequest", "CompletionRequest", "ChunksRequest", "Choices", "StreamOptions"] {
        schemas[body]["additionalProperties"] = false.into();
    }
    document
}

fn names<T>(parameters: &[(&'static str, T)]) -> Vec<&'static str> {
    parameters.iter().map(|(name, _)| *name).collect()
}

#[test]
fn the_document_is_that_of_the_types() {
    let made = format!("{}\n", serde_json::to_string_pretty(&made()).expect("JSON"));
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.v1.json"), &made).expect("written");
        return;
    }
    let anew = "UPDATE_SCHEMAS=1 cargo test --release -p tributary-service openapi";
    assert!(TEXT == made, "docs/openapi.v1.json: the types say otherwise; write it anew by `{anew}`");
}

/// Reads a body.
type Reader = fn(Fields) -> Result<(), ApiError>;

/// Whether a reader of bodies knows a field: it refuses an impossible value of a known field with
/// another message than an unknown field.
fn knows(read: Reader, name: &str) -> bool {
    let value = json!({"a value": "that nothing takes"});
    let mut body = json!({"messages": [{"role": "user", "content": "q"}], "prompt": "q", "documents": ["d"]});
    body[name] = value;
    let found = read(Fields::from_json(body.to_string().as_bytes()).expect("an object"));
    !found.is_err_and(|error| error.message.contains("is not known here") && error.param.as_deref() == Some(name))
}

/// The names that a body may have.
const NAMES: [&str; 37] = [
    "model",
    "documents",
    "system",
    "messages",
    "prompt",
    "tributary",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop",
    "logprobs",
    "top_logprobs",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "include_stop_str_in_output",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "n",
    "best_of",
    "prompt_logprobs",
    "echo",
    "chat_template_kwargs",
    "enable_thinking",
    "reasoning_effort",
    "continue_final_message",
    "add_generation_prompt",
    "separate_reasoning",
    "include_reasoning",
];

#[test]
fn bodies_are_read_as_they_are_described() {
    let readers: [(&str, Reader); 3] = [
        ("ChatRequest", |mut fields| {
            fields.pass_over("prompt");
            with_terms(|terms| ChatRequest::read(fields, terms)).map(|_| ())
        }),
        ("CompletionRequest", |mut fields| {
            fields.pass_over("messages");
            with_terms(|terms| CompletionRequest::read(fields, terms)).map(|_| ())
        }),
        ("ChunksRequest", |mut fields| {
            ["messages", "prompt"].iter().for_each(|name| fields.pass_over(name));
            with_terms(|terms| ChunksRequest::read(fields, terms)).map(|_| ())
        }),
    ];
    let document = made();
    for (body, read) in readers {
        let described = document["components"]["schemas"][body]["properties"].as_object().expect("properties");
        for name in described.keys() {
            assert!(knows(read, name), "{body}: `{name}` is described and not known");
        }
        for name in NAMES.into_iter().filter(|name| !["messages", "prompt"].contains(name) && knows(read, name)) {
            assert!(described.contains_key(name), "{body}: `{name}` is known and not described");
        }
        assert!(!knows(read, "document"), "{body}: a misspelt name");
    }
}

#[test]
fn every_schema_that_is_named_is_there_and_says_what_it_is() {
    let document = made();
    let schemas = document["components"]["schemas"].as_object().expect("schemas");
    let text = document.to_string();
    for name in text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(schemas.contains_key(name), "{name} is named and is not there");
    }
    for (name, schema) in schemas {
        assert!(schema["description"].is_string(), "{name} says nothing of itself");
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            let described = |schema: &Value| schema["description"].is_string() || schema["$ref"].is_string();
            let one_of = property["oneOf"].as_array();
            let says = described(property) || one_of.is_some_and(|schemas| schemas.iter().any(described));
            assert!(says, "{name}.{field} says nothing of itself");
        }
    }
}
