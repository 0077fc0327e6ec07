//! Whether the service can be given requests: its ranks live, and the last self-test was right.
//!
//! The self-test is a small request of fixed text. At the start every exact method must draw the same tokens for it, those that
//! spread it over all ranks and the one that does not; after a time without requests they must draw them again. Where a token is
//! drawn between two logits that rounding could swap, what follows may differ, and is not compared.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tributary_coordinator::Document;
use tributary_engine::{Client, Clock, Conversation, NotTaken, Sink, Update};
use tributary_protocol::{Claim, Descriptor, METHODS};

/// How often it is looked whether requests run.
const LOOK: Duration = Duration::from_secs(1);

/// Tokens that a self-test draws.
const TOKENS: usize = 4;

/// Below this margin ([`tributary_protocol::DrawnToken::margin`]) rounding may decide which token is drawn.
const NEAR_TIE: f32 = 1e-4;

/// What a self-test reads: long enough that each rank has rows of it.
const DOCUMENTS: [&str; 2] =
    ["the river rises in the hills and runs to the sea .", "a boat goes down the river in two days ."];
const QUESTION: &str = "where does the boat go";

/// Whether requests may come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// No self-test has ended yet.
    Starting,
    /// The last one was right.
    Ready,
    /// The last one was wrong, and how.
    Wrong(String),
}

/// Tokens of a self-test, each with its margin.
type Drawn = Vec<(u32, f32)>;

/// Where the updates of a self-test go.
struct Updates(mpsc::UnboundedSender<Update>);

impl Sink for Updates {
    fn take(&mut self, update: Update) -> Result<(), NotTaken> {
        self.0.send(update).map_err(|_| NotTaken::Gone)
    }
}

/// Tests at the start, and after each `interval` without requests; an interval of zero is no test, and always ready. It ends with the
/// service.
pub async fn keep_testing(client: Client, interval: Duration, readiness: watch::Sender<Readiness>) {
    if interval.is_zero() {
        readiness.send_replace(Readiness::Ready);
        return;
    }
    let mut expected = None;
    let mut idle_since = Instant::now();
    loop {
        let outcome = test(&client, &mut expected).await;
        readiness.send_replace(match outcome {
            Ok(()) => Readiness::Ready,
            Err(reason) => Readiness::Wrong(reason),
        });
        while idle_since.elapsed() < interval {
            tokio::time::sleep(LOOK.min(interval)).await;
            if client.desk().waiting() + client.desk().running() > 0 {
                idle_since = Instant::now();
            }
        }
        idle_since = Instant::now();
    }
}

/// Whether every exact method draws the expected tokens; the first one's, where none are expected yet.
async fn test(client: &Client, expected: &mut Option<Drawn>) -> Result<(), String> {
    for method in METHODS.into_iter().filter(|method| method.claim == Claim::Exact) {
        let drawn = draw(client, method).await.map_err(|reason| format!("{}: {reason}", method.name))?;
        let expected = expected.get_or_insert_with(|| drawn.clone());
        compare(&drawn, expected).map_err(|reason| format!("{}: {reason}", method.name))?;
    }
    Ok(())
}

/// Answers the self-test by this method.
async fn draw(client: &Client, method: &'static Descriptor) -> Result<Drawn, String> {
    let conversation = Conversation {
        documents: DOCUMENTS.map(|text| Document { title: None, text: text.to_owned() }).into(),
        system: None,
        turns: Vec::new(),
        query: QUESTION.to_owned(),
    };
    let preparing = client.clone();
    let prepared = tokio::task::spawn_blocking(move || preparing.prepare(&conversation)).await;
    let prepared = prepared.map_err(|error| format!("a bug: {error}"))?.map_err(|error| error.to_string())?;
    let mut settings = client.settings().clone();
    (settings.method, settings.ratio, settings.reorder, settings.exchange) = (method, None, None, None);
    (settings.max_tokens, settings.reuse, settings.keep_chunks) = (TOKENS, 0.0, false);
    settings.sampling.temperature = 0.0;
    let (sender, mut updates) = mpsc::unbounded_channel();
    let submitted = client.desk().submit(prepared, settings, Clock::start(), Box::new(Updates(sender)));
    submitted.map_err(|failure| failure.to_string())?;
    let mut drawn = Drawn::new();
    while let Some(update) = updates.recv().await {
        match update {
            Update::FirstToken(token, _) | Update::Token(token) => drawn.push((token.token, token.margin)),
            Update::Done(_) => return Ok(drawn),
            Update::Kept(_) => return Err("a bug: an answer was due, and chunks came".to_owned()),
            Update::Failed(failure) => return Err(failure.to_string()),
        }
    }
    Err("its ranks are gone".to_owned())
}

/// Whether tokens are those that are expected, as far as rounding decides none of them.
fn compare(drawn: &[(u32, f32)], expected: &[(u32, f32)]) -> Result<(), String> {
    for (place, (one, other)) in drawn.iter().zip(expected).enumerate() {
        if one.0 != other.0 && one.1.min(other.1) >= NEAR_TIE {
            return Err(format!("the self-test drew token {} at place {place}, and not {}", one.0, other.0));
        }
        if one.0 != other.0 {
            return Ok(());
        }
    }
    if drawn.len() != expected.len() {
        return Err(format!("the self-test drew {} tokens, and not {}", drawn.len(), expected.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_ties_may_differ() {
        let expected = [(5, 0.3), (7, 0.00001), (9, 0.2)];
        assert_eq!(compare(&expected, &expected), Ok(()));
        assert_eq!(compare(&[(5, 0.3), (8, 0.00002), (1, 0.4)], &expected), Ok(()));
        let wrong = compare(&[(6, 0.3), (7, 0.00001), (9, 0.2)], &expected).expect_err("another token");
        assert_eq!(wrong, "the self-test drew token 6 at place 0, and not 5");
        let short = compare(&expected[..2], &expected).expect_err("a token is missing");
        assert_eq!(short, "the self-test drew 2 tokens, and not 3");
    }
}
