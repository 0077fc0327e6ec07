//! The phases of a rank, with their times and the waits for other ranks in each. On a device a
//! phase is the time in which its work runs there, not the time of its submission. The host does
//! not wait for the device until the request is over.

use candle_core::Device;
use tributary_comm::Communicator;
use tributary_kernels::Moment;
use tributary_protocol::{Phase, Span};

use crate::error::Result;

/// A time in which the ranks did other work at a control point of a prefill.
#[derive(Debug)]
pub struct Halt {
    /// Its begin.
    pub since: Moment,
    /// Its end.
    pub until: Moment,
}

impl Halt {
    /// Seconds from `begin` to its begin, and its length.
    fn within(&self, begin: &Moment) -> Result<(f64, f64)> {
        Ok((self.since.seconds_since(begin)?, self.until.seconds_since(&self.since)?))
    }
}

/// Consecutive phases, from the arrival of the plan.
#[derive(Debug)]
pub struct Timeline {
    device: Device,
    begin: Moment,
    open: Option<Open>,
    closed: Vec<Closed>,
}

/// The current phase of the host, with the communicator's lap that counts for it.
#[derive(Debug)]
struct Open {
    phase: Phase,
    since: Moment,
    lap: usize,
}

/// A phase that is over, for the host at least.
#[derive(Debug)]
struct Closed {
    phase: Phase,
    since: Moment,
    until: Moment,
    lap: usize,
}

impl Timeline {
    /// Starts now, for work on a device.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn start(device: &Device) -> Result<Self> {
        Ok(Self { device: device.clone(), begin: Moment::now(device)?, open: None, closed: Vec::new() })
    }

    /// Ends the open phase and opens the next one.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn enter(&mut self, phase: Phase, comm: &mut dyn Communicator) -> Result<()> {
        let now = Moment::now(&self.device)?;
        self.close_at(now.clone());
        self.open = Some(Open { phase, since: now, lap: comm.start_lap() });
        Ok(())
    }

    /// Ends the open phase, and returns the communicator's lap that begins with it.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn close(&mut self, comm: &mut dyn Communicator) -> Result<usize> {
        self.close_at(Moment::now(&self.device)?);
        Ok(comm.start_lap())
    }

    fn close_at(&mut self, until: Moment) {
        if let Some(Open { phase, since, lap }) = self.open.take() {
            self.closed.push(Closed { phase, since, until, lap });
        }
    }

    /// The closed phases, without the times of `halts`: these make a phase of their own, if they
    /// came before the first token. Waits until the device has reached the end of the last one.
    /// Then the waits for other ranks are known, each in its own phase.
    ///
    /// # Errors
    /// Returns an error if work on the device has failed.
    pub fn into_spans(self, comm: &mut dyn Communicator, halts: &[Halt]) -> Result<Vec<Span>> {
        if let Some(last) = self.closed.last() {
            last.until.seconds_since(&self.begin)?;
        }
        let laps = comm.laps();
        let halts = halts.iter().map(|halt| halt.within(&self.begin)).collect::<Result<Vec<_>>>()?;
        let mut interleaved: Option<Span> = None;
        let mut spans = Vec::with_capacity(self.closed.len());
        for closed in &self.closed {
            let start_s = closed.since.seconds_since(&self.begin)?;
            let all_s = closed.until.seconds_since(&closed.since)?;
            let of_phase = halts.iter().filter(|(from, _)| (start_s..start_s + all_s).contains(from));
            let halted_s: f64 = of_phase.clone().map(|(_, seconds)| seconds).sum();
            let seconds = (all_s - halted_s).max(0.0);
            // A host may wait at a control point while its device waits in a collective: the two
            // times overlap.
            let waited_s = laps[closed.lap].waited_s().min(seconds);
            spans.push(Span { phase: closed.phase, start_s, seconds, waited_s });
            if let (Some((from, _)), true) = (of_phase.clone().next(), Phase::TO_FIRST_TOKEN.contains(&closed.phase)) {
                let first = Span { phase: Phase::Interleaved, start_s: *from, seconds: 0.0, waited_s: 0.0 };
                interleaved.get_or_insert(first).seconds += halted_s;
            }
        }
        Ok(interleaved.into_iter().chain(spans).collect())
    }
}
