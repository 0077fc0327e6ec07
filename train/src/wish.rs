//! Requested student: its checks, and its making.

use tributary_model::{AdapterKind, Config, Model};

use crate::auxiliary::Auxiliary;
use crate::error::{Error, Result};
use crate::lookahead::Lookahead;
use crate::packet::Packet;
use crate::pupil::Pupil;
use crate::reader::Reader;
use crate::sample::Sample;

/// Kind of student to train.
#[derive(Debug, Clone, PartialEq)]
pub enum Wish {
    /// An adapter: a few numbers beside a frozen model.
    Adapter(AdapterKind),
    /// A whole small model, which reads contexts for the other one.
    Auxiliary(Reader),
}

impl Wish {
    /// Checks the user's values.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] with the option's name.
    pub fn check(&self) -> Result<()> {
        let nothing = "there would be nothing to learn";
        let refused = match self {
            Wish::Adapter(AdapterKind::KvPacket { head: 0, tail: 0 }) => format!("--head 0 --tail 0: {nothing}"),
            Wish::Adapter(AdapterKind::Lookahead { rows: 0, .. }) => format!("--rows 0: {nothing}"),
            Wish::Adapter(AdapterKind::Lookahead { alpha, .. }) if !(alpha.is_finite() && *alpha > 0.0) => {
                format!("--alpha {alpha}: must be above 0")
            }
            Wish::Adapter(_) => return Ok(()),
            Wish::Auxiliary(reader) => return reader.check(),
        };
        Err(Error::Usage(refused))
    }

    /// Checks that it can be learned from these samples beside a model.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] with the option's or the sample's name, and an error if the folder
    /// to resume from is no checkpoint.
    pub fn fits(&self, model: &Config, samples: &[Sample]) -> Result<()> {
        match self {
            Wish::Adapter(_) => Ok(()),
            Wish::Auxiliary(reader) => reader.fits(model, samples),
        }
    }

    /// A student before its first step: the same from the same seed.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails, or if the folder to resume from is no
    /// checkpoint.
    pub fn pupil(&self, model: &dyn Model, seed: u64) -> Result<Box<dyn Pupil>> {
        Ok(match self {
            Wish::Adapter(AdapterKind::KvPacket { head, tail }) => {
                Box::new(Packet::new(*head as usize, *tail as usize, model, seed)?)
            }
            Wish::Adapter(AdapterKind::Lookahead { rows, rank, alpha }) => {
                Box::new(Lookahead::new((*rows as usize, *rank as usize, *alpha), model, seed)?)
            }
            Wish::Auxiliary(reader) => Box::new(Auxiliary::new(reader, model, seed)?),
        })
    }
}
