//! The stand-in for the MPI backend in builds without it: every entry point returns an error that
//! says how to build it.

use crate::group::call::Contribution;
use crate::group::liveness::Liveness;
use crate::group::{Endpoint, GroupMonitor, Member, Patience, Received};
use crate::process::{ProcessGroup, ProcessSettings};
use crate::{Error, Pulse, Result};

#[path = "heartbeats.rs"]
#[allow(dead_code)]
mod heartbeats;
pub use heartbeats::Silent;

/// Name and version of the MPI library.
///
/// # Errors
/// Always returns [`Error::NotBuilt`].
pub fn library_version() -> Result<String> {
    Err(not_built())
}

/// Finds the other ranks.
///
/// # Errors
/// Always returns [`Error::NotBuilt`].
pub fn start(_: ProcessSettings) -> Result<(Seat, ProcessGroup)> {
    Err(not_built())
}

fn not_built() -> Error {
    Error::NotBuilt { backend: "mpi" }
}

/// Nothing is of this type.
#[derive(Debug, Clone, Copy)]
enum Never {}

/// There is none.
pub struct Seat(Never);

/// There is none.
#[derive(Debug, Clone)]
pub struct Ender(Never);

/// There is none.
pub struct MpiEndpoint(Never);

/// There is none.
pub type Mpi = Member<MpiEndpoint>;

impl Seat {
    /// Never called.
    pub fn ender(&self) -> Ender {
        match self.0 {}
    }

    /// Never called.
    pub fn take(self) -> Mpi {
        match self.0 {}
    }
}

impl Mpi {
    /// Never called.
    pub fn receiving_on(self, _: candle_core::Device) -> Self {
        match self.endpoint().0 {}
    }
}

impl Ender {
    /// Never called.
    pub fn end(&self, _: &str, _: u8) -> Error {
        match self.0 {}
    }

    /// Never called.
    pub fn end_in_order(&self, _: &str) {
        match self.0 {}
    }

    /// Never called.
    pub fn ends_in_order(&self) -> bool {
        match self.0 {}
    }

    /// Never called.
    pub fn ended_within(&self, _: std::time::Duration) -> Option<Error> {
        match self.0 {}
    }

    /// Never called.
    pub fn stalled(&self, _: &str) -> Option<Error> {
        match self.0 {}
    }

    /// Never called.
    pub fn is_leaving(&self) -> bool {
        match self.0 {}
    }

    /// Never called.
    pub fn pulses(&self) -> Vec<Pulse> {
        match self.0 {}
    }

    /// Never called.
    pub fn vigil(&self, _: std::time::Duration, _: std::time::Duration) -> Vigil {
        match self.0 {}
    }
}

/// There is none.
pub struct Vigil(Never);

impl Vigil {
    /// Never called.
    pub fn listen(&mut self) -> Vec<Silent> {
        match self.0 {}
    }
}

impl Endpoint for MpiEndpoint {
    fn rank(&self) -> usize {
        match self.0 {}
    }

    fn world(&self) -> usize {
        match self.0 {}
    }

    fn liveness(&self) -> &Liveness {
        match self.0 {}
    }

    fn alive(&self) -> Result<()> {
        match self.0 {}
    }

    fn put(&self, _: u64, _: Contribution) -> Result<()> {
        match self.0 {}
    }

    fn take(&self, _: u64, _: Patience) -> Result<Received> {
        match self.0 {}
    }

    fn kill(&self, _: Error) -> Error {
        match self.0 {}
    }

    fn points(&self) -> &crate::Points {
        match self.0 {}
    }

    fn monitor(&self) -> std::sync::Arc<dyn GroupMonitor> {
        match self.0 {}
    }
}
