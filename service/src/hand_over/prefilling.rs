//! A prefill for another program: its updates, and the task that holds what it leaves.

use std::sync::Arc;

use tributary_engine::Update;

use super::held::{Ended, Entry, Held, State, new_id};
use super::told::{Facts, FirstToken};
use crate::error::ApiError;
use crate::guard::Asker;
use crate::running::Running;

/// Holds a prefill in a task of its own until it is released. Returns once its plan is known.
///
/// # Errors
/// Returns the failure of a prefill that cannot be planned.
pub async fn begin(mut running: Running, asker: Asker) -> Result<Arc<Entry>, ApiError> {
    let planned = match running.next().await {
        Ok(Update::Begun(planned)) => Ok(planned),
        Ok(Update::Failed(failure)) => Err(failure.into()),
        Ok(_) => Err(ApiError::internal("a bug: a plan was due")),
        Err(error) => Err(error),
    };
    let planned = planned.inspect_err(|_| running.failed())?;
    let (shared, id) = (running.shared.clone(), new_id().inspect_err(|_| running.failed())?);
    // Where chunks are reordered, their places are known when the prefill has ended.
    let (order, ended) = match planned.plan.final_order() {
        Some(order) => (order, None),
        None => {
            let ended = read(&mut running).await.inspect_err(|_| running.failed())?;
            (ended.answered.answer.outcome.order.clone(), Some(Arc::new(ended)))
        }
    };
    // The first time a model's weights may have to be read for their hash.
    let facts =
        tokio::task::block_in_place(|| Facts::new(&shared.client, (&planned.plan, &running.settings), &order, &id));
    let facts = facts.inspect_err(|_| running.failed())?;
    let state = ended.map_or(State::Planned, |ended| State::Done(Some(ended)));
    let entry = Entry::new((&shared.place(), Some(asker)), running.request, (facts, state), &id);
    tokio::spawn(hold(running, Arc::clone(&entry)));
    Ok(entry)
}

/// Reads a prefill to its end.
async fn read(running: &mut Running) -> Result<Ended, ApiError> {
    let mut first = None;
    loop {
        match running.next().await? {
            Update::FirstToken(drawn, _) => first = Some(FirstToken::of(&running.shared.client, &drawn)?),
            Update::Done(done) => {
                let answered = running.shared.client.answered(*done)?;
                running.answered(&answered);
                return Ok(Ended { first, answered });
            }
            Update::Failed(failure) => return Err(failure.into()),
            Update::Begun(_) | Update::Token(_) | Update::Kept(_) => {
                return Err(ApiError::internal("a bug: the end of a prefill was due"));
            }
        }
    }
}

/// Reads a prefill to its end, if it has not been, and holds its keys and values until it is
/// released or expires. A failure is told until it expires.
async fn hold(mut running: Running, entry: Arc<Entry>) {
    let _held = Held { desk: running.shared.client.desk().clone(), request: entry.request };
    let is_planned = matches!(*entry.state.borrow(), State::Planned);
    let is_over = if is_planned {
        tokio::select! {
            done = read(&mut running) => {
                let state = done.map_or_else(State::Failed, |ended| State::Done(Some(Arc::new(ended))));
                if matches!(state, State::Failed(_)) {
                    running.failed();
                }
                entry.is_used();
                entry.state.send_replace(state);
                false
            }
            () = entry.released.notified() => true,
        }
    } else {
        false
    };
    while !is_over && !entry.left().is_zero() {
        tokio::select! {
            () = tokio::time::sleep(entry.left()) => {}
            () = entry.released.notified() => break,
        }
    }
    entry.forget();
}
