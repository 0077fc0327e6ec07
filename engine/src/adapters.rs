//! The adapters of the model (`--adapter`): their effect on requests, and their numbers on the
//! ranks' devices.

use std::path::PathBuf;

use candle_core::{DType, Device};
use tributary_model::{AdapterFolder, AdapterKind, Adapters, Config};
use tributary_protocol::{Around, LookAhead};

use crate::error::{Error, Result};

/// The adapters of a model, one of a kind at most.
#[derive(Debug, Clone, Default)]
pub struct ModelAdapters {
    folders: Vec<AdapterFolder>,
}

impl ModelAdapters {
    /// Reads folders, and compares them with the model that they are to serve; `base_model` gives
    /// the hash of its config and weights.
    ///
    /// # Errors
    /// Returns an error if a folder is no adapter, is another model's or is damaged, or if two
    /// adapters are of one kind.
    pub fn open(folders: &[PathBuf], config: &Config, base_model: impl FnOnce() -> Result<[u8; 32]>) -> Result<Self> {
        if folders.is_empty() {
            return Ok(Self::default());
        }
        let base_model = base_model()?;
        let mut read: Vec<AdapterFolder> = Vec::new();
        for folder in folders {
            let adapter = AdapterFolder::read(folder, config, base_model)?;
            let name = adapter.config.kind.name();
            if let Some(other) = read.iter().find(|other| other.config.kind.name() == name) {
                let (other, this) = (other.path.display(), folder.display());
                return Err(Error::usage(format!("--adapter {other} and {this}: both are for {name}; one is used")));
            }
            read.push(adapter);
        }
        Ok(Self { folders: read })
    }

    /// Rows around chunks, if there are any.
    pub fn around(&self) -> Option<Around> {
        self.folders.iter().find_map(|folder| match folder.config.kind {
            AdapterKind::KvPacket { head, tail } => Some(Around { adapter: folder.number, head, tail }),
            AdapterKind::Lookahead { .. } => None,
        })
    }

    /// The rows that look ahead, if there are any.
    pub fn look_ahead(&self) -> Option<LookAhead> {
        self.folders.iter().find_map(|folder| match folder.config.kind {
            AdapterKind::Lookahead { rows, .. } => Some(LookAhead { adapter: folder.number, rows }),
            AdapterKind::KvPacket { .. } => None,
        })
    }

    /// The folders and the adapters' numbers, as reports and ranks name them.
    pub fn names(&self) -> Vec<String> {
        let name = |folder: &AdapterFolder| format!("{} ({:016x})", folder.path.display(), folder.number);
        self.folders.iter().map(name).collect()
    }

    /// Fact that all ranks must have in common.
    pub(crate) fn fact(&self) -> String {
        let numbers: Vec<String> = self.folders.iter().map(|folder| format!("{:016x}", folder.number)).collect();
        if numbers.is_empty() { "none".to_owned() } else { numbers.join(", ") }
    }

    /// The adapters on a model's device, for weights of this dtype.
    ///
    /// # Errors
    /// Returns an error if an operation on the device fails.
    pub(crate) fn on(&self, device: &Device, dtype: DType) -> Result<Adapters> {
        let placed = |folder: &AdapterFolder| Ok((folder.number, folder.adapter.on(device, dtype)?));
        Ok(Adapters::new(self.folders.iter().map(placed).collect::<Result<Vec<_>>>()?))
    }
}
