//! Common fields of chats and texts: length of an answer, sampling of its tokens, its end, its
//! delivery.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use tributary_coordinator::Prepared;
use tributary_planner::RequestSettings;
use tributary_protocol::Sampling;

use super::terms::Terms;
use crate::body::Fields;
use crate::delivery::Delivery;
use crate::error::ApiError;
use crate::output::Form;

/// Stop texts at most.
pub const STOPS: usize = 16;

/// Characters of a stop text at most: each token's text is held against each beginning of it.
pub const STOP_CHARACTERS: usize = 1000;

/// Further contents of a stream besides tokens.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// Whether the last part has the numbers of tokens.
    pub include_usage: Option<bool>,
    /// Whether every part has the numbers of tokens so far.
    pub continuous_usage_stats: Option<bool>,
    /// Not supported: only `false`.
    pub include_obfuscation: Option<bool>,
}

/// A text, or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "a text or a list of texts")]
enum Texts {
    One(String),
    Several(Vec<String>),
}

/// Answers to one prompt at most.
pub const COPIES: u64 = 64;

/// Default maximum of tokens in a chat's answer, which usually ends long before.
pub const CHAT_TOKENS: usize = 2048;

/// Default maximum of tokens in a text completion, as in OpenAI's interface.
pub const TEXT_TOKENS: usize = 16;

/// Token ids of `stop_token_ids`, and entries of `logit_bias`, at most.
pub const LISTED_IDS: usize = 300;

/// Generation and delivery of an answer.
#[derive(Debug, Clone)]
pub struct Generation {
    /// The engine's settings, but for the length of the answer and the seed of the draws.
    settings: RequestSettings,
    /// Maximum tokens of the answer, where the request sets it.
    max_tokens: Option<usize>,
    /// Number of answers to each prompt.
    pub copies: usize,
    /// Delivery of the answer.
    pub delivery: Delivery,
}

impl Generation {
    /// Takes it from a body, except for the choices of the prefill. `limits` are the names of the
    /// number of tokens, the first of which counts.
    ///
    /// # Errors
    /// Returns an error if a value is out of range.
    pub fn take(
        fields: &mut Fields,
        (mut settings, explains): (RequestSettings, bool),
        limits: &[&str],
        terms: &Terms<'_>,
    ) -> Result<Self, ApiError> {
        let mut max_tokens = None;
        for name in limits.iter().rev() {
            if let Some(tokens) = fields.integer(name, 0, u64::MAX)? {
                let (tokens, most) = (usize::try_from(tokens).unwrap_or(usize::MAX), terms.limits.answer_tokens);
                if tokens > most {
                    let message = format!("`{name}` {tokens}: this service gives at most {most} tokens an answer");
                    return Err(ApiError::parameter(*name, message));
                }
                max_tokens = Some(tokens);
            }
        }
        draws(fields, &mut settings, terms)?;
        let min_tokens = settings.sampling.min_tokens as usize;
        if max_tokens.is_some_and(|most| min_tokens > most) {
            let message = format!("`min_tokens` {min_tokens}: more than the answer may have");
            return Err(ApiError::parameter("min_tokens", message));
        }
        let streams = fields.take("stream")?.unwrap_or(false);
        let (includes_usage, counts_always) = usage_of_stream(fields, streams)?;
        let (stops, keeps_stop) = (stops(fields)?, fields.take("include_stop_str_in_output")?.unwrap_or(false));
        let delivery = Delivery {
            streams,
            includes_usage,
            counts_always,
            explains,
            stops,
            keeps_stop,
            shows_answer: max_tokens != Some(0),
            ..Delivery::default()
        };
        let copies = fields.integer("n", 1, COPIES)?.unwrap_or(1) as usize;
        if fields.integer("best_of", 1, COPIES)?.is_some_and(|best_of| best_of as usize != copies) {
            return Err(ApiError::parameter("best_of", "`best_of` is not supported, but as many as `n`"));
        }
        let mut this = Self { settings, max_tokens, copies, delivery };
        if let Some(top) = fields.integer("prompt_logprobs", 0, PROMPT_LOGPROBS)? {
            this.scores_prompt(top as u32)?;
            this.delivery.tells_prompt = true;
        }
        Ok(this)
    }

    /// Asks for log-probabilities of the prompt, and for those of the `top` likeliest tokens in
    /// each place.
    ///
    /// # Errors
    /// Returns an error if the answer is streamed: they come with the whole answer only.
    pub fn scores_prompt(&mut self, top: u32) -> Result<(), ApiError> {
        if self.delivery.streams {
            let message = "log-probabilities of the prompt come with a whole answer only, not with `stream`";
            return Err(ApiError::parameter("stream", message));
        }
        self.settings.returns.prompt_logprobs = Some(top.max(self.settings.returns.prompt_logprobs.unwrap_or(0)));
        Ok(())
    }

    /// Sampling of tokens.
    pub fn sampling(&self) -> &Sampling {
        &self.settings.sampling
    }

    /// Whether log-probabilities of the prompt are wanted.
    pub fn is_scoring(&self) -> bool {
        self.settings.returns.prompt_logprobs.is_some()
    }

    /// The prompt for prefill. Without separate documents it has no context if its
    /// log-probabilities are wanted, or if it is a single chunk that no separator made. Every
    /// method computes that exactly, and as a whole prompt the turns of a conversation reuse each
    /// other.
    ///
    /// # Errors
    /// Returns an error if a prompt without documents has pictures, which are documents always.
    pub fn prompt(&self, prepared: Prepared, has_documents: bool) -> Result<Prepared, ApiError> {
        let is_chunk = prepared.separated || self.delivery.explains || !self.settings.method.selects();
        let is_one = prepared.chunks.len() <= 1 && !is_chunk;
        let keeps = has_documents || !(is_one || self.is_scoring());
        if keeps { Ok(prepared) } else { Ok(prepared.without_context().map_err(tributary_engine::Error::from)?) }
    }

    /// The engine's settings for answer number `copy` to a prompt of `rows` rows.
    ///
    /// # Errors
    /// Returns an error if the prompt leaves too little room for the answer in the model's context.
    pub fn settings(
        &self,
        prepared: &Prepared,
        (rows, copy): (usize, usize),
        form: Form,
        terms: &Terms<'_>,
    ) -> Result<RequestSettings, ApiError> {
        let room = terms.max_positions.saturating_sub(rows);
        let most = terms.limits.answer_tokens.min(room);
        let default = match (terms.default_tokens, form) {
            (Some(tokens), _) => tokens,
            (None, Form::Chat) => CHAT_TOKENS.min(most),
            (None, Form::Text) => TEXT_TOKENS.min(most),
        };
        let wanted = self.max_tokens.unwrap_or(default).max(1);
        if wanted > room {
            let tokens = (rows, self.max_tokens.unwrap_or(1));
            return Err(ApiError::context_length(form.prompt(), tokens, terms.max_positions));
        }
        let mut settings = self.settings.clone();
        settings.max_tokens = wanted;
        settings.sampling.seed = settings.sampling.seed.wrapping_add(copy as u64);
        Ok(if prepared.chunks.is_empty() { settings.without_context() } else { settings })
    }

    /// Asks for log-probabilities, and for those of the `top` likeliest tokens.
    pub fn with_logprobs(&mut self, top: u32) {
        self.settings.returns.logprobs = Some(top);
        self.delivery.has_logprobs = true;
    }
}

/// Log-probabilities of tokens in the place of each of a prompt at most.
pub const PROMPT_LOGPROBS: u64 = 20;

/// Takes the parameters of sampling.
fn draws(fields: &mut Fields, settings: &mut RequestSettings, terms: &Terms<'_>) -> Result<(), ApiError> {
    let sampling = &mut settings.sampling;
    let temperature = fields.number("temperature", |found| (0.0..=2.0).contains(&found), "from 0 to 2")?;
    sampling.temperature = temperature.unwrap_or(sampling.temperature);
    let share = |found: f64| (0.0..=1.0).contains(&found);
    sampling.top_p = fields.number("top_p", share, "from 0 to 1")?.unwrap_or(sampling.top_p);
    sampling.min_p = fields.number("min_p", share, "from 0 to 1")?.unwrap_or(sampling.min_p);
    sampling.top_k = top_k(fields)?.unwrap_or(sampling.top_k);
    sampling.seed = seed(fields)?.unwrap_or(sampling.seed);
    let repetition =
        fields.number("repetition_penalty", |found| found > 0.0 && found <= 10.0, "above 0 and at most 10")?;
    sampling.repetition_penalty = repetition.unwrap_or(sampling.repetition_penalty);
    for (name, penalty) in
        [("presence_penalty", &mut sampling.presence_penalty), ("frequency_penalty", &mut sampling.frequency_penalty)]
    {
        *penalty = fields.number(name, |found| (-2.0..=2.0).contains(&found), "from -2 to 2")?.unwrap_or(*penalty);
    }
    sampling.min_tokens = fields.integer("min_tokens", 0, u32::MAX.into())?.unwrap_or(0) as u32;
    sampling.ignore_eos = fields.take("ignore_eos")?.unwrap_or(false);
    let stops: Vec<u32> = fields.take("stop_token_ids")?.unwrap_or_default();
    if stops.len() > LISTED_IDS {
        let message = format!("`stop_token_ids` has at most {LISTED_IDS} ids");
        return Err(ApiError::parameter("stop_token_ids", message));
    }
    sampling.stop_token_ids = stops;
    sampling.logit_bias = logit_bias(fields, terms.vocabulary)?;
    Ok(())
}

/// Numbers that are added to logits, by token id.
fn logit_bias(fields: &mut Fields, vocabulary: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let refused = |message: String| ApiError::parameter("logit_bias", format!("`logit_bias` {message}"));
    let biases: BTreeMap<String, f32> = fields.take("logit_bias")?.unwrap_or_default();
    if biases.len() > LISTED_IDS {
        return Err(refused(format!("has at most {LISTED_IDS} entries")));
    }
    let bias = |(id, bias): (String, f32)| {
        let known = id.parse::<u32>().ok().filter(|&id| (id as usize) < vocabulary);
        let id = known.ok_or_else(|| refused(format!("names tokens by their ids, which are below {vocabulary}")))?;
        match (-100.0..=100.0).contains(&bias) {
            true => Ok((id, bias)),
            false => Err(refused(format!("{bias} for token {id}: must be from -100 to 100"))),
        }
    };
    biases.into_iter().map(bias).collect()
}

/// A seed. A negative one is as good as any other.
fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    let Some(number) = fields.take::<serde_json::Number>("seed")? else { return Ok(None) };
    match number.as_u64().or(number.as_i64().map(|seed| seed as u64)) {
        Some(seed) => Ok(Some(seed)),
        None => Err(ApiError::parameter("seed", format!("`seed` {number}: must be a whole number"))),
    }
}

/// The likeliest tokens that are drawn from; 0 for all.
fn top_k(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let wanted = "must be a whole number of at least 1; 0, -1 and false turn it off";
    let Some(value) = fields.take::<Value>("top_k")? else { return Ok(None) };
    if value == Value::Bool(false) {
        return Ok(Some(0));
    }
    match value.as_f64().filter(|number| number.fract() == 0.0 && *number >= -1.0) {
        // There are fewer tokens than u32 has numbers.
        Some(number) => Ok(Some(number.max(0.0) as u32)),
        None => Err(ApiError::parameter("top_k", format!("`top_k` {wanted}"))),
    }
}

/// Whether a stream has the numbers of tokens at its end, and in every part.
fn usage_of_stream(fields: &mut Fields, streams: bool) -> Result<(bool, bool), ApiError> {
    let refused = |message: &str| Err(ApiError::parameter("stream_options", message));
    let Some(options) = fields.take::<StreamOptions>("stream_options")? else { return Ok((false, false)) };
    if !streams {
        return refused("`stream_options` goes with `stream` only");
    }
    if options.include_obfuscation == Some(true) {
        return refused("`stream_options.include_obfuscation` is not supported");
    }
    let at_the_end = options.include_usage.unwrap_or(false);
    Ok((at_the_end, at_the_end && options.continuous_usage_stats.unwrap_or(false)))
}

fn stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let stops = match fields.take("stop")? {
        None => Vec::new(),
        Some(Texts::One(stop)) => vec![stop],
        Some(Texts::Several(stops)) => stops,
    };
    if stops.len() > STOPS || stops.iter().any(String::is_empty) {
        return Err(ApiError::parameter("stop", format!("`stop` has at most {STOPS} texts, none of them empty")));
    }
    if stops.iter().any(|stop| stop.chars().count() > STOP_CHARACTERS) {
        let message = format!("a text of `stop` has at most {STOP_CHARACTERS} characters");
        return Err(ApiError::parameter("stop", message));
    }
    Ok(stops)
}
