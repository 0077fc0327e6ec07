//! Facts that every rank must have in common: program, settings, model.

use std::path::Path;

use tributary_protocol::{KeySpace, PROTOCOL_VERSION};

use super::agreement::AgreementFacts;
use crate::chunk_store::ChunkStoreConfig;
use crate::config::{GroupConfig, KvDtype, ModelConfig};
use crate::error::{Error, Result};
use crate::model::{ModelFolder, ModelHash};

/// Sources of this rank's facts.
pub struct Identity {
    model: ModelHash,
    auxiliary: Option<ModelHash>,
    draft_model: Option<ModelHash>,
    adapters: String,
    dtype: String,
    settings: String,
    world: usize,
    /// Whether there is a store, and the secret that chunks' keys are made with.
    stores: bool,
    secret: Option<[u8; 32]>,
}

impl Identity {
    /// The identity of a rank of `world` that runs a folder's model.
    ///
    /// # Errors
    /// Returns an error if the secret cannot be read.
    pub fn new(folder: &ModelFolder, model: &ModelConfig, group: &GroupConfig, world: usize) -> Result<Self> {
        let stored = group.chunk_store.as_ref();
        let secret = stored.map(ChunkStoreConfig::secret).transpose()?.flatten();
        Ok(Self {
            stores: stored.is_some(),
            secret: secret.map(|secret| secret.of_keys()),
            model: folder.hash().clone(),
            auxiliary: folder.auxiliary.as_ref().map(|beside| beside.hash().clone()),
            draft_model: folder.draft_model.as_ref().map(|beside| beside.hash().clone()),
            adapters: folder.adapters.fact(),
            dtype: match model.kv_dtype {
                KvDtype::Auto => format!("{:?}", model.dtype),
                KvDtype::Fp8 => format!("{:?}, keys and values in fp8", model.dtype),
            },
            settings: settings(model, group),
            world,
        })
    }

    /// Key space of the chunks that this rank keeps. Where none are kept they need no name, and the
    /// weights are not read for one.
    ///
    /// # Errors
    /// Returns an error if a file of the model cannot be read.
    pub fn key_space(&self, keeps_chunks: bool) -> Result<KeySpace> {
        let hash = if keeps_chunks { self.model.get()? } else { [0; 32] };
        Ok(self.space(hash))
    }

    fn space(&self, model: [u8; 32]) -> KeySpace {
        let space = KeySpace::new(model, self.dtype.clone());
        match self.secret {
            Some(secret) => space.keyed(secret),
            None => space,
        }
    }

    /// The facts of this rank, and the key space of its chunks. Makes the model's hash, on the
    /// thread pool it is called in.
    ///
    /// # Errors
    /// Returns an error if a file of the model or the program cannot be read.
    pub fn facts(&self) -> Result<(AgreementFacts, KeySpace)> {
        let hash = self.model.get()?;
        let beside = |model: &Option<ModelHash>| {
            let hash = model.as_ref().map(ModelHash::get).transpose()?;
            Ok::<_, Error>(hash.map_or("none".to_owned(), |hash| model_hash(&hash)))
        };
        let facts = vec![
            ("protocol", PROTOCOL_VERSION.to_string()),
            ("build", build()?),
            ("config", self.settings.clone()),
            ("model", model_hash(&hash)),
            ("auxiliary model", beside(&self.auxiliary)?),
            ("draft model", beside(&self.draft_model)?),
            ("adapters", self.adapters.clone()),
            ("dtype", self.dtype.clone()),
            ("world", self.world.to_string()),
            ("chunk store", if self.stores { "yes" } else { "no" }.to_owned()),
            // Shows whether secrets are equal, without revealing them.
            ("chunk keys", self.space(hash).prefix(&[]).to_string()[..16].to_owned()),
        ];
        Ok((facts, self.space(hash)))
    }
}

/// Version and hash of this program; a test can change it.
fn build() -> Result<String> {
    fail::fail_point!("engine::build", |value| Ok(value.unwrap_or_default()));
    Ok(format!("{} {}", env!("CARGO_PKG_VERSION"), program_hash()?))
}

/// First 16 digits of the hash of this program.
///
/// # Errors
/// Returns an error if the program cannot be read.
pub fn program_hash() -> std::io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_mmap(Path::new("/proc/self/exe"))?;
    Ok(hasher.finalize().to_hex()[..16].to_owned())
}

fn model_hash(hash: &[u8; 32]) -> String {
    fail::fail_point!("engine::model", Option::unwrap_or_default);
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Settings that determine a rank's work and are not part of a plan.
fn settings(model: &ModelConfig, group: &GroupConfig) -> String {
    fail::fail_point!("engine::config", Option::unwrap_or_default);
    let (kernels, device) = (model.kernels, model.device);
    let (collective, heartbeat) = (group.collective_timeout.as_secs(), group.heartbeat_timeout.as_secs());
    format!(
        "kernels {kernels:?}, device {device:?}, collective timeout {collective} s, heartbeat timeout {heartbeat} s"
    )
}
