//! The sequences in decoding, and the orders about them: between two prefills, and where a prefill
//! halts at a control point.

use std::collections::BTreeMap;
use std::time::Duration;

use tributary_comm::{Communicator, Shared, WorkerLink};
use tributary_kernels::{Kernels, Moment};
use tributary_model::{LayerAttention, Progress};
use tributary_protocol::{Continues, Event, Order, Phase, Plan};

use super::messages::{gather, tell};
use crate::error::{Error, Result};
use crate::models::Models;
use crate::sequence::{Sequence, Turned};
use crate::timeline::Halt;

/// Interval of rank 0's ticks while it has no order.
const TICK: Duration = Duration::from_secs(1);

/// A rank's sequences in decoding, with all that a step of them needs.
pub(super) struct Decoding<'a, 'c> {
    pub(super) models: Models<'a>,
    pub(super) kernels: Kernels,
    pub(super) comm: Shared<'a, 'c>,
    pub(super) link: Option<&'a WorkerLink>,
    /// Passes no control point.
    pub(super) progress: Progress,
    /// Timeout of collectives.
    pub(super) timeout: Duration,
    /// Every sequence of the group, including those without data on this rank.
    pub(super) sequences: BTreeMap<u64, Sequence>,
    /// Whether the previous order was a step of decoding: only the first of several is logged.
    pub(super) decodes: bool,
    /// The times at which the prefill in progress has halted.
    pub(super) halts: Vec<Halt>,
}

impl<'a, 'c> Decoding<'a, 'c> {
    /// No sequences.
    pub(super) fn new(
        (models, kernels): (Models<'a>, Kernels),
        comm: Shared<'a, 'c>,
        link: Option<&'a WorkerLink>,
        progress: Progress,
        timeout: Duration,
    ) -> Self {
        let (sequences, halts) = (BTreeMap::new(), Vec::new());
        Self { models, kernels, comm, link, progress, timeout, sequences, decodes: false, halts }
    }

    /// The next order, on every rank.
    pub(super) fn next_order(&mut self) -> Result<Order> {
        self.comm.set_deadline(Phase::Idle, self.timeout.max(2 * TICK));
        let order = self.link.map(|link| match link.next(TICK) {
            Ok(Some(order)) => order,
            Ok(None) => Order::Tick,
            Err(_) => Order::Stop,
        });
        self.comm.reset_traffic();
        let bytes = order.as_ref().map(tributary_protocol::encode).transpose()?;
        let bytes = self.comm.broadcast_bytes(0, bytes)?;
        // Rank 0 keeps its own, which has the pixels of pictures.
        order.map_or_else(|| Ok(tributary_protocol::decode(&bytes)?), Ok)
    }

    /// Carries out an order that fills no cache.
    pub(super) fn carry_out(&mut self, order: &Order) -> Result<()> {
        match order {
            Order::Tick => return Ok(()),
            Order::Decode(requests) => self.step(requests)?,
            Order::HandOver(wanted) => self.hand_over(wanted)?,
            Order::Release(requests) => self.release(requests)?,
            Order::Resume => return Err(Error::Bug("no prefill has halted")),
            Order::Stop => return Err(tributary_comm::Error::Disconnected("coordinator").into()),
            Order::Prefill(_) | Order::Chunks(_) => return Err(Error::Bug("a prefill begins within another")),
        }
        self.decodes = matches!(order, Order::Decode(_));
        Ok(())
    }

    /// A prefill begins.
    pub(super) fn begin_prefill(&mut self) {
        self.decodes = false;
        self.halts.clear();
    }

    /// Carries out orders at a control point at which the prefill of `request` has halted, until it
    /// is to go on. Deadline and counters of the prefill are as before then.
    pub(super) fn halt(&mut self, request: u64) -> Result<()> {
        let device = self.models.main.device().clone();
        let (since, aside) = (Moment::now(&device)?, self.comm.set_aside());
        self.decodes = false;
        tell(self.link, || Event::Halted { request })?;
        loop {
            match self.next_order()? {
                Order::Resume => break,
                order => self.carry_out(&order)?,
            }
        }
        self.comm.take_up(aside);
        self.halts.push(Halt { since, until: Moment::now(&device)? });
        Ok(())
    }

    /// This rank's part of the sequence from which a request goes on, and whether its owner holds
    /// all of it.
    ///
    /// # Errors
    /// Returns [`Error::Plan`] on every rank if there is no such sequence.
    pub(super) fn going_on(
        &mut self,
        plan: &Plan,
        Continues { request, rows, .. }: Continues,
        layers: &[LayerAttention],
    ) -> Result<(Option<Turned>, bool)> {
        let missing = || Error::Plan(format!("there is no sequence of request {request} to go on from"));
        let sequence = self.sequences.get_mut(&request).filter(|sequence| sequence.owner == plan.owner);
        let sequence = sequence.ok_or_else(missing)?;
        if rows < sequence.drops.from {
            let from = sequence.drops.from;
            return Err(Error::Plan(format!(
                "row {rows} of request {request}, whose windows are kept from row {from} on"
            )));
        }
        Ok((sequence.going_on(plan, rows, layers)?, sequence.alone))
    }

    /// Positions that a sequence's rotary tables must cover; 0 if it is unknown.
    pub(super) fn positions(&self, request: u64) -> usize {
        self.sequences.get(&request).map_or(0, |sequence| sequence.positions)
    }

    /// Rotates a sequence's keys to their positions, if it is there.
    pub(super) fn turn(&mut self, request: u64) -> Result<()> {
        let Some(sequence) = self.sequences.get_mut(&request) else { return Ok(()) };
        sequence.turn(&self.models.main.layer_attention(sequence.positions)?)
    }

    /// Releases sequences.
    fn release(&mut self, requests: &[u64]) -> Result<()> {
        for request in requests {
            self.sequences.remove(request);
        }
        let running = gather(&mut self.comm, &self.sequences.len())?;
        tell(self.link, || Event::Released { running })
    }
}
