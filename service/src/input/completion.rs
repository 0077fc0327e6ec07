//! A text completion request: a prompt that is continued, without a chat template.

use serde::Deserialize;
use tributary_coordinator::{Prepared, RequestSettings};
use tributary_engine::{Client, Prompt, PromptText};

use super::{Asked, Choices, Completed, Generation, check_model, documents, others};
use crate::body::Fields;
use crate::error::ApiError;
use crate::output::Form;

/// The likeliest tokens beside each that are told at most.
const LOGPROBS: u64 = 5;

/// What a text completion request asks for.
#[derive(Debug, Clone)]
pub struct CompletionRequest {
    /// Documents, and the text behind them.
    pub prompt: Prompt,
    /// How the answer is made and given.
    pub generation: Generation,
}

/// A prompt, in the forms that are known.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "a text, a list of one text, or a list of token ids")]
enum Forms {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<u32>),
    Lists(Vec<Vec<u32>>),
}

impl Asked for CompletionRequest {
    fn read(mut fields: Fields, model: &str, served: &RequestSettings) -> Result<Self, ApiError> {
        check_model(&mut fields, model)?;
        let choices = Choices::take(&mut fields, served)?;
        let mut generation = Generation::take(&mut fields, choices, &["max_tokens"])?;
        if let Some(logprobs) = fields.integer("logprobs", 0, LOGPROBS)? {
            generation.with_logprobs(logprobs as u32);
        }
        let refused = |message: &str| ApiError::parameter("prompt", message);
        let text = match fields.take("prompt")? {
            None => return Err(refused("there is no `prompt`")),
            Some(Forms::Text(text)) => PromptText::Text(text),
            Some(Forms::Ids(ids)) if !ids.is_empty() => PromptText::Ids(ids),
            Some(Forms::Texts(mut texts)) if texts.len() == 1 => PromptText::Text(texts.swap_remove(0)),
            Some(Forms::Lists(mut lists)) if lists.len() == 1 => PromptText::Ids(lists.swap_remove(0)),
            Some(Forms::Texts(texts)) if texts.is_empty() => return Err(refused("the `prompt` is empty")),
            Some(_) => return Err(refused("several prompts at once are not supported")),
        };
        let prompt = Prompt { documents: documents(&mut fields)?, text };
        others::finish(fields, &others::OF_TEXTS)?;
        Ok(Self { prompt, generation })
    }

    fn document_count(&self) -> usize {
        self.prompt.documents.len()
    }

    fn prepare(&self, client: &Client) -> Result<Prepared, ApiError> {
        let vocabulary = client.vocabulary();
        if let PromptText::Ids(ids) = &self.prompt.text
            && let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary)
        {
            return Err(ApiError::parameter("prompt", format!("token id {id}: the model knows {vocabulary} ids")));
        }
        Ok(client.prepare_prompt(&self.prompt)?)
    }
}

impl Completed for CompletionRequest {
    const FORM: Form = Form::Text;

    fn generation(&self) -> &Generation {
        &self.generation
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(json: &Value) -> Result<CompletionRequest, ApiError> {
        let fields = Fields::from_json(json.to_string().as_bytes())?;
        CompletionRequest::read(fields, "demo", &RequestSettings::default())
    }

    #[test]
    fn prompts_have_several_forms() {
        let text = |prompt: Value| read(&json!({"prompt": prompt})).map(|request| request.prompt.text);
        assert_eq!(text("a".into()), Ok(PromptText::Text("a".into())));
        assert_eq!(text(json!(["a"])), Ok(PromptText::Text("a".into())));
        assert_eq!(text(json!([3, 4])), Ok(PromptText::Ids(vec![3, 4])));
        assert_eq!(text(json!([[3, 4]])), Ok(PromptText::Ids(vec![3, 4])));
        for wrong in [json!(["a", "b"]), json!([[1], [2]]), json!([]), json!([-1]), json!(5), Value::Null] {
            let error = text(wrong.clone()).expect_err("no prompt");
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("prompt")), "{wrong}");
        }
    }

    #[test]
    fn what_is_not_honoured_is_named() {
        let with = |name: &str, value: Value| {
            let mut json = json!({"prompt": "a", "documents": ["one"], "tributary": {"method": "full"}});
            json[name] = value;
            read(&json)
        };
        let refused = [
            ("echo", true.into()),
            ("suffix", "x".into()),
            ("best_of", 2.into()),
            ("n", 2.into()),
            ("logprobs", 6.into()),
            ("logprobs", true.into()),
            ("messages", json!([])),
        ];
        for (name, value) in refused {
            let error = with(name, value).expect_err(name);
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(name)));
        }
        for (name, value) in [("echo", false.into()), ("suffix", "".into()), ("best_of", 1.into()), ("n", 1.into())] {
            assert!(with(name, value).is_ok(), "{name}");
        }
        let request = with("logprobs", 0.into()).expect("a request");
        assert_eq!(request.generation.settings.returns.logprobs, Some(0));
        assert_eq!((request.prompt.documents.len(), request.generation.settings.method.name), (1, "full"));
    }
}
