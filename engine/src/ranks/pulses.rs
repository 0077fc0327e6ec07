//! Reader of the ranks' signs of life, for observers; it never delays the ranks.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tributary_comm::Pulse;

type Source = Box<dyn Fn() -> Vec<Pulse> + Send>;

/// The ranks' signs of life: those of the group that was started last. Clones look at the same
/// ranks.
#[derive(Clone, Default)]
pub struct Pulses(Arc<Mutex<Option<Source>>>);

impl Pulses {
    /// From now on they are read there.
    pub(super) fn of(&self, source: impl Fn() -> Vec<Pulse> + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(source));
    }

    /// One a rank, in rank order; none before ranks have started.
    pub fn read(&self) -> Vec<Pulse> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or_else(Vec::new, |source| source())
    }
}

impl fmt::Debug for Pulses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.read()).finish()
    }
}
