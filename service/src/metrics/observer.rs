//! Metrics of the ranks' work as it happens: facts that reports of answered requests lack, or have
//! too late.

use std::time::Duration;

use tributary_engine::{Breakage, Ended, Observer, Occupation, Prefilled, Tally};
use tributary_protocol::{DeviceMemory, RankReport, StepReport, Traffic};

use super::labels::failure;
use super::recent::Finished;
use super::{Metrics, of, tiers};

impl Observer for Metrics {
    fn prefilled(&self, prefilled: &Prefilled<'_>) {
        let reports = prefilled.reports;
        tiers::record(&self.sheet, prefilled);
        for report in reports {
            let rank = &*report.rank.to_string();
            for (pool, bytes) in pools(report) {
                self.sheet.set(&of::DEVICE_MEMORY_USED, &[rank, pool], bytes as f64);
            }
            for (collective, entry) in report.traffic.entries.iter().filter(|(_, entry)| entry.calls > 0) {
                let mean_s = entry.waited_s / entry.calls as f64;
                self.sheet.observe(&of::COLLECTIVE_DURATION, &[collective.name()], mean_s);
            }
        }
        let mut state = self.lock();
        state.has_failed = false;
        tiers::add(&mut state.totals.tiers, prefilled);
        for report in reports {
            if let Some(used_bytes) = state.totals.used_bytes.get_mut(report.rank) {
                *used_bytes = report.chunk_cache.used_bytes;
            }
        }
    }

    fn stepped(&self, reports: &[StepReport], gaps: &[Duration]) {
        let slowest_s = reports.iter().map(|report| report.seconds).fold(0.0, f64::max);
        self.sheet.observe(&of::DECODE_STEP_DURATION, &[], slowest_s);
        gaps.iter().for_each(|gap| self.sheet.observe(&of::INTER_TOKEN_LATENCY, &[], gap.as_secs_f64()));
    }

    fn moved(&self, rank: usize, traffic: &Traffic) {
        let rank = &*rank.to_string();
        for (collective, entry) in &traffic.entries {
            for (direction, bytes) in [("sent", entry.sent_bytes), ("received", entry.received_bytes)] {
                self.sheet.count(&of::COLLECTIVE_BYTES, &[rank, collective.name(), direction], bytes);
            }
        }
    }

    fn ended(&self, ended: &Ended) {
        if let Some(stage) = ended.stage {
            self.sheet.count(&of::REQUESTS_CANCELLED, &[stage.name()], 1);
        }
        self.lock().recent.finished(Finished::unanswered(ended), ended.request);
    }

    fn spent(&self, on: Occupation, time: Duration) {
        self.sheet.add_seconds(&of::GROUP_SECONDS, &[on.name()], time.as_secs_f64());
    }

    fn opened(&self, tally: Tally) {
        self.lock().tally = Some(tally);
    }

    fn failed(&self, exit_code: u8) {
        self.sheet.count(&of::RANK_FAILURES, &[failure(exit_code)], 1);
        self.lock().has_failed = true;
    }

    fn broken(&self, breakage: Breakage) {
        match breakage {
            Breakage::Call { collective, exit_code } => {
                self.sheet.count(&of::COLLECTIVE_FAILURES, &[collective.name(), failure(exit_code)], 1);
            }
            Breakage::Message => self.sheet.count(&of::INTEGRITY_FAILURES, &["message", "corrupt"], 1),
        }
    }
}

/// The pools of a rank's memory that are in use.
fn pools(report: &RankReport) -> Vec<(&'static str, u64)> {
    match report.device_memory {
        Some(DeviceMemory { used_bytes, reserved_bytes, message_bytes, .. }) => {
            vec![("tensors", used_bytes), ("reserved", reserved_bytes), ("messages", message_bytes)]
        }
        None => vec![("process", report.resident_bytes)],
    }
}
