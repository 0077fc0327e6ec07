//! A communicator in several hands of one thread: of a prefill, and of what runs at its control
//! points while it still holds the communicator.

use std::cell::RefCell;
use std::time::Duration;

use candle_core::Tensor;
use tributary_protocol::Phase;

use crate::{Aside, Communicator, KeptFree, Liveness, Pending, Points, Result, Start, Traffic};

/// A handle on a rank's communicator. Clones are handles on the same one; each call is a call of
/// that one.
#[derive(Clone, Copy)]
pub struct Shared<'a, 'c>(&'a RefCell<&'c mut dyn Communicator>);

impl<'a, 'c> Shared<'a, 'c> {
    /// A handle on this communicator.
    pub fn new(communicator: &'a RefCell<&'c mut dyn Communicator>) -> Self {
        Self(communicator)
    }
}

impl Communicator for Shared<'_, '_> {
    fn rank(&self) -> usize {
        self.0.borrow().rank()
    }

    fn size(&self) -> usize {
        self.0.borrow().size()
    }

    fn liveness(&self) -> Liveness {
        self.0.borrow().liveness()
    }

    fn points(&self) -> Points {
        self.0.borrow().points()
    }

    fn kept_free(&self) -> KeptFree {
        self.0.borrow().kept_free()
    }

    fn message_bytes(&self) -> u64 {
        self.0.borrow().message_bytes()
    }

    fn set_deadline(&mut self, phase: Phase, deadline: Duration) {
        self.0.borrow_mut().set_deadline(phase, deadline);
    }

    fn start_together(&mut self, starts: &[Start<'_>]) -> Result<Vec<Pending>> {
        self.0.borrow_mut().start_together(starts)
    }

    fn wait(&mut self, pending: Pending) -> Result<Vec<Tensor>> {
        self.0.borrow_mut().wait(pending)
    }

    fn finish_started(&mut self) -> Result<()> {
        self.0.borrow_mut().finish_started()
    }

    fn broadcast_bytes(&mut self, root: usize, bytes: Option<Vec<u8>>) -> Result<Vec<u8>> {
        self.0.borrow_mut().broadcast_bytes(root, bytes)
    }

    fn gather_bytes(&mut self, root: usize, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        self.0.borrow_mut().gather_bytes(root, bytes)
    }

    fn barrier(&mut self) -> Result<()> {
        self.0.borrow_mut().barrier()
    }

    fn abort(&mut self, cause: &str, exit_code: u8) {
        self.0.borrow_mut().abort(cause, exit_code);
    }

    fn start_lap(&mut self) -> usize {
        self.0.borrow_mut().start_lap()
    }

    fn laps(&mut self) -> Vec<Traffic> {
        self.0.borrow_mut().laps()
    }

    fn reset_traffic(&mut self) {
        self.0.borrow_mut().reset_traffic();
    }

    fn set_aside(&mut self) -> Aside {
        self.0.borrow_mut().set_aside()
    }

    fn take_up(&mut self, aside: Aside) {
        self.0.borrow_mut().take_up(aside);
    }
}
