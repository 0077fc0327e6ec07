//! Pupils by what their adapter is for.

use tributary_worker::{AdapterKind, Model};

use crate::error::{Error, Result};
use crate::lookahead::Lookahead;
use crate::packet::Packet;
use crate::trainer::Pupil;

/// Checks what a user may have given.
///
/// # Errors
/// [`Error::Usage`] with the option.
pub fn check(kind: AdapterKind) -> Result<()> {
    let nothing = "there would be nothing to learn";
    let refused = match kind {
        AdapterKind::KvPacket { head: 0, tail: 0 } => format!("--head 0 --tail 0: {nothing}"),
        AdapterKind::Lookahead { rows: 0, .. } => format!("--rows 0: {nothing}"),
        AdapterKind::Lookahead { alpha, .. } if !(alpha.is_finite() && alpha > 0.0) => {
            format!("--alpha {alpha}: must be above 0")
        }
        _ => return Ok(()),
    };
    Err(Error::Usage(refused))
}

/// A pupil before its first step: the same from the same seed.
///
/// # Errors
/// The tensor library's.
pub fn pupil(kind: AdapterKind, model: &dyn Model, seed: u64) -> Result<Box<dyn Pupil>> {
    Ok(match kind {
        AdapterKind::KvPacket { head, tail } => Box::new(Packet::new(head as usize, tail as usize, model, seed)?),
        AdapterKind::Lookahead { rows, rank, alpha } => {
            Box::new(Lookahead::new((rows as usize, rank as usize, alpha), model, seed)?)
        }
    })
}
