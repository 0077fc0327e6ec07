//! Whether a study had its machine to itself: times of a machine that others use say little about
//! the program.

use std::time::Instant;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tributary_system::work::{Reading, Work, load_average};

/// Seconds below which the kernel's ticks are too coarse to attribute.
const SHORTEST_S: f64 = 0.25;

/// Load of rank 0's host while a study ran without a break.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Busy {
    /// Seconds that it ran.
    pub wall_s: f64,
    /// Seconds of processors that the study's processes on that host took; absent where the system
    /// does not tell.
    pub cpu_s: Option<f64>,
    /// Load averages of the last minute, of five and of fifteen, before it.
    pub load_before: Option<[f64; 3]>,
    /// The same after it.
    pub load_after: Option<[f64; 3]>,
    /// Share of all processors' time that other processes of that host took, from 0 to 1.
    pub others_share: Option<f64>,
    /// Share of it that other virtual machines took (steal time).
    pub stolen_share: Option<f64>,
}

/// Watches the host's load from now on.
pub struct Watch {
    began: Instant,
    load_before: Option<[f64; 3]>,
    reading: Option<Reading>,
}

impl Watch {
    /// From now on.
    pub fn start() -> Self {
        Self { began: Instant::now(), load_before: load_average(), reading: Reading::now() }
    }

    /// Load until now.
    pub fn seen(&self) -> Busy {
        let wall_s = self.began.elapsed().as_secs_f64();
        let work = self.reading.and_then(|earlier| Reading::now()?.since(&earlier));
        Self::told(wall_s, work, (self.load_before, load_average()))
    }

    fn told(wall_s: f64, work: Option<Work>, (load_before, load_after): (Option<[f64; 3]>, Option<[f64; 3]>)) -> Busy {
        let shares = work.filter(|_| wall_s >= SHORTEST_S);
        Busy {
            wall_s,
            cpu_s: work.map(|work| work.own_s),
            load_before,
            load_after,
            others_share: shares.map(|work| work.others_share),
            stolen_share: shares.map(|work| work.stolen_share),
        }
    }
}

impl Busy {
    /// The share of the processors that was not there for the study.
    pub fn taken(&self) -> f64 {
        self.others_share.unwrap_or(0.0) + self.stolen_share.unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_moment_are_not_told() {
        let work = Some(Work { own_s: 0.02, others_share: 0.5, stolen_share: 0.0 });
        let short = Watch::told(0.03, work, (None, None));
        assert_eq!((short.cpu_s, short.others_share), (Some(0.02), None));
        assert_eq!(Watch::told(2.0, work, (None, None)).others_share, Some(0.5));
        assert_eq!(Watch::told(2.0, None, (None, None)).cpu_s, None);
        let seen = Watch::start().seen();
        assert!(seen.wall_s >= 0.0 && seen.load_before.is_some() && seen.load_after.is_some(), "{seen:?}");
    }
}
