//! Limits of a service's scheduler as options give them, for `serve` and for the replay of a trace.

use std::time::Duration;

use tributary_coordinator::scheduler::Limits;

use crate::failure::usage;

/// Decoding's largest share of the time beside a prefill, which still has to get on.
const MAX_SHARE: f64 = 0.9;

/// Longest time for which a prefill may be said to compute without a halt.
const MAX_GAP: Duration = Duration::from_mins(1);

/// Default of `--max-gap` in milliseconds.
pub const GAP_MS: u64 = 250;

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
