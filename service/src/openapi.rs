//! `GET /openapi.json`: every route with its requests and answers, in OpenAPI's form.
//!
//! The document is a file of the repository (`docs/openapi.v1.json`), generated from the types by a
//! test. The program holds its text, but not the generator.

#[cfg(test)]
mod bodies;
#[cfg(test)]
mod described;

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// The document.
const TEXT: &str = include_str!("../../docs/openapi.v1.json");

/// Answers with the document.
pub async fn document() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], TEXT).into_response()
}
