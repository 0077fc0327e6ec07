//! The plan of a request: the rank of each chunk, the number of recomputed rows, the transfers. A
//! pure function of request, settings, model and machine.

mod cached;
mod compression;
mod conversation;
mod dealing;
mod draft;
mod eviction;
#[cfg(test)]
mod eviction_tests;
mod exchange;
mod keeping;
#[cfg(test)]
mod method_inputs_tests;
pub mod pictures;
mod settings;
#[cfg(test)]
mod tests;

use tributary_protocol::{Around, Auxiliary, DraftModel, LookAhead};

use crate::cost::memory;
use crate::forecast::Profile;
use crate::machine::Machine;
use crate::{Error, ModelShape, Result};

pub use self::cached::{Cached, Held};
pub use self::compression::window_of;
pub use self::draft::{Draft, Planned, Tokens};
pub use self::eviction::EvictionWish;
pub use self::keeping::Conversation;
pub use self::settings::RequestSettings;

/// A request as token ids.
#[derive(Debug, Clone, Copy)]
pub struct PlanInput<'a> {
    /// Number of the request, for logs.
    pub request: u64,
    /// Ids before the first chunk.
    pub prefix: &'a [u32],
    /// Tokens of each piece of the lead, at the end of the prefix.
    pub lead: &'a [u32],
    /// The context, in the request's own order.
    pub chunks: &'a [Vec<u32>],
    /// Contents of the ranks' chunk caches.
    pub cached: Cached<'a>,
    /// Ids after the context.
    pub query: &'a [u32],
    /// Tokens that end the answer.
    pub eos: &'a [u32],
    /// Inputs of the method besides the prompt.
    pub method_inputs: MethodInputs<'a>,
}

/// Inputs of a method besides the prompt. Empty for most.
#[derive(Debug, Clone, Copy, Default)]
pub struct MethodInputs<'a> {
    /// Rows of an adapter around every chunk.
    pub around: Option<Around>,
    /// Models beside the main one that read the context for it.
    pub auxiliary: &'a [Auxiliary],
    /// The model that drafts tokens for an eviction.
    pub draft_model: Option<&'a DraftModel>,
    /// Rows that attend to the cache before generation begins.
    pub look_ahead: Option<LookAhead>,
}

/// Makes the plan of a request, for a machine with the rates of a profile; without a profile, with
/// assumed rates.
///
/// Methods that recompute nothing and groups of one rank have no use for an exchange; their default
/// is replicate.
///
/// # Errors
/// Returns [`Error::Setting`], [`Error::NoDocuments`], [`Error::EmptyDocument`],
/// [`Error::EmptyQuery`], [`Error::TooManyTokens`], or [`Error::Memory`] if it needs more than the
/// machine has.
pub fn plan(
    input: &PlanInput<'_>,
    settings: &RequestSettings,
    shape: &ModelShape,
    machine: &Machine,
    profile: Option<&Profile>,
) -> Result<Planned> {
    let PlanInput { request, prefix, lead, chunks, cached, query, eos, method_inputs } = *input;
    let (prefix, lead, chunks) = (prefix.to_vec(), lead.to_vec(), chunks.to_vec());
    let (query, eos) = (query.to_vec(), eos.to_vec());
    let MethodInputs { around, auxiliary, draft_model, look_ahead } = method_inputs;
    let (auxiliary, draft_model) = (auxiliary.to_vec(), draft_model.cloned());
    let tokens =
        Tokens { prefix, lead, chunks, query, eos, around, auxiliary, draft_model, look_ahead, ..Tokens::default() };
    let mut draft = Draft::new(tokens, settings, shape)?;
    draft.place(request, settings.owner, cached, shape, (machine, profile))?;
    Ok(draft.planned())
}

/// Checks that a machine has room for the weights, before they are read.
///
/// # Errors
/// Returns [`Error::MemoryOfWeights`] if it does not.
pub fn check_weights(shape: &ModelShape, machine: &Machine) -> Result<()> {
    let needed_bytes = memory::weights_bytes(shape, machine);
    let (of, rank) = (machine.memory, machine.of_rank);
    match machine.available_bytes {
        Some(available_bytes) if needed_bytes > available_bytes => {
            Err(Error::MemoryOfWeights { of, rank, needed_bytes, available_bytes })
        }
        _ => Ok(()),
    }
}
