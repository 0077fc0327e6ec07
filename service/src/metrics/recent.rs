//! The last requests that have ended: their numbers, never their text.

use std::collections::{BTreeMap, VecDeque};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tributary_engine::{Answered, Ended};

/// Number of kept requests.
const KEPT: usize = 50;

/// A request that has ended. Times in milliseconds from its acceptance.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Finished {
    /// The name that its client knows it by.
    pub id: String,
    /// When it ended, in seconds since 1970.
    pub finished_unix_seconds: f64,
    /// Its method's name.
    pub method: &'static str,
    /// `cold`, `partial` or `warm`; absent if it was not answered.
    pub cache: Option<&'static str>,
    /// `answered`, `failed` or `cancelled`.
    pub outcome: &'static str,
    /// To the first token, if there was one.
    pub ttft_ms: Option<f64>,
    /// Milliseconds to its end.
    pub total_ms: f64,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens that were generated.
    pub generated_tokens: usize,
}

impl Finished {
    /// A request that was answered.
    pub fn answered(answered: &Answered) -> Self {
        let report = &answered.report;
        Self {
            id: String::new(),
            finished_unix_seconds: now_s(),
            method: report.method,
            cache: Some(report.chunk_cache.state),
            outcome: "answered",
            ttft_ms: Some(report.ttft_ms),
            total_ms: report.total_ms,
            prompt_tokens: answered.prepared.token_count(),
            generated_tokens: report.tokens.generated,
        }
    }

    /// A request that got no whole answer.
    pub fn unanswered(ended: &Ended) -> Self {
        Self {
            id: String::new(),
            finished_unix_seconds: now_s(),
            method: ended.method,
            cache: None,
            outcome: if ended.stage.is_some() { "cancelled" } else { "failed" },
            ttft_ms: ended.ttft.map(|ttft| 1000.0 * ttft.as_secs_f64()),
            total_ms: 1000.0 * ended.total.as_secs_f64(),
            prompt_tokens: ended.prompt_tokens,
            generated_tokens: ended.generated_tokens,
        }
    }
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// The last requests, and the names of those that have not ended.
#[derive(Debug, Default)]
pub struct Recent {
    /// With their numbers, the oldest first.
    last: VecDeque<(u64, Finished)>,
    names: BTreeMap<u64, String>,
}

impl Recent {
    /// The name of a request. It may have ended already.
    pub fn named(&mut self, request: u64, id: &str) {
        match self.last.iter_mut().find(|(number, _)| *number == request) {
            Some((_, finished)) => id.clone_into(&mut finished.id),
            None => _ = self.names.insert(request, id.to_owned()),
        }
    }

    /// Notes the end of a request. One without a name is called by its number.
    pub fn finished(&mut self, finished: Finished, request: u64) {
        let id = self.names.remove(&request).unwrap_or_else(|| request.to_string());
        if self.last.len() >= KEPT {
            self.last.pop_front();
        }
        self.last.push_back((request, Finished { id, ..finished }));
    }

    /// The newest first.
    pub fn newest_first(&self) -> Vec<Finished> {
        self.last.iter().rev().map(|(_, finished)| finished.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tributary_engine::Stage;

    use super::*;

    fn ended(request: u64, stage: Option<Stage>) -> Finished {
        Finished::unanswered(&Ended {
            request,
            method: "infoflow",
            stage,
            ttft: None,
            total: Duration::from_millis(2),
            prompt_tokens: 9,
            generated_tokens: 0,
        })
    }

    #[test]
    fn the_last_are_kept_by_their_names() {
        let mut recent = Recent::default();
        recent.named(1, "chatcmpl-1");
        recent.finished(ended(1, None), 1);
        recent.finished(ended(2, Some(Stage::Queue)), 2);
        recent.named(2, "chatcmpl-2");
        let seen = recent.newest_first();
        let ids: Vec<(&str, &str)> = seen.iter().map(|finished| (finished.id.as_str(), finished.outcome)).collect();
        assert_eq!(ids, [("chatcmpl-2", "cancelled"), ("chatcmpl-1", "failed")]);
        assert_eq!((seen[0].total_ms, seen[0].prompt_tokens, seen[0].ttft_ms), (2.0, 9, None));
        for number in 3..200 {
            recent.finished(ended(number, None), number);
        }
        let seen = recent.newest_first();
        assert_eq!((seen.len(), seen[0].id.as_str(), seen[49].id.as_str()), (50, "199", "150"));
        assert!(recent.names.is_empty(), "no name is kept for longer than its request");
    }
}
