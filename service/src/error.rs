//! Failures as OpenAI's clients know them: a status, and an object that says what, of which kind, and which parameter.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tributary_engine::RequestFailure as Failure;
use tributary_protocol::exit;

/// Seconds after which a client that was turned away may come again.
const RETRY_AFTER_S: u16 = 1;

/// A request that gets no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// The status of the response.
    pub status: StatusCode,
    /// The kind of failure.
    pub kind: &'static str,
    /// What is wrong, in one line.
    pub message: String,
    /// The parameter that is wrong, if it is one.
    pub param: Option<String>,
}

impl ApiError {
    /// A parameter that cannot be.
    pub fn parameter(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::invalid(message) }
    }

    /// A request that cannot be.
    pub fn invalid(message: impl Into<String>) -> Self {
        let (status, kind) = (StatusCode::BAD_REQUEST, "invalid_request_error");
        Self { status, kind, message: message.into(), param: None }
    }

    /// A failure of this program or its ranks.
    pub fn internal(message: impl Into<String>) -> Self {
        let (status, kind) = (StatusCode::INTERNAL_SERVER_ERROR, "server_error");
        Self { status, kind, message: message.into(), param: None }
    }

    /// The same with another status.
    #[must_use]
    pub fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// The object that stands for it.
    pub fn body(&self) -> serde_json::Value {
        let code = (self.status == StatusCode::NOT_FOUND).then_some("model_not_found");
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": code}})
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        let message = failure.to_string();
        match failure {
            // What never fits is the request's fault too: the message has both numbers.
            Failure::Refused(refusal) if matches!(refusal.exit_code, exit::USAGE | exit::OUT_OF_MEMORY) => {
                Self::invalid(message)
            }
            Failure::Refused(_) => Self::internal(message),
            Failure::Busy { .. } => {
                let (status, kind) = (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error");
                Self { status, kind, message, param: None }
            }
            Failure::Group(_) | Failure::Closed => Self::internal(message).with_status(StatusCode::SERVICE_UNAVAILABLE),
        }
    }
}

impl From<tributary_engine::Error> for ApiError {
    fn from(error: tributary_engine::Error) -> Self {
        match error.exit_code() {
            exit::USAGE | exit::OUT_OF_MEMORY => Self::invalid(error.to_string()),
            _ => Self::internal(error.to_string()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        response
    }
}
