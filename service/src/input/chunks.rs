//! A request for documents to be prefilled ahead of use.

use tributary_coordinator::{Document, Prepared, RequestSettings};
use tributary_engine::Client;

use super::{Asked, check_model, documents};
use crate::body::Fields;
use crate::error::ApiError;

/// What is to be prefilled.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunksRequest {
    /// The documents.
    pub documents: Vec<Document>,
    /// The system text of the chats that they are for: it stands before them and shapes them.
    pub system: Option<String>,
}

impl Asked for ChunksRequest {
    fn read(mut fields: Fields, model: &str, _: &RequestSettings) -> Result<Self, ApiError> {
        check_model(&mut fields, model)?;
        let (documents, system) = (documents(&mut fields)?, fields.take("system")?);
        fields.end()?;
        if documents.is_empty() {
            return Err(ApiError::parameter("documents", "there are no `documents`"));
        }
        Ok(Self { documents, system })
    }

    fn document_count(&self) -> usize {
        self.documents.len()
    }

    fn prepare(&self, client: &Client) -> Result<Prepared, ApiError> {
        Ok(client.prepare_documents(&self.documents, self.system.as_deref())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_a_system_text_are_all_that_it_takes() {
        let served = RequestSettings::default();
        let read =
            |json: &str| ChunksRequest::read(Fields::from_json(json.as_bytes()).expect("an object"), "demo", &served);
        let request =
            read(r#"{"documents": ["a", {"text": "b"}], "system": "s", "model": "demo"}"#).expect("a request");
        assert_eq!((request.documents.len(), request.system.as_deref()), (2, Some("s")));
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
