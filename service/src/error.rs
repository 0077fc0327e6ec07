//! Failures as OpenAI's clients know them: a status, and an object that says what, of which kind, and which parameter.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tributary_engine::RequestFailure;
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
    /// What programs tell failures of one kind apart by, where there is such a word.
    pub code: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, code: None }
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

    /// A request without a key that is known.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message);
        Self { code: Some("invalid_api_key"), ..error }
    }

    /// A request that the engine cannot answer. Settings are named as options of the command there; clients know them as
    /// parameters.
    fn refused(message: String) -> Self {
        let named = message.strip_prefix("--").and_then(|rest| rest.split_once(' '));
        match named.map(|(option, rest)| (option.replace('-', "_"), rest.to_owned())) {
            Some((param, rest)) => Self::parameter(&*param, format!("{param} {rest}")),
            None => Self::invalid(message),
        }
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

    /// The object that stands for it.
    pub fn body(&self) -> serde_json::Value {
        let Self { kind, message, param, code, .. } = self;
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
    }
}

impl From<&JsonRejection> for ApiError {
    fn from(rejection: &JsonRejection) -> Self {
        let status = match rejection.status() {
            // OpenAI's clients know JSON of another form as a bad request.
            StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
            other => other,
        };
        Self::invalid(rejection.body_text()).with_status(status)
    }
}

impl From<RequestFailure> for ApiError {
    fn from(failure: RequestFailure) -> Self {
        let message = failure.to_string();
        match failure {
            // What never fits is the request's fault too: the message has both numbers.
            RequestFailure::Refused(refusal) if matches!(refusal.exit_code, exit::USAGE | exit::OUT_OF_MEMORY) => {
                Self::refused(message)
            }
            RequestFailure::Refused(_) => Self::internal(message),
            RequestFailure::Busy { .. } => Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message),
            RequestFailure::Group(_) | RequestFailure::Closed => {
                Self::internal(message).with_status(StatusCode::SERVICE_UNAVAILABLE)
            }
        }
    }
}

impl From<tributary_engine::Error> for ApiError {
    fn from(error: tributary_engine::Error) -> Self {
        match error.exit_code() {
            exit::USAGE | exit::OUT_OF_MEMORY => Self::refused(error.to_string()),
            _ => Self::internal(error.to_string()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        response
    }
}
