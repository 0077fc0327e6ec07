//! Reads of held sequences that wait for their order.

use std::collections::VecDeque;

use super::desk::{Read, RequestFailure};

/// Maximum number of reads that wait.
const MOST: usize = 4096;

/// Reads that wait for their order, the oldest first.
#[derive(Default)]
pub(super) struct Reads(pub(super) VecDeque<Read>);

impl Reads {
    /// Adds one, if there is room for it.
    pub(super) fn add(&mut self, read: Read) {
        self.0.retain(|read| read.waits());
        match self.0.len() {
            MOST.. => read.fails(RequestFailure::Busy { waiting: MOST }),
            _ => self.0.push_back(read),
        }
    }

    /// Ends all of them.
    pub(super) fn fail(&mut self, why: &RequestFailure) {
        self.0.drain(..).for_each(|read| read.fails(why.clone()));
    }
}
