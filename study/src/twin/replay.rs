//! A trace on several groups: each request goes to the group with the fewest requests in flight, in
//! turn among equals.

use tributary_charts::statistics::{percentile, sorted};
use tributary_load::TraceRequest;

use super::group::{Answered, Group, Outcome, Usage};
use super::service::Service;
use crate::error::Result;

/// A replay's end.
#[derive(Debug, Clone, PartialEq)]
pub struct Replayed {
    /// The end of each request, in the trace's order.
    pub outcomes: Vec<Outcome>,
    /// Each group's time by use.
    pub usage: Vec<Usage>,
    /// Seconds from the first request to the last token.
    pub seconds: f64,
    /// Number of entries that went from ranks' memories.
    pub evicted: u64,
    /// Most bytes in a rank's memory at the end.
    pub cached_bytes: u64,
}

impl Replayed {
    /// The answered requests.
    pub fn answered(&self) -> impl Iterator<Item = &Answered> {
        self.outcomes.iter().filter_map(|outcome| match outcome {
            Outcome::Answered(answered) => Some(answered),
            _ => None,
        })
    }

    /// Number of requests that ended like this.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.outcomes.iter().filter(|other| **other == outcome).count()
    }

    /// Times to first token in ascending order.
    pub fn ttft_s(&self) -> Vec<f64> {
        sorted(&self.answered().map(|answered| answered.queue_s + answered.prefill_s).collect::<Vec<_>>())
    }

    /// A percentile of the time to first token, and the same of requests without their wait; none
    /// if none was answered.
    pub fn loaded_and_alone_s(&self, share: f64) -> Option<(f64, f64)> {
        let loaded = self.ttft_s();
        let alone = sorted(&self.answered().map(|answered| answered.prefill_s).collect::<Vec<_>>());
        (!loaded.is_empty()).then(|| (percentile(&loaded, share), percentile(&alone, share)))
    }

    /// Shares of the groups' time in prefills and in steps of decoding.
    pub fn busy(&self) -> (f64, f64) {
        let all_s = (self.seconds * self.usage.len() as f64).max(f64::MIN_POSITIVE);
        let share = |of: fn(&Usage) -> f64| self.usage.iter().map(of).sum::<f64>() / all_s;
        (share(|usage| usage.prefill_s), share(|usage| usage.decode_s))
    }
}

/// Replays requests on a number of groups, their times divided by `speed`.
///
/// # Errors
/// Returns an error if the settings of the service cannot be; requests that cannot be answered are
/// in the result.
pub fn replay(service: &Service, requests: &[TraceRequest], (groups, speed): (usize, f64)) -> Result<Replayed> {
    let mut groups: Vec<Group<'_>> = (0..groups).map(|_| Group::new(service)).collect();
    let mut turn = 0;
    for (number, request) in requests.iter().enumerate() {
        let at_s = request.at_s / speed;
        groups.iter_mut().try_for_each(|group| group.advance(at_s))?;
        let count = groups.len();
        let in_turn = (0..count).map(|step| (turn + step) % count);
        let chosen = in_turn.min_by_key(|&group| groups[group].in_flight(at_s)).expect("there is a group");
        turn = chosen + 1;
        groups[chosen].submit(number as u64, at_s, service.reading.prompt(request, &service.shape))?;
    }
    groups.iter_mut().try_for_each(|group| group.advance(f64::INFINITY))?;
    let last_s = requests.last().map_or(0.0, |request| request.at_s / speed);
    let seconds = groups.iter().map(Group::now_s).fold(last_s, f64::max);
    let evicted = groups.iter().map(|group| group.caches().evicted()).sum();
    let cached_bytes = groups.iter().flat_map(|group| group.caches().used_bytes()).max().unwrap_or(0);
    let (usage, ended): (Vec<_>, Vec<_>) = groups.into_iter().map(Group::ended).unzip();
    let mut ended: Vec<(u64, Outcome)> = ended.into_iter().flatten().collect();
    ended.sort_unstable_by_key(|(number, _)| *number);
    assert_eq!(ended.len(), requests.len(), "every request has an end");
    let outcomes = ended.into_iter().map(|(_, outcome)| outcome).collect();
    Ok(Replayed { outcomes, usage, seconds, evicted, cached_bytes })
}
