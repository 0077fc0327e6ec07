//! The messages of a call between device memories, and the tensors that they become.

use candle_core::cuda_backend::cudarc::driver::CudaStream;
use candle_core::{CudaDevice, DType, Tensor};

use super::ffi::Message;
use super::memory::{Buffer, address_of};
use super::settings::UnequalGathers;
use crate::group::call::{Call, Form, Payload};
use crate::{Error, Result};

/// Alignment of all parts of a gathered tensor, which allocations have too.
const ALIGNMENT_BYTES: usize = 256;

/// The way of all-gathers with unequal parts in this group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gathers {
    /// Every part as a message to each of the others.
    Messages,
    /// A broadcast of every part.
    Broadcasts,
}

impl Gathers {
    /// The way that the settings ask for on one host or on several.
    pub fn of(settings: UnequalGathers, several_hosts: bool) -> Self {
        match (settings, several_hosts) {
            (UnequalGathers::Messages, _) | (UnequalGathers::ByHosts, false) => Self::Messages,
            (UnequalGathers::Broadcasts, _) | (UnequalGathers::ByHosts, true) => Self::Broadcasts,
        }
    }
}

/// A call's tensors on this rank.
pub struct Messages {
    pub messages: Vec<Message>,
    /// The tensors that are sent, kept until the call has ended.
    sent: Vec<Tensor>,
    incoming: Incoming,
}

/// The memory that receives the tensors of a call.
enum Incoming {
    /// Separate memory for each, in the order in which they are given.
    Parts(Vec<ReceivedPart>),
    /// All ranks' rows, equally many each, one after the other; the own rank's are the tensor that
    /// was sent.
    Together { buffer: Buffer, rows: usize, world: usize, own: (usize, Tensor) },
}

enum ReceivedPart {
    /// This rank's own contribution: it changes hands without a copy.
    Own(Tensor),
    Received(Buffer),
}

/// Collects the messages of a call, whose parts share a form and a device.
struct MessageBuilder<'a> {
    form: &'a Form,
    device: &'a CudaDevice,
    compute: &'a CudaStream,
    messages: Vec<Message>,
    sent: Vec<Tensor>,
}

impl Messages {
    /// The messages of a call that carries tensors. Received ones are allocated in the order of
    /// `compute`.
    ///
    /// # Errors
    /// Returns an error if a tensor is not on a GPU, or if memory is short.
    pub fn new(
        rank: usize,
        (call, payload): (&Call, Payload),
        gathers: Gathers,
        device: &CudaDevice,
        compute: &CudaStream,
    ) -> Result<Self> {
        let form = call.form().expect("a call with tensors has a form");
        let tensors = payload.tensors.into_iter().map(|tensor| tensor.expect("a call brings its own tensors"));
        let tensors: Vec<Tensor> = tensors.collect();
        let mut builder = MessageBuilder { form, device, compute, messages: Vec::new(), sent: Vec::new() };
        let incoming = match call {
            Call::Exchange { to, from, rows, .. } => {
                builder.send(&tensors[0], *to, rank)?;
                let part = builder.receive(*rows, *from, (rank, &tensors[0]))?;
                Incoming::Parts(vec![part])
            }
            Call::AllGather { rows, .. } => match (builder.together(rows, rank, &tensors[0])?, gathers) {
                (Some(incoming), _) => incoming,
                (None, Gathers::Broadcasts) => builder.broadcasts(rows, rank, &tensors[0])?,
                (None, Gathers::Messages) => {
                    (0..rows.len()).try_for_each(|to| builder.send(&tensors[0], to, rank))?;
                    builder.receive_all(rows, (rank, &tensors[0]))?
                }
            },
            Call::AllToAll { rows, .. } => {
                assert_eq!(tensors.len(), rows.len(), "tensors of an all-to-all, one a rank");
                tensors.iter().enumerate().try_for_each(|(to, tensor)| builder.send(tensor, to, rank))?;
                builder.receive_all(rows, (rank, &tensors[rank]))?
            }
            Call::BroadcastBytes { .. } | Call::GatherBytes { .. } | Call::Barrier => {
                return Err(Error::Tensor("a call without tensors is not NCCL's".to_owned()));
            }
        };
        Ok(Self { messages: builder.messages, sent: builder.sent, incoming })
    }

    /// The received tensors, in the order of the call; the computing stream has passed the call's
    /// end.
    pub fn into_tensors(self) -> Result<Vec<Tensor>> {
        drop(self.sent);
        match self.incoming {
            Incoming::Parts(parts) => Ok(parts.into_iter().map(ReceivedPart::into_tensor).collect()),
            Incoming::Together { buffer, rows, world, own: (rank, mine) } => {
                let all = buffer.into_tensor();
                let of = |source| if source == rank { Ok(mine.clone()) } else { all.narrow(0, source * rows, rows) };
                Ok((0..world).map(of).collect::<candle_core::Result<_>>()?)
            }
        }
    }
}

impl ReceivedPart {
    fn into_tensor(self) -> Tensor {
        match self {
            ReceivedPart::Own(tensor) => tensor,
            ReceivedPart::Received(buffer) => buffer.into_tensor(),
        }
    }
}

impl MessageBuilder<'_> {
    fn send(&mut self, tensor: &Tensor, peer: usize, rank: usize) -> Result<()> {
        let bytes = tensor.elem_count() * tensor.dtype().size_in_bytes();
        if peer == rank || bytes == 0 {
            return Ok(());
        }
        let address = address_of(tensor, self.compute)?;
        self.messages.push(Message::Send { address, bytes, peer });
        self.sent.push(tensor.clone());
        Ok(())
    }

    /// Memory for `rows` rows of rank `peer`; this rank's own rows are `own`, and need none.
    fn receive(&mut self, rows: usize, peer: usize, own: (usize, &Tensor)) -> Result<ReceivedPart> {
        if peer == own.0 {
            return Ok(ReceivedPart::Own(own.1.clone()));
        }
        let mut buffer = self.buffer(rows)?;
        let bytes = self.form.bytes(rows) as usize;
        if bytes > 0 {
            let address = buffer.address(self.compute)?;
            self.messages.push(Message::Receive { address, bytes, peer });
        }
        Ok(ReceivedPart::Received(buffer))
    }

    /// Memory for `rows[r]` rows of every rank r.
    fn receive_all(&mut self, rows: &[usize], own: (usize, &Tensor)) -> Result<Incoming> {
        let parts = rows.iter().enumerate().map(|(peer, &rows)| self.receive(rows, peer, own));
        Ok(Incoming::Parts(parts.collect::<Result<_>>()?))
    }

    /// An all-gather of equal parts: NCCL's own, which is faster than messages between pairs. None
    /// if the parts differ, or would not be aligned as allocations are, which kernels may count on.
    fn together(&mut self, rows: &[usize], rank: usize, mine: &Tensor) -> Result<Option<Incoming>> {
        let bytes = self.form.bytes(rows[rank]) as usize;
        let equal = rows.iter().all(|&other| other == rows[rank]);
        if rows.len() == 1 || !equal || bytes == 0 || !bytes.is_multiple_of(ALIGNMENT_BYTES) {
            return Ok(None);
        }
        let mut buffer = self.buffer(rows[rank] * rows.len())?;
        let (from, to) = (address_of(mine, self.compute)?, buffer.address(self.compute)?);
        self.messages.push(Message::Gather { from, to, bytes });
        self.sent.push(mine.clone());
        let own = (rank, mine.clone());
        Ok(Some(Incoming::Together { buffer, rows: rows[rank], world: rows.len(), own }))
    }

    /// An all-gather of unequal parts between hosts: every rank with rows broadcasts them.
    fn broadcasts(&mut self, rows: &[usize], rank: usize, mine: &Tensor) -> Result<Incoming> {
        let mut parts = Vec::with_capacity(rows.len());
        for (root, &count) in rows.iter().enumerate() {
            let bytes = self.form.bytes(count) as usize;
            let (address, part) = if root == rank {
                let address = if bytes > 0 { address_of(mine, self.compute)? } else { 0 };
                (address, ReceivedPart::Own(mine.clone()))
            } else {
                let mut buffer = self.buffer(count)?;
                (buffer.address(self.compute)?, ReceivedPart::Received(buffer))
            };
            if bytes > 0 && rows.len() > 1 {
                self.messages.push(Message::Broadcast { address, bytes, root });
            }
            parts.push(part);
        }
        self.sent.push(mine.clone());
        Ok(Incoming::Parts(parts))
    }

    fn buffer(&self, rows: usize) -> Result<Buffer> {
        let dtype: DType = self.form.dtype;
        let dims = std::iter::once(rows).chain(self.form.row_dims.iter().copied()).collect();
        Buffer::new(self.device, dtype, dims)
    }
}
