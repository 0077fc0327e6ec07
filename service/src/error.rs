//! Failures in the form of OpenAI's interface: a status, and an object with message, type and
//! parameter.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tributary_engine::RequestFailure;
use tributary_protocol::exit;

use crate::metrics::Metrics;

/// Seconds after which a client that was turned away may come again, where nothing is known.
const RETRY_AFTER_S: u64 = 1;

/// The most of them.
const MOST_S: f64 = 600.0;

/// Bytes of a message at most.
const LONGEST: usize = 2048;

/// A request that gets no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// The status of the response.
    pub status: StatusCode,
    /// The kind of failure.
    pub kind: &'static str,
    /// Description of the failure, in one line.
    pub message: String,
    /// The parameter that is wrong, if it is one.
    pub param: Option<String>,
    /// Word by which programs distinguish failures of one kind, where there is one.
    pub code: Option<&'static str>,
    /// Seconds after which the client may come again, where it may.
    pub retry_after_s: u64,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let mut message = message.into();
        // A long value is not sent back.
        if message.len() > LONGEST {
            message = format!("{} ..", &message[..message.floor_char_boundary(LONGEST)]);
        }
        Self { status, kind, message, param: None, code: None, retry_after_s: RETRY_AFTER_S }
    }

    /// A model that is not served here.
    pub fn unknown_model(model: &str, served: &str) -> Self {
        let message = format!("the model `{model}` is not served here; it is `{served}`");
        Self { status: StatusCode::NOT_FOUND, code: Some("model_not_found"), ..Self::parameter("model", message) }
    }

    /// A parameter that cannot be.
    pub fn parameter(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::invalid(message) }
    }

    /// A request that cannot be.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A request that the engine cannot answer. Settings are named as options of the command there;
    /// clients know them as parameters.
    fn refused(message: String) -> Self {
        let named = message.strip_prefix("--").and_then(|rest| rest.split_once(' '));
        match named.map(|(option, rest)| (option.replace('-', "_"), rest.to_owned())) {
            Some((param, rest)) => Self::parameter(&*param, format!("{param} {rest}")),
            None => Self::invalid(message),
        }
    }

    /// A prompt of `prompt` tokens that leaves no room for `answer` tokens in a context of `most`.
    /// Words and code are OpenAI's: clients look for them, and shorten their prompts.
    pub fn context_length(param: &str, (prompt, answer): (usize, usize), most: usize) -> Self {
        let message = format!(
            "This model's maximum context length is {most} tokens. However, you requested {} tokens ({prompt} in the \
             {param}, {answer} in the completion). Please reduce the length of the {param} or completion.",
            prompt + answer
        );
        Self { code: Some("context_length_exceeded"), ..Self::parameter(param, message) }
    }

    /// A client without a key that is known.
    pub fn unauthorized(message: &str) -> Self {
        Self { code: Some("invalid_api_key"), ..Self::invalid(message).with_status(StatusCode::UNAUTHORIZED) }
    }

    /// A body that did not come within `seconds` seconds.
    pub fn too_slow(seconds: u64) -> Self {
        let message = format!("the body did not come within {seconds} s");
        Self { code: Some("request_timeout"), ..Self::invalid(message).with_status(StatusCode::REQUEST_TIMEOUT) }
    }

    /// A body of more than `most` bytes.
    pub fn too_long(most: usize) -> Self {
        let message = format!("the body is longer than {most} bytes");
        Self { code: Some("request_too_large"), ..Self::invalid(message).with_status(StatusCode::PAYLOAD_TOO_LARGE) }
    }

    /// More requests than may be.
    pub fn busy(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
    }

    /// A service that takes no requests now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::internal(message).with_status(StatusCode::SERVICE_UNAVAILABLE)
    }

    /// An answer that took longer than any may.
    pub fn timed_out(seconds: u64) -> Self {
        let message = format!("the answer took longer than {seconds} s");
        Self { code: Some("timeout"), ..Self::internal(message).with_status(StatusCode::GATEWAY_TIMEOUT) }
    }

    /// A failure of the server that decodes.
    pub fn decoder(message: impl Into<String>) -> Self {
        Self { code: Some("decoder_failed"), ..Self::internal(message).with_status(StatusCode::BAD_GATEWAY) }
    }

    /// A failure of this program or its ranks.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The same with another status.
    #[must_use]
    pub fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// The same, for a client whose turn would come in `seconds` seconds.
    #[must_use]
    pub fn again_in(self, seconds: f64) -> Self {
        Self { retry_after_s: (seconds.clamp(0.0, MOST_S).ceil() as u64).max(RETRY_AFTER_S), ..self }
    }

    /// JSON object of the failure.
    pub fn body(&self) -> serde_json::Value {
        let Self { kind, message, param, code, .. } = self;
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
    }
}

impl From<RequestFailure> for ApiError {
    fn from(failure: RequestFailure) -> Self {
        let message = failure.to_string();
        match failure {
            // A request that never fits is the client's fault too: the message has both numbers.
            RequestFailure::Refused(refusal) if matches!(refusal.exit_code, exit::USAGE | exit::OUT_OF_MEMORY) => {
                Self::refused(message)
            }
            RequestFailure::Refused(_) => Self::internal(message),
            RequestFailure::Busy { .. } => Self::busy(message),
            RequestFailure::Group(_) | RequestFailure::Closed => Self::unavailable(message),
        }
    }
}

impl From<tributary_engine::Error> for ApiError {
    fn from(error: tributary_engine::Error) -> Self {
        use tributary_coordinator::Error::{Template, Untokenizable};
        match &error {
            // The client cannot help that the model's template fails.
            tributary_engine::Error::Coordinator(Template(_)) => return Self::internal(error.to_string()),
            tributary_engine::Error::Coordinator(Untokenizable(_)) => return Self::invalid(error.to_string()),
            _ => {}
        }
        match error.exit_code() {
            exit::USAGE | exit::OUT_OF_MEMORY => Self::refused(error.to_string()),
            _ => Self::internal(error.to_string()),
        }
    }
}

/// Kind of failure in a response, for the counter of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Told(&'static str);

/// Counts failures that responses report, from all sources. Failures that end a stream are counted
/// where they end it.
pub async fn counted(State(metrics): State<Arc<Metrics>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    if let Some(Told(kind)) = response.extensions().get() {
        metrics.refused(kind);
    }
    response
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        response.extensions_mut().insert(Told(self.kind));
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(self.retry_after_s));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_its_status_and_openais_shape() {
        let cases = [
            (ApiError::invalid("x"), 400, "invalid_request_error", None, false),
            (ApiError::unauthorized("x"), 401, "invalid_request_error", Some("invalid_api_key"), false),
            (ApiError::unknown_model("a", "b"), 404, "invalid_request_error", Some("model_not_found"), false),
            (ApiError::too_slow(1), 408, "invalid_request_error", Some("request_timeout"), false),
            (ApiError::too_long(1), 413, "invalid_request_error", Some("request_too_large"), false),
            (ApiError::busy("x"), 429, "rate_limit_error", None, true),
            (ApiError::internal("x"), 500, "server_error", None, false),
            (ApiError::unavailable("x"), 503, "server_error", None, true),
            (ApiError::timed_out(2), 504, "server_error", Some("timeout"), false),
        ];
        for (error, status, kind, code, may_come_again) in cases {
            assert_eq!((error.status.as_u16(), error.kind, error.code), (status, kind, code));
            let body = error.body();
            let keys: Vec<&String> = body["error"].as_object().expect("an object").keys().collect();
            assert_eq!(keys, ["message", "type", "param", "code"]);
            let response = error.into_response();
            assert_eq!(response.headers().contains_key(header::RETRY_AFTER), may_come_again, "{status}");
        }
    }
}
