//! Sends orders to the ranks and makes answers from their events. The clock of the time to first
//! token runs here.

mod answer;
mod in_flight;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tributary_comm::CoordinatorLink;
use tributary_protocol::{Event, HandOver, Order, Plan, RankReport, Refusal};

pub use self::answer::{Answer, Clock};
pub use self::in_flight::InFlight;
use crate::{Error, Result};

/// Interval at which the waiting coordinator checks the link. It sets no deadline of its own: the
/// ranks' group ends if a rank is silent or stuck, and reports it over the link, or ends this
/// process too.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// Runs a plan alone on the ranks at the other end of the link, to its last token. Calls `on_event`
/// with each event on arrival, before it is processed. A sequence that is to be kept stays there.
///
/// # Errors
/// Returns [`Error::Refused`] if the request failed and the ranks live on. Returns
/// [`Error::Failed`] with the first cause if a rank failed, [`Error::Link`] if the ranks are gone,
/// and [`Error::Protocol`] if their events are inconsistent: after these the link must not be used
/// again.
pub fn run(
    link: &CoordinatorLink,
    plan: &Arc<Plan>,
    clock: &Clock,
    on_event: &mut dyn FnMut(&Event),
) -> Result<Answer> {
    let mut request = InFlight::new(plan, *clock, Duration::ZERO);
    link.send(Order::Prefill(Arc::clone(plan)))?;
    loop {
        let event = next(link)?;
        on_event(&event);
        match event {
            Event::FirstToken { request: number, drawn } if number == plan.request => request.first_token(&drawn)?,
            Event::Prefilled { request: number, outcome, reports } if number == plan.request => {
                request.prefilled(outcome, reports)?;
                break;
            }
            Event::Refused { request: number, refusal, .. } if number == plan.request => {
                return Err(Error::Refused(refusal));
            }
            other => return Err(unexpected(&other, "the first token")),
        }
    }
    let is_left = request.goes_on() && !plan.keep_sequence;
    while request.goes_on() {
        link.send(Order::Decode(vec![plan.request]))?;
        let event = next(link)?;
        on_event(&event);
        let Event::Stepped { tokens, reports } = event else {
            return Err(Error::Protocol("a step of decoding was due".into()));
        };
        match tokens.as_slice() {
            [(number, Ok(drawn))] if *number == plan.request => request.next_token(drawn, &reports, (0, 1)),
            [(number, Err(refusal))] if *number == plan.request => {
                release(link, vec![plan.request])?;
                return Err(Error::Refused(refusal.clone()));
            }
            _ => return Err(Error::Protocol(format!("a step of {} sequences", tokens.len()))),
        }
    }
    let answer = request.answer()?;
    if is_left {
        release(link, vec![plan.request])?;
    }
    Ok(answer)
}

/// Prefills a plan's chunks ahead of use, alone on the ranks; returns their reports.
///
/// # Errors
/// As [`run`].
pub fn keep(link: &CoordinatorLink, plan: &Arc<Plan>) -> Result<Vec<RankReport>> {
    link.send(Order::Chunks(Arc::clone(plan)))?;
    match next(link)? {
        Event::Kept { request, reports } if request == plan.request => Ok(reports),
        other => Err(unexpected(&other, "the end of a prefill ahead of use")),
    }
}

/// Rows of a layer, none while it has not been computed; or the ranks' refusal.
pub type HandedOver = std::result::Result<Option<Vec<u8>>, Refusal>;

/// Rows of a layer of a sequence that stays on the ranks, or their refusal; none while the layer
/// has not been computed.
///
/// # Errors
/// As [`run`].
pub fn hand_over(link: &CoordinatorLink, wanted: HandOver) -> Result<HandedOver> {
    let request = wanted.request;
    link.send(Order::HandOver(wanted))?;
    match next(link)? {
        Event::HandedOver { request: number, rows } if number == request => Ok(rows),
        other => Err(unexpected(&other, "rows of a sequence")),
    }
}

/// Releases sequences on the ranks.
///
/// # Errors
/// As [`run`].
pub fn release(link: &CoordinatorLink, requests: Vec<u64>) -> Result<()> {
    link.send(Order::Release(requests))?;
    match next(link)? {
        Event::Released { .. } => Ok(()),
        other => Err(unexpected(&other, "the release of a sequence")),
    }
}

/// The next event.
pub(crate) fn next(link: &CoordinatorLink) -> Result<Event> {
    loop {
        if let Some(event) = next_within(link, LOOK)? {
            return Ok(event);
        }
    }
}

/// The next event, if one comes within `time`.
pub(crate) fn next_within(link: &CoordinatorLink, time: Duration) -> Result<Option<Event>> {
    match link.next(time)? {
        Some(Event::Failed { rank, exit_code, cause, .. }) => Err(Error::Failed { rank, exit_code, cause }),
        event => Ok(event),
    }
}

pub(crate) fn unexpected(event: &Event, wanted: &str) -> Error {
    let found = match event {
        Event::FirstToken { .. } => "a first token",
        Event::Prefilled { .. } => "the end of a prefill",
        Event::Halted { .. } => "a halt of a prefill",
        Event::Kept { .. } => "the end of a prefill ahead of use",
        Event::Stepped { .. } => "a step of decoding",
        Event::HandedOver { .. } => "rows of a sequence",
        Event::Released { .. } => "a release",
        Event::Refused { .. } => "a refusal",
        Event::Cancelled { .. } => "the end of a cancelled prefill",
        Event::Failed { .. } => "a failure",
    };
    Error::Protocol(format!("{found} came where {wanted} was due"))
}
