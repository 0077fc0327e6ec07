//! Limits of a service's scheduler as options give them, for `serve` and for the replay of a trace.

use std::time::Duration;

use clap::ValueEnum;
use tributary_coordinator::scheduler::{Limits, Policy};

use crate::failure::usage;

/// Decoding's largest share of the time beside a prefill, which still has to get on.
const MAX_SHARE: f64 = 0.9;

/// Longest time for which a prefill may be said to compute without a halt.
const MAX_GAP: Duration = Duration::from_mins(1);

/// Default of `--max-gap` in milliseconds.
pub const GAP_MS: u64 = 250;

/// Order in which waiting requests are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PolicyChoice {
    /// Clients take turns by the tokens of their prompts; each client's requests go in order of
    /// arrival
    Fifo,
    /// The request with the fewest tokens to compute goes first; one older than --max-age goes
    /// before all younger ones. Clients take no turns: up to that age, short requests of one client
    /// keep another's long ones waiting
    Shortest,
}

/// The policy of `--policy` and `--max-age`.
pub fn policy(choice: PolicyChoice, max_age: Option<u64>) -> anyhow::Result<Policy> {
    match (choice, max_age.map(Duration::from_secs)) {
        (PolicyChoice::Fifo, None) => Ok(Policy::Fifo),
        (PolicyChoice::Shortest, Some(max_age)) => Ok(Policy::Shortest { max_age }),
        (PolicyChoice::Shortest, None) => {
            Err(usage("--policy shortest: long requests could wait for ever; add --max-age SECONDS"))
        }
        (PolicyChoice::Fifo, Some(max_age)) => {
            Err(usage(format!("--max-age {}: only with --policy shortest", max_age.as_secs())))
        }
    }
}

/// These limits, if the options that they come from are sound.
pub fn checked(limits: Limits) -> anyhow::Result<Limits> {
    let named = [
        ("--max-prefill-burst", limits.max_prefill_burst),
        ("--max-running", limits.max_running),
        ("--max-waiting", limits.max_waiting),
    ];
    if let Some((name, _)) = named.iter().find(|(_, number)| *number == 0) {
        return Err(usage(format!("{name} 0: must be at least 1")));
    }
    if !(0.0..=MAX_SHARE).contains(&limits.decode_share) {
        return Err(usage(format!("--decode-share {}: must be from 0 to {MAX_SHARE}", limits.decode_share)));
    }
    if limits.max_gap > MAX_GAP {
        let (gap, most) = (limits.max_gap.as_millis(), MAX_GAP.as_millis());
        return Err(usage(format!("--max-gap {gap}: must be at most {most} ms")));
    }
    Ok(limits)
}
