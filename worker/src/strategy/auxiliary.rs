//! Evidence of auxiliary models: the attention of the last rows of their own prompts, or of the
//! rows that write tokens after them, mapped to numbers of the main model's context rows. Rank 0
//! runs them on threads of its host, concurrently with its own work, and sends the result to the
//! other ranks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use tributary_kernels::{Threads, cuda, tiles};
use tributary_model::{Model, Progress};
use tributary_protocol::{Auxiliary, AuxiliaryPrompt, Phase, Plan, Refusal};

use crate::attention::{Reading, Watched, Writing};
use crate::context::{Context, Math};
use crate::error::{Error, Result};
use crate::models::Models;

/// Interval at which a rank that waits for its auxiliary models checks their progress.
const LOOK: Duration = Duration::from_millis(20);

/// For each auxiliary model, one number a context row; or the request's own failure, which all
/// ranks know.
pub(super) type Readings = Result<Vec<Vec<f32>>>;

/// An auxiliary model of a plan with all that it needs to run on another thread.
struct Reader<'a> {
    model: &'a dyn Model,
    math: Math,
    auxiliary: &'a Auxiliary,
}

/// Result of the readers' thread, and its time in seconds.
type Found = (Result<Vec<Vec<Vec<f32>>>>, f64);

/// Does `work` on this rank and, concurrently on rank 0, runs the auxiliary models that the plan
/// lists, with as many threads as the rank has.
/// Time that they take beyond `work` is a phase of its own, in which the other ranks wait.
///
/// The readings are, for each model, one number a context row: the attention of the query's rows in
/// its last layer, mean over them and over heads; or, of a model that writes, what
/// [`Writing::read`] gives. The softmax is over all that a row sees of its own prompt, so a chunk's
/// readings also tell the chunk's share of the prompt's attention. The columns of prefix and query
/// are then dropped.
///
/// # Errors
/// Returns an error if `work`, a kernel or the communicator fails. Readings that are not finite are
/// the request's failure, on every rank.
pub(super) fn beside<T>(
    cx: &mut Context<'_>,
    plan: &Plan,
    work: impl FnOnce(&mut Context<'_>) -> Result<T>,
) -> Result<(T, Readings)> {
    if plan.auxiliary.is_empty() || plan.budget == 0 {
        return Ok((work(cx)?, Ok(Vec::new())));
    }
    if cx.rank() != 0 {
        let done = work(cx)?;
        cx.enter(Phase::Auxiliary, plan)?;
        return Ok((done, told(cx, None)?));
    }
    let models = cx.models.clone();
    let readers = readers(cx, &models, plan)?;
    let (watched, threads) = (Watched::default(), Threads::beside("auxiliary")?);
    let (done, found) = std::thread::scope(|scope| {
        let (tell, found) = channel();
        let (watched, threads, readers) = (&watched, &threads, &readers);
        let run = move || {
            let since = Instant::now();
            let read = threads.run(|| {
                let steps = Arc::clone(&watched.steps);
                let _telling = tiles::telling(Arc::new(move || {
                    steps.fetch_add(1, Ordering::Relaxed);
                    true
                }));
                readers.iter().map(|reader| reader.read(watched)).collect()
            });
            // If the rank has failed meanwhile, the channel has no receiver.
            let _ = tell.send((read, since.elapsed().as_secs_f64()));
        };
        let spawned = std::thread::Builder::new().name("auxiliary".to_owned()).spawn_scoped(scope, run);
        spawned.map_err(|error| Error::Comm(tributary_comm::Error::Start(format!("no thread to read on: {error}"))))?;
        let ended = EndOf(watched);
        let done = work(cx)?;
        cx.enter(Phase::Auxiliary, plan)?;
        let found = wait(&found, watched, &cx.math.progress);
        drop(ended);
        Ok::<_, Error>((done, found))
    })?;
    let (read, seconds) = match found {
        // The other ranks wait for the readings: they learn of the cancellation instead.
        Err(Error::Cancelled) => (Err(Error::Cancelled), 0.0),
        found => found?,
    };
    cx.auxiliary_s = seconds;
    let read = read.and_then(|read| finite(plan, read));
    Ok((done, told(cx, Some(read))?))
}

/// Ends the readers' thread, in every state of the rank.
struct EndOf<'a>(&'a Watched);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Relaxed);
    }
}

/// Waits for the readers; their progress counts as the rank's. Meanwhile checks for a cancellation
/// of the request.
fn wait(found: &Receiver<Found>, watched: &Watched, progress: &Progress) -> Result<Found> {
    let mut seen = 0;
    loop {
        match found.recv_timeout(LOOK) {
            Ok(found) => return Ok(found),
            Err(RecvTimeoutError::Disconnected) => return Err(Error::Bug("the thread of auxiliary models panicked")),
            Err(RecvTimeoutError::Timeout) => {
                let steps = watched.steps.load(Ordering::Relaxed);
                if steps != seen {
                    progress.tile();
                    seen = steps;
                }
                progress.look_up()?;
            }
        }
    }
}

fn readers<'r>(cx: &Context<'_>, models: &'r Models<'_>, plan: &'r Plan) -> Result<Vec<Reader<'r>>> {
    let reader = |auxiliary: &'r Auxiliary| {
        let model = models.auxiliary(&auxiliary.model).ok_or(Error::Bug("rank 0 lacks a model that all ranks know"))?;
        let math = cx.math_of(model, auxiliary.most_rows())?;
        // The rank's thread reports its steps: a rank that waits for others must not look as if it
        // computes.
        Ok(Reader { model, math: Math { progress: Progress::default(), ..math }, auxiliary })
    };
    plan.auxiliary.iter().map(reader).collect()
}

impl Reader<'_> {
    /// One number a row before its query's, for each prompt.
    fn read(&self, watched: &Watched) -> Result<Vec<Vec<f32>>> {
        self.auxiliary.prompts.iter().map(|prompt| self.read_prompt(prompt, watched)).collect()
    }

    fn read_prompt(&self, prompt: &AuxiliaryPrompt, watched: &Watched) -> Result<Vec<f32>> {
        if self.auxiliary.written > 0 {
            return self.read_writing(prompt, watched);
        }
        let rows = self.model.embed(&prompt.ids)?;
        let read = Reading::of(self.model, self.math.clone(), rows, prompt.query, watched)?;
        let read = cuda::download(&read)?.to_vec1::<f32>()?;
        assert_eq!(read.len(), prompt.ids.len(), "readings of an auxiliary model's rows");
        Ok(read[..prompt.stands_for.len()].iter().map(|sum| sum / prompt.query as f32).collect())
    }

    /// The same by the rows that write tokens, up to the end of the answer.
    fn read_writing(&self, prompt: &AuxiliaryPrompt, watched: &Watched) -> Result<Vec<f32>> {
        let (most, config) = (self.auxiliary.written as usize, self.model.config());
        let mut writing = Writing::new(self.math.clone(), prompt.ids.len(), most).reading(watched);
        writing.tokens(self.model, &prompt.ids, (most, config.vocab), &config.eos)?;
        let mut read = writing.read()?;
        assert_eq!(read.len(), prompt.ids.len(), "readings of an auxiliary model's rows");
        read.truncate(prompt.stands_for.len());
        Ok(read)
    }
}

/// The readings of the main model's rows.
fn finite(plan: &Plan, read: Vec<Vec<Vec<f32>>>) -> Readings {
    if !read.iter().flatten().flatten().all(|reading| reading.is_finite()) {
        return Err(Error::NotFinite { what: "an auxiliary model's readings", rank: 0 });
    }
    let mapped = |(auxiliary, read): (&Auxiliary, Vec<Vec<f32>>)| {
        auxiliary.mapped(&read, plan.prefix_tokens() as u32, plan.context_rows())
    };
    Ok(plan.auxiliary.iter().zip(read).map(mapped).collect())
}

/// Rank 0's readings on every rank. A failure of the request itself is sent to all; any other one
/// ends the group.
fn told(cx: &mut Context<'_>, read: Option<Readings>) -> Result<Readings> {
    // Without a refusal it was cancelled.
    let told: Option<std::result::Result<Vec<Vec<f32>>, Option<Refusal>>> = match read {
        Some(Ok(read)) => Some(Ok(read)),
        Some(Err(Error::Cancelled)) => Some(Err(None)),
        Some(Err(error)) if error.is_the_requests() => Some(Err(Some(error.refusal()))),
        Some(Err(error)) => return Err(error),
        None => None,
    };
    let bytes = told.map(|told| tributary_protocol::encode(&told)).transpose()?;
    let read: std::result::Result<Vec<Vec<f32>>, Option<Refusal>> =
        tributary_protocol::decode(&cx.comm.broadcast_bytes(0, bytes)?)?;
    Ok(read.map_err(|refusal| refusal.map_or(Error::Cancelled, Error::Refused)))
}
