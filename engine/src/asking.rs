//! Many requests against one engine, some at a time: each is handed in by a thread that waits for
//! its answer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};

use tributary_coordinator::Clock;
use tributary_coordinator::conductor::{Update, Work};
use tributary_coordinator::scheduler::Limits;

use crate::answered::Answered;
use crate::client::Client;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::question::Question;
use crate::run_config::RunConfig;

/// Updates of a request that wait to be read: nothing is done with tokens here, so they never pile
/// up.
const BUFFERED: usize = 4096;

/// Is shown an answer, with the number of its question.
pub type Show<'a, E> = dyn FnMut(usize, &Answered) -> Result<(), E> + Send + 'a;

/// Answers questions, at most `concurrency` of them at a time, and hands each answer to `show` in
/// the order of the questions. The first failure ends it.
///
/// # Errors
/// Returns an error if the request is refused, if a rank fails, or if `show` fails.
pub fn ask_all<E: From<Error> + Send>(
    engine: &mut Engine<'_>,
    run_config: &RunConfig,
    questions: &[Question],
    concurrency: usize,
    show: &mut Show<'_, E>,
) -> Result<(), E> {
    let (client, inbox) = engine.client(run_config);
    let next = AtomicUsize::new(0);
    let (tell, told) = channel();
    let (conducted, shown) = std::thread::scope(|scope| {
        for _ in 0..concurrency.min(questions.len()) {
            let (client, tell, next) = (client.clone(), tell.clone(), &next);
            scope.spawn(move || ask(&client, questions, next, &tell));
        }
        drop((client, tell));
        let limits = Limits { max_running: concurrency, ..Limits::default() };
        let showing = scope.spawn(|| show_in_order(told, show, &|| next.store(questions.len(), Ordering::Relaxed)));
        let conducted = engine.conduct(run_config, limits, inbox);
        (conducted, showing.join())
    });
    // The ranks' failure is the cause of the requests'.
    conducted?;
    shown.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Shows answers in the order of their questions. After the first failure nothing is shown any
/// more, and `stop` is called.
fn show_in_order<E: From<Error>>(
    told: Receiver<(usize, Result<Answered>)>,
    show: &mut Show<'_, E>,
    stop: &dyn Fn(),
) -> Result<(), E> {
    let (mut early, mut due, mut ended) = (BTreeMap::new(), 0, Ok(()));
    // All of them are taken: the asking threads must not wait for this one.
    for (index, answered) in told {
        match (answered, &ended) {
            (_, Err(_)) => continue,
            (Err(error), Ok(())) => ended = Err(error.into()),
            (Ok(answered), Ok(())) => {
                early.insert(index, answered);
            }
        }
        while ended.is_ok()
            && let Some(answered) = early.remove(&due)
        {
            ended = show(due, &answered);
            due += 1;
        }
        if ended.is_err() {
            stop();
        }
    }
    ended
}

/// Asks one question after the other.
fn ask(client: &Client, questions: &[Question], next: &AtomicUsize, tell: &Sender<(usize, Result<Answered>)>) {
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(question) = questions.get(index) else { return };
        // The receiver lives as long as any thread asks.
        let _ = tell.send((index, answer(client, question)));
    }
}

/// The answer to a question.
fn answer(client: &Client, question: &Question) -> Result<Answered> {
    let clock = Clock::start();
    let prepared = client.prepare_question(question)?;
    let (sink, updates) = sync_channel(BUFFERED);
    let asked = (prepared, client.settings().clone());
    let submitted = client.desk().submit(Work::Answer, asked, (clock, None), Box::new(sink));
    submitted.map_err(Error::Request)?;
    for update in updates {
        match update {
            Update::Begun(_) | Update::FirstToken(..) | Update::Token(_) | Update::Kept(_) => {}
            Update::Done(done) => return client.answered(*done),
            Update::Failed(failure) => return Err(Error::Request(failure)),
        }
    }
    Err(Error::Bug("a bug: a request ended without a word"))
}
