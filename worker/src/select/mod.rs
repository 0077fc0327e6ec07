//! Selectors: which context rows deserve exact treatment. A selector says what evidence it needs, stage by stage, and turns
//! it into a score a row or into rows; gathering evidence across ranks and taking the top rows is done once, for all of
//! them, in [`crate::strategy`].

mod a3;
mod cacheblend;
mod cacheclip;
mod epic;
mod ideal;
mod infoflow;
mod kvshare;
mod none;
mod prophetkv;
mod random;
mod relay;
mod samkv;
mod selector;
#[cfg(test)]
mod tests;
mod top;
pub(crate) mod trace;

use tributary_protocol::Method;

pub use selector::{Candidates, Need, Selector};
pub use top::{chunk_order, top_rows};

use crate::error::{Error, Result};

/// The selector of a method that prefills chunk by chunk: the registry. Facts that the planner needs too are in the
/// method's descriptor.
///
/// # Errors
/// [`Error::Bug`] for a method that does not prefill chunk by chunk.
pub fn build(method: &Method) -> Result<Box<dyn Selector>> {
    Ok(match method {
        Method::Full
        | Method::Ring
        | Method::AllGather { .. }
        | Method::PassQ
        | Method::Star { .. }
        | Method::Apb { .. } => {
            return Err(Error::Bug("a method that does not work in chunks has no selector"));
        }
        Method::None | Method::Ape(_) | Method::KvPacket => Box::new(none::Nothing),
        Method::Random { seed } => Box::new(random::Random { seed: *seed }),
        Method::Epic { per_chunk } => Box::new(epic::Epic { per_chunk: *per_chunk }),
        Method::InfoFlow(_) => Box::new(infoflow::InfoFlow),
        Method::ProphetKv { .. } => Box::new(prophetkv::ProphetKv),
        Method::Relay { .. } => Box::new(relay::Relay::default()),
        Method::A3 { .. } => Box::new(a3::A3),
        Method::CacheBlend(_) => Box::new(cacheblend::CacheBlend),
        Method::CacheClip => Box::new(cacheclip::CacheClip),
        Method::KvShare => Box::new(kvshare::KvShare),
        Method::Trace(_) => Box::new(trace::Traced::default()),
        Method::Ideal => Box::new(ideal::Ideal),
        Method::SamKv { parameters, .. } => Box::new(samkv::SamKv { parameters: *parameters }),
    })
}
