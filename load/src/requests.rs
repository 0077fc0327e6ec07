//! The requests of a load: which documents each has, and its body.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::draws::{Draws, Zipf};
use crate::error::{Error, Result};
use crate::http::Address;
use crate::options::{Form, Options};
use crate::trace::{Part, Trace, TraceRequest};
use crate::words::Words;

/// Path of chat completions.
pub const COMPLETIONS: &str = "/v1/chat/completions";

/// Words of a document of the two requests that tell how many tokens a word has.
const CALIBRATION_WORDS: [usize; 2] = [64, 320];

/// The kind of draws that choose documents.
const CHOICE: u32 = 4;

/// The kind of draws that choose the number of documents.
const COUNT: u32 = 5;

/// Makes requests by their numbers.
pub struct Requests {
    words: Words,
    zipf: Zipf,
    seed: u64,
    form: Form,
    model: String,
    documents_per_request: f64,
    corpus: usize,
    max_tokens: usize,
    document_words: usize,
    query_words: usize,
    /// Number of the first document that the server has not seen; absent: documents are drawn from
    /// the corpus.
    fresh_from: Option<u64>,
    /// Tokens of a word, as the server counts; absent where it counts none.
    pub tokens_per_word: Option<f64>,
    /// The requests of a trace, instead of drawn ones.
    trace: Option<Trace>,
}

impl Requests {
    /// Asks the server for its model and for the tokens that words have, by two requests of one
    /// token each.
    ///
    /// # Errors
    /// Returns an error if the vocabulary is invalid, or if the server does not answer.
    pub fn new(options: &Options, address: &Address) -> Result<Self> {
        let words = Words::new(options.words.as_deref(), options.seed)?;
        let model = match &options.model {
            Some(model) => model.clone(),
            None => first_model(address, options.timeout)?,
        };
        // Documents that are new to the server after any earlier load: their numbers begin at this
        // moment, far beyond any corpus.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        let mut this = Self {
            words,
            zipf: Zipf::new(options.corpus, options.zipf),
            seed: options.seed,
            form: options.form,
            model,
            documents_per_request: options.documents_per_request,
            corpus: options.corpus,
            max_tokens: options.max_tokens,
            document_words: 0,
            query_words: 0,
            fresh_from: options.fresh.then_some(now),
            tokens_per_word: None,
            trace: options.trace()?,
        };
        this.tokens_per_word = this.calibrate(address, options.timeout, now)?;
        this.document_words = this.words_of(options.document_tokens);
        this.query_words = this.words_of(options.query_tokens);
        Ok(this)
    }

    /// Words that come to about this number of tokens.
    fn words_of(&self, tokens: usize) -> usize {
        ((tokens as f64 / self.tokens_per_word.unwrap_or(1.0)).round() as usize).max(1)
    }

    /// The trace whose requests are sent.
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// The model's name.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The body of a request, whose answer streams.
    pub fn body(&self, number: u64) -> String {
        let mut body = match &self.trace {
            Some(trace) => self.traced(&trace.requests[number as usize]),
            None => self.drawn(number),
        };
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        body.to_string()
    }

    /// A request of a trace: the text of a part follows from its identity, and the answer has as
    /// many tokens as there.
    fn traced(&self, request: &TraceRequest) -> Value {
        let text = |part: &Part| self.words.document(part.id, self.words_of(part.tokens));
        let texts = |parts: &[Part]| parts.iter().map(text).collect::<Vec<_>>();
        let mut body = self.message(texts(&request.documents), &texts(&request.rest).join(" "), request.output_tokens);
        body["ignore_eos"] = true.into();
        if let (false, Some(messages)) = (request.system.is_empty(), body["messages"].as_array_mut()) {
            messages.insert(0, json!({"role": "system", "content": texts(&request.system).join(" ")}));
        }
        body
    }

    /// A request with documents of the corpus.
    fn drawn(&self, number: u64) -> Value {
        let (count, most) = (self.document_count(number), self.most_documents() as u64);
        let documents: Vec<u64> = match self.fresh_from {
            Some(first) => {
                let begin = first.wrapping_add(number.wrapping_mul(most));
                (0..count as u64).map(|index| begin.wrapping_add(index)).collect()
            }
            None => {
                let mut draws = Draws::new(self.seed, CHOICE, number);
                let drawn = self.zipf.distinct(count, &mut draws);
                drawn.into_iter().map(|document| document as u64).collect()
            }
        };
        let texts = documents.into_iter().map(|document| self.words.document(document, self.document_words)).collect();
        self.message(texts, &self.words.question(number, self.query_words), self.max_tokens)
    }

    /// Number of documents of a request: one of the two whole numbers next to the mean.
    fn document_count(&self, number: u64) -> usize {
        let fewest = self.documents_per_request.floor();
        let is_more = Draws::new(self.seed, COUNT, number).uniform() < self.documents_per_request - fewest;
        fewest as usize + usize::from(is_more)
    }

    /// Most documents of a request.
    fn most_documents(&self) -> usize {
        self.documents_per_request.ceil() as usize
    }

    /// Bodies that together have every document of the corpus once, for one token each.
    pub fn warming(&self) -> impl Iterator<Item = String> {
        let all: Vec<usize> = (0..self.corpus).collect();
        let groups: Vec<Vec<usize>> = all.chunks(self.most_documents()).map(<[usize]>::to_vec).collect();
        groups.into_iter().map(|group| {
            let texts = group.into_iter().map(|document| self.words.document(document as u64, self.document_words));
            self.message(texts.collect(), &self.words.question(u64::MAX, self.query_words), 1).to_string()
        })
    }

    fn message(&self, mut documents: Vec<String>, question: &str, max_tokens: usize) -> Value {
        let mut body = json!({"model": self.model, "max_tokens": max_tokens, "temperature": 0});
        let content = match self.form {
            Form::Documents => {
                if !documents.is_empty() {
                    body["documents"] = documents.into();
                }
                question.to_owned()
            }
            Form::Prompt => {
                documents.push(question.to_owned());
                documents.join("\n\n")
            }
        };
        body["messages"] = json!([{"role": "user", "content": content}]);
        body
    }

    /// Tokens of a word: the growth of the prompt's tokens with a longer document; nothing where
    /// the server does not count them.
    fn calibrate(&self, address: &Address, timeout: Duration, fresh: u64) -> Result<Option<f64>> {
        let mut tokens = [0.0; 2];
        for (tokens, words) in tokens.iter_mut().zip(CALIBRATION_WORDS) {
            let document = self.words.document(!fresh, words);
            let body = self.message(vec![document], &self.words.question(0, 16), 1).to_string();
            let answer = ask(address, COMPLETIONS, Some(&body), timeout)?;
            match answer["usage"]["prompt_tokens"].as_f64() {
                Some(count) => *tokens = count,
                None => return Ok(None),
            }
        }
        let per_word = (tokens[1] - tokens[0]) / (CALIBRATION_WORDS[1] - CALIBRATION_WORDS[0]) as f64;
        if per_word > 0.0 {
            return Ok(Some(per_word));
        }
        let [few, many] = tokens;
        let what = format!("it counts {few} tokens of a short prompt and {many} of a long one");
        Err(Error::Server { url: address.url.clone(), what })
    }
}

/// The name of the first model.
fn first_model(address: &Address, timeout: Duration) -> Result<String> {
    let models = ask(address, "/v1/models", None, timeout)?;
    let name = models["data"][0]["id"].as_str().map(str::to_owned);
    let what = || "it names no model at /v1/models; say --model".to_owned();
    name.ok_or_else(|| Error::Server { url: address.url.clone(), what: what() })
}

/// Asks something that must be answered with an object.
///
/// # Errors
/// Returns [`Error::Server`] with the unexpected answer.
pub fn ask(address: &Address, path: &str, body: Option<&str>, timeout: Duration) -> Result<Value> {
    let failed = |what: String| Error::Server { url: format!("{}{path}", address.url.trim_end_matches('/')), what };
    let mut response =
        address.ask(path, body, Instant::now() + timeout).map_err(|failure| failed(failure.to_string()))?;
    let text = response.whole().map_err(|failure| failed(failure.to_string()))?;
    let object = serde_json::from_str::<Value>(&text).ok();
    if response.status != 200 {
        let said = object.as_ref().and_then(|object| object["error"]["message"].as_str()).unwrap_or("no reason given");
        return Err(failed(format!("status {}: {said}", response.status)));
    }
    object.ok_or_else(|| failed("the answer is no JSON".to_owned()))
}
