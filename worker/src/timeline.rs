//! Which phase a rank was in, when, and how long of it it waited for others. On a device a phase is the time in which its work
//! runs there, not that in which it was given out; nothing waits for the device until the request is over.

use candle_core::Device;
use tributary_comm::Communicator;
use tributary_comm::wire::{Phase, Span};
use tributary_kernels::Moment;

use crate::error::Result;

/// Phases one after the other, from the arrival of the plan on.
#[derive(Debug)]
pub struct Timeline {
    device: Device,
    begin: Moment,
    open: Option<(Phase, Moment, f64)>,
    closed: Vec<Closed>,
}

/// A phase that is over, for the host at least.
#[derive(Debug)]
struct Closed {
    phase: Phase,
    since: Moment,
    until: Moment,
    waited_s: f64,
}

impl Timeline {
    /// Starts now, for work on a device.
    ///
    /// # Errors
    /// The device's.
    pub fn start(device: &Device) -> Result<Self> {
        Ok(Self { device: device.clone(), begin: Moment::now(device)?, open: None, closed: Vec::new() })
    }

    /// Ends the open phase and opens the next one.
    ///
    /// # Errors
    /// The device's.
    pub fn enter(&mut self, phase: Phase, comm: &dyn Communicator) -> Result<()> {
        let now = Moment::now(&self.device)?;
        self.close_at(now.clone(), comm);
        self.open = Some((phase, now, comm.traffic().waited_s()));
        Ok(())
    }

    /// Ends the open phase.
    ///
    /// # Errors
    /// The device's.
    pub fn close(&mut self, comm: &dyn Communicator) -> Result<()> {
        self.close_at(Moment::now(&self.device)?, comm);
        Ok(())
    }

    fn close_at(&mut self, until: Moment, comm: &dyn Communicator) {
        let Some((phase, since, waited_before_s)) = self.open.take() else {
            return;
        };
        let waited_s = comm.traffic().waited_s() - waited_before_s;
        self.closed.push(Closed { phase, since, until, waited_s });
    }

    /// The closed phases. Waits until the device has come to the end of the last.
    ///
    /// # Errors
    /// Work on the device has failed.
    pub fn into_spans(self) -> Result<Vec<Span>> {
        let span = |closed: &Closed| {
            Ok(Span {
                phase: closed.phase,
                start_s: closed.since.seconds_since(&self.begin)?,
                seconds: closed.until.seconds_since(&closed.since)?,
                waited_s: closed.waited_s,
            })
        };
        self.closed.iter().map(span).collect()
    }
}
