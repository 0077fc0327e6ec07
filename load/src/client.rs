//! One request as its client sees it: sent, read as it streams, every part of the answer with its
//! time.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::events::Events;
use crate::http::{Address, Failure};
use crate::requests::COMPLETIONS;
use crate::sample::{Outcome, Sample};

/// Sends requests, each over its own connection.
pub struct Client {
    /// The server.
    pub address: Address,
    /// Longest time of one request.
    pub timeout: Duration,
}

/// State of a stream.
#[derive(Default)]
struct Progress {
    /// Whether a part has given the reason of the answer's end.
    has_finished: bool,
}

impl Client {
    /// Sends a request and reads its answer to the end. Times count from `began`.
    pub fn ask(&self, body: &str, began: Instant, sample: &mut Sample) {
        sample.sent = Some(began.elapsed().as_secs_f64());
        sample.outcome = self.outcome(body, began, sample).unwrap_or_else(outcome);
        sample.ended = began.elapsed().as_secs_f64();
        if sample.generated_tokens == 0 {
            sample.generated_tokens = sample.parts.len() as u64;
        }
    }

    fn outcome(&self, body: &str, began: Instant, sample: &mut Sample) -> Result<Outcome, Failure> {
        let mut response = self.address.ask(COMPLETIONS, Some(body), Instant::now() + self.timeout)?;
        if response.status != 200 {
            return Ok(Outcome::Status(response.status));
        }
        let (mut events, mut progress) = (Events::default(), Progress::default());
        while let Some(piece) = response.piece()? {
            let now = began.elapsed().as_secs_f64();
            let data = events.push(&piece).map_err(|_| Failure::Malformed("an event without end"))?;
            for event in data {
                if let Some(outcome) = progress.take(&event, now, sample) {
                    return Ok(outcome);
                }
            }
        }
        Ok(if progress.has_finished { Outcome::Answered } else { Outcome::Incomplete })
    }
}

impl Progress {
    /// Takes an event; gives the outcome if it is the last.
    fn take(&mut self, event: &str, now: f64, sample: &mut Sample) -> Option<Outcome> {
        if event == "[DONE]" {
            return Some(if self.has_finished { Outcome::Answered } else { Outcome::Incomplete });
        }
        let Ok(part) = serde_json::from_str::<Value>(event) else { return Some(Outcome::Malformed) };
        if part["error"].is_object() {
            return Some(Outcome::StreamError);
        }
        let choice = &part["choices"][0];
        // Models that think aloud before they answer begin with text in a separate field.
        let texts = [&choice["delta"]["content"], &choice["delta"]["reasoning_content"]];
        if texts.iter().any(|text| text.as_str().is_some_and(|text| !text.is_empty())) {
            sample.parts.push(now);
        }
        self.has_finished |= choice["finish_reason"].is_string();
        if let Some(phases) = part["metrics"]["phases_ms"].as_object() {
            // A server that reports its phases without one of this name did not let the request
            // wait.
            sample.queue_ms = Some(phases.get("queue").and_then(Value::as_f64).unwrap_or(0.0));
        }
        let usage = &part["usage"];
        if usage.is_object() {
            sample.prompt_tokens = usage["prompt_tokens"].as_u64();
            sample.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
            sample.generated_tokens = usage["completion_tokens"].as_u64().unwrap_or(0);
        }
        None
    }
}

/// Outcome of a failed request.
fn outcome(failure: Failure) -> Outcome {
    match failure {
        Failure::Connect(_) => Outcome::Connect,
        Failure::Timeout => Outcome::Timeout,
        Failure::Cut(_) => Outcome::Cut,
        Failure::Malformed(_) => Outcome::Malformed,
    }
}
