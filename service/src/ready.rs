//! Whether the service can be given requests: its ranks live, and the last self-test was right.
//!
//! The self-test is a small request of fixed text. At the start every exact method must draw the
//! same tokens for it, those that spread it over all ranks and the one that does not. After a time
//! without requests they must draw them again. After a token between two logits that rounding could
//! swap, later tokens may differ and are not compared.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tributary_coordinator::{ChatOptions, Document, Message};
use tributary_engine::{Client, Clock, Conversation, NotTaken, RequestFailure, Sink, Update, Work};
use tributary_protocol::{Claim, METHODS, Method, Sampling};

/// Interval of looks whether requests run.
const LOOK: Duration = Duration::from_secs(1);

/// Tokens that a self-test draws.
const TOKENS: usize = 4;

/// Below this margin ([`tributary_protocol::DrawnToken::margin`]) rounding may decide which token
/// is drawn.
const NEAR_TIE: f32 = 1e-4;

/// Documents of a self-test: long enough that each rank has rows of them.
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

/// Receiver of a self-test's updates.
struct Updates(mpsc::UnboundedSender<Update>);

impl Sink for Updates {
    fn take(&mut self, update: Update) -> Result<(), NotTaken> {
        self.0.send(update).map_err(|_| NotTaken::Gone)
    }
}

/// Why a self-test came to no right end.
enum Failure {
    /// As many requests wait as may: it is no time for tests.
    NotNow,
    /// It was wrong, and how.
    Wrong(String),
}

/// Tests at the start, and after each `interval` without requests; again soon after a test that was
/// not right or not taken. An interval of zero is no test, and always ready. It ends when the
/// service drains.
pub async fn keep_testing(
    client: Client,
    interval: Duration,
    readiness: watch::Sender<Readiness>,
    draining: watch::Receiver<bool>,
) {
    if interval.is_zero() {
        readiness.send_replace(Readiness::Ready);
        return;
    }
    let mut expected = None;
    while !*draining.borrow() {
        match test(&client, &mut expected).await {
            Ok(()) => {
                readiness.send_replace(Readiness::Ready);
                idle(&client, interval, &draining).await;
            }
            Err(failure) => {
                if let Failure::Wrong(reason) = failure {
                    readiness.send_replace(Readiness::Wrong(reason));
                }
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

/// Ends when nothing has been asked for this time, or the service drains.
async fn idle(client: &Client, interval: Duration, draining: &watch::Receiver<bool>) {
    let mut since = Instant::now();
    while since.elapsed() < interval && !*draining.borrow() {
        tokio::time::sleep(LOOK.min(interval)).await;
        if client.desk().waiting() + client.desk().running() > 0 {
            since = Instant::now();
        }
    }
}

/// Whether every exact method draws the expected tokens; without expected ones, those of the first
/// method are.
async fn test(client: &Client, expected: &mut Option<Drawn>) -> Result<(), Failure> {
    for method in METHODS.into_iter().filter(|method| method.claim == Claim::Exact) {
        let wrong = |reason: String| Failure::Wrong(format!("{}: {reason}", method.name));
        let drawn = draw(client, method).await.map_err(|failure| match failure {
            Failure::Wrong(reason) => wrong(reason),
            Failure::NotNow => Failure::NotNow,
        })?;
        let expected = expected.get_or_insert_with(|| drawn.clone());
        compare(&drawn, expected).map_err(wrong)?;
    }
    Ok(())
}

/// Answers the self-test by this method.
async fn draw(client: &Client, method: &'static Method) -> Result<Drawn, Failure> {
    let wrong = |reason: &dyn std::fmt::Display| Failure::Wrong(reason.to_string());
    let conversation = Conversation {
        documents: DOCUMENTS.map(Document::of_text).into(),
        messages: vec![Message::new("user", QUESTION)],
        options: ChatOptions::default(),
    };
    let preparing = client.clone();
    let prepared = tokio::task::spawn_blocking(move || preparing.prepare(&conversation)).await;
    let prepared = prepared.map_err(|error| wrong(&error))?.map_err(|error| wrong(&error))?;
    let mut settings = client.settings().clone();
    (settings.method, settings.ratio, settings.reorder, settings.exchange) = (method, None, None, None);
    (settings.max_tokens, settings.keep_chunks) = (TOKENS, false);
    (settings.reuse, settings.reuses_query) = (0.0, false);
    settings.sampling = Sampling::default();
    let settings = settings.without_idle_order().without_idle_compression();
    let (sender, mut updates) = mpsc::unbounded_channel();
    let submitted =
        client.desk().submit(Work::Test, (prepared, settings), (Clock::start(), None), Box::new(Updates(sender)));
    let failed = |failure: RequestFailure| match failure {
        RequestFailure::Busy { .. } => Failure::NotNow,
        other => wrong(&other),
    };
    submitted.map_err(failed)?;
    let mut drawn = Drawn::new();
    while let Some(update) = updates.recv().await {
        match update {
            Update::FirstToken(token, _) | Update::Token(token) => drawn.push((token.token, token.margin)),
            Update::Done(_) => return Ok(drawn),
            Update::Begun(_) | Update::Kept(_) => return Err(wrong(&"a bug: an answer was due, and chunks came")),
            Update::Failed(failure) => return Err(failed(failure)),
        }
    }
    Err(wrong(&"its ranks are gone"))
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
