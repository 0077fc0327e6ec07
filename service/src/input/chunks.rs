//! A request for documents to be prefilled ahead of use.

use tributary_coordinator::{Document, Prepared};
use tributary_engine::Client;
use tributary_planner::RequestSettings;

use super::documents::{self, Documents};
use super::{Asked, Terms, check_model, others};
use crate::body::Fields;
use crate::error::ApiError;

/// Chunks to prefill.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunksRequest {
    /// The documents.
    pub documents: Documents,
    /// System text of the chats that will use them: it precedes and shapes them.
    pub system: Option<String>,
}

impl Asked for ChunksRequest {
    fn read(mut fields: Fields, terms: &Terms<'_>) -> Result<Self, ApiError> {
        check_model(&mut fields, terms.model)?;
        let documents = documents::take(&mut fields, terms)?;
        let system = fields.take_long("system")?;
        others::finish(fields, &[], terms.ignores_unknown)?;
        if documents.all.is_empty() {
            return Err(ApiError::parameter("documents", "there are no `documents` with a text"));
        }
        Ok(Self { documents, system })
    }

    fn prepare(&self, client: &Client) -> Result<Vec<Prepared>, ApiError> {
        Ok(vec![client.prepare_documents(&self.documents.all, self.system.as_deref())?])
    }

    fn documents(&self) -> &[Document] {
        &self.documents.all
    }

    fn empty_documents(&self) -> usize {
        self.documents.empty
    }

    fn settings(&self, _: &Prepared, _: (usize, usize), terms: &Terms<'_>) -> Result<RequestSettings, ApiError> {
        Ok(terms.settings.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_a_system_text_are_all_that_it_takes() {
        let read = |json: &str| {
            let fields = Fields::from_json(json.as_bytes()).expect("an object");
            super::super::kit::with_terms(|terms| ChunksRequest::read(fields, terms))
        };
        let request =
            read(r#"{"documents": ["a", {"text": "b"}], "system": "s", "model": "demo"}"#).expect("a request");
        assert_eq!((request.documents.all.len(), request.system.as_deref()), (2, Some("s")));
        for (json, param) in [
            ("{}", "documents"),
            (r#"{"documents": []}"#, "documents"),
            (r#"{"documents": ["a"], "query": "q"}"#, "query"),
            (r#"{"documents": ["a"], "system": 5}"#, "system"),
        ] {
            assert_eq!(read(json).expect_err(json).param.as_deref(), Some(param), "{json}");
        }
    }
}
