//! A rank's place in a group of this run, for commands that make calls of their own.

use std::ops::{Deref, DerefMut};

use candle_core::Device;
use tributary_comm::{Communicator, local, mpi};

use super::watchdog::Watchdog;
use crate::carrier::Carrier;

/// A place that no thread has taken yet.
pub struct Seat(Kind);

enum Kind {
    Thread(local::Seat),
    Process(mpi::Seat, Watchdog),
}

impl Seat {
    /// Seat of a rank that is a thread.
    pub(super) fn of_thread(seat: local::Seat) -> Self {
        Self(Kind::Thread(seat))
    }

    /// Seat of the rank that is this process.
    pub(super) fn of_process(seat: mpi::Seat, watchdog: Watchdog) -> Self {
        Self(Kind::Process(seat, watchdog))
    }

    /// Takes it for the calling thread, whose tensors are on `device`.
    ///
    /// # Errors
    /// Returns an error if NCCL cannot connect the ranks.
    pub fn take(self, carrier: &Carrier, device: &Device) -> tributary_comm::Result<Seated> {
        Ok(match self.0 {
            Kind::Thread(seat) => Seated { comm: carrier.on_thread(seat, device)?, watchdog: None },
            Kind::Process(seat, watchdog) => {
                Seated { comm: carrier.on_process(seat.take(), device)?, watchdog: Some(watchdog) }
            }
        })
    }

    /// Leaves the group in order, without having said anything.
    pub fn leave(self) {
        if let Kind::Process(seat, watchdog) = self.0 {
            watchdog.leave(seat.take());
        }
    }
}

/// A rank on the thread that took its seat.
pub struct Seated {
    comm: Box<dyn Communicator>,
    watchdog: Option<Watchdog>,
}

impl Seated {
    /// Leaves the group in order. A rank that is only dropped may count as lost.
    pub fn leave(self) {
        match self.watchdog {
            Some(watchdog) => watchdog.leave(self.comm),
            None => drop(self.comm),
        }
    }
}

impl Deref for Seated {
    type Target = dyn Communicator;

    fn deref(&self) -> &Self::Target {
        &*self.comm
    }
}

impl DerefMut for Seated {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.comm
    }
}
