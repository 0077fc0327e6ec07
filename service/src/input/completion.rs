//! A text completion request: a prompt that is continued, without a chat template.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use tributary_coordinator::{Document, Prepared};
use tributary_engine::{Client, Prompt, PromptText};
use tributary_planner::RequestSettings;

use super::documents::{self, Documents};
use super::{Asked, Choices, Completed, Generation, Terms, check_model, others};
use crate::body::Fields;
use crate::error::ApiError;
use crate::output::Form;

/// Maximum number of likeliest tokens given with each token.
pub const LOGPROBS: u64 = 20;

/// Prompts of one request at most.
pub const PROMPTS: usize = 256;

/// Content of a text completion request.
#[derive(Debug, Clone)]
pub struct CompletionRequest {
    /// The context of every prompt.
    documents: Documents,
    /// Texts after the documents: one or several.
    texts: Vec<PromptText>,
    /// Generation and delivery of the answer.
    generation: Generation,
}

/// Reads prompts, in the forms that are known, with bounds: a text, a list of token ids, or a list
/// of such.
struct Prompts {
    /// Token ids of all prompts together at most.
    most_ids: usize,
}

/// One entry of a list: a token id, or a whole prompt.
enum Entry {
    Id(u32),
    Prompt(PromptText),
}

/// Reads one entry of a list, which is a token id for at most `most_ids` of the entries.
struct OneOf {
    most_ids: usize,
}

impl<'de> DeserializeSeed<'de> for Prompts {
    type Value = Vec<PromptText>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Prompts {
    type Value = Vec<PromptText>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a list of token ids, or a list of such")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(vec![PromptText::Text(text.to_owned())])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let (mut prompts, mut ids, mut left) = (Vec::new(), Vec::new(), self.most_ids);
        while let Some(entry) = list.next_element_seed(OneOf { most_ids: left })? {
            match entry {
                Entry::Id(_) if !prompts.is_empty() => return Err(mixed()),
                Entry::Id(_) if ids.len() == self.most_ids => return Err(too_many_ids(self.most_ids)),
                Entry::Id(id) => ids.push(id),
                Entry::Prompt(_) if !ids.is_empty() => return Err(mixed()),
                Entry::Prompt(_) if prompts.len() == PROMPTS => {
                    return Err(Error::custom(format!("a request has at most {PROMPTS} prompts")));
                }
                Entry::Prompt(prompt) => {
                    left -= if let PromptText::Ids(ids) = &prompt { ids.len() } else { 0 };
                    prompts.push(prompt);
                }
            }
        }
        if !ids.is_empty() {
            prompts.push(PromptText::Ids(ids));
        }
        Ok(prompts)
    }
}

impl<'de> DeserializeSeed<'de> for OneOf {
    type Value = Entry;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Entry, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for OneOf {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a token id, or a list of token ids")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Entry, E> {
        u32::try_from(number).map(Entry::Id).map_err(|_| E::custom(format!("token id {number} is none")))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Entry, E> {
        Ok(Entry::Prompt(PromptText::Text(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Entry, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = list.next_element::<u32>()? {
            if ids.len() == self.most_ids {
                return Err(too_many_ids(self.most_ids));
            }
            ids.push(id);
        }
        Ok(Entry::Prompt(PromptText::Ids(ids)))
    }
}

fn mixed<E: Error>() -> E {
    E::custom("token ids and texts do not go together in one list")
}

fn too_many_ids<E: Error>(most: usize) -> E {
    E::custom(format!("more than {most} token ids; this service takes at most as many tokens of prompt"))
}

impl Asked for CompletionRequest {
    fn read(mut fields: Fields, terms: &Terms<'_>) -> Result<Self, ApiError> {
        check_model(&mut fields, terms.model)?;
        let choices = Choices::take(&mut fields, terms)?;
        let mut generation = Generation::take(&mut fields, choices, &["max_tokens"], terms)?;
        generation.delivery.echoes = fields.take("echo")?.unwrap_or(false);
        if let Some(logprobs) = fields.integer("logprobs", 0, LOGPROBS)? {
            generation.with_logprobs(logprobs as u32);
            if generation.delivery.echoes {
                generation.scores_prompt(logprobs as u32)?;
            }
        }
        let prompts = fields.take_by("prompt", Prompts { most_ids: terms.limits.prompt_tokens })?;
        let texts = prompts.ok_or_else(|| ApiError::parameter("prompt", "there is no `prompt`"))?;
        if texts.is_empty() {
            return Err(ApiError::parameter("prompt", "the `prompt` is empty"));
        }
        let documents = documents::take(&mut fields, terms)?;
        others::finish(fields, &others::OF_TEXTS, terms.ignores_unknown)?;
        Ok(Self { documents, texts, generation })
    }

    fn prepare(&self, client: &Client) -> Result<Vec<Prepared>, ApiError> {
        let vocabulary = client.vocabulary();
        let prepare = |text: &PromptText| {
            if let PromptText::Ids(ids) = text
                && let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary)
            {
                return Err(ApiError::parameter("prompt", format!("token id {id}: the model knows {vocabulary} ids")));
            }
            let prompt = Prompt { documents: self.documents.all.clone(), text: text.clone() };
            let prepared = client.prepare_prompt(&prompt)?;
            self.generation.prompt(prepared, !self.documents.all.is_empty())
        };
        self.texts.iter().map(prepare).collect()
    }

    fn documents(&self) -> &[Document] {
        &self.documents.all
    }

    fn empty_documents(&self) -> usize {
        self.documents.empty
    }

    fn settings(
        &self,
        prepared: &Prepared,
        of: (usize, usize),
        terms: &Terms<'_>,
    ) -> Result<RequestSettings, ApiError> {
        self.generation.settings(prepared, of, Form::Text, terms)
    }

    fn copies(&self) -> usize {
        self.generation.copies
    }
}

impl Completed for CompletionRequest {
    const FORM: Form = Form::Text;

    fn generation(&self) -> &Generation {
        &self.generation
    }

    fn echoed_text(&self, prompt: usize) -> Option<&str> {
        match &self.texts[prompt] {
            PromptText::Text(text) => Some(text),
            PromptText::Ids(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::kit;
    use super::*;

    fn read(json: &Value) -> Result<CompletionRequest, ApiError> {
        let fields = Fields::from_json(json.to_string().as_bytes())?;
        kit::with_terms(|terms| CompletionRequest::read(fields, terms))
    }

    #[test]
    fn prompts_have_several_forms() {
        let texts = |prompt: Value| read(&json!({"prompt": prompt})).map(|request| request.texts);
        let (text, ids) = (|text: &str| PromptText::Text(text.into()), |ids: &[u32]| PromptText::Ids(ids.to_vec()));
        assert_eq!(texts("a".into()), Ok(vec![text("a")]));
        assert_eq!(texts(json!(["a"])), Ok(vec![text("a")]));
        assert_eq!(texts(json!(["a", "b"])), Ok(vec![text("a"), text("b")]));
        assert_eq!(texts(json!([3, 4])), Ok(vec![ids(&[3, 4])]));
        assert_eq!(texts(json!([[3, 4], [5]])), Ok(vec![ids(&[3, 4]), ids(&[5])]));
        for wrong in [
            json!([]),
            json!([-1]),
            json!(5),
            json!(["a", 5]),
            json!([5, "a"]),
            json!([[1], 5]),
            Value::Null,
            json!(vec!["a"; PROMPTS + 1]),
        ] {
            let error = texts(wrong.clone()).expect_err("no prompt");
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
            ("echo", "yes".into()),
            ("suffix", "x".into()),
            ("best_of", 2.into()),
            ("n", 0.into()),
            ("logprobs", 21.into()),
            ("logprobs", true.into()),
            ("messages", json!([])),
        ];
        for (name, value) in refused {
            let error = with(name, value).expect_err(name);
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(name)));
        }
        for (name, value) in [("echo", false.into()), ("suffix", "".into()), ("best_of", 1.into()), ("n", 3.into())] {
            assert!(with(name, value).is_ok(), "{name}");
        }
        let request = with("logprobs", 0.into()).expect("a request");
        assert!(request.generation.delivery.has_logprobs && !request.generation.is_scoring());
        assert_eq!(request.documents.all.len(), 1);
    }

    #[test]
    fn an_echo_with_log_probabilities_scores_the_prompt() {
        let asked = json!({"prompt": [[1, 2], [3]], "echo": true, "logprobs": 1, "max_tokens": 0, "n": 2});
        let request = read(&asked).expect("a request");
        let Generation { delivery, copies, .. } = &request.generation;
        assert!(request.generation.is_scoring() && delivery.echoes && !delivery.shows_answer);
        assert_eq!((*copies, request.copies()), (2, 2));
        let mut streamed = asked;
        streamed["stream"] = true.into();
        assert_eq!(read(&streamed).expect_err("a stream").param.as_deref(), Some("stream"));
    }
}
