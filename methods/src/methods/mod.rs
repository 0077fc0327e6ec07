//! The registry: every method, in a file of its own.

mod a3;
mod all_gather;
mod apb;
mod ape;
mod attn_drift;
mod cacheblend;
mod cacheclip;
mod context_pilot;
mod epic;
mod excerpt;
mod full;
mod ideal;
mod infoflow;
mod kv_packet;
mod kvshare;
mod none;
mod pass_q;
mod prefix_cache;
mod prophetkv;
mod qcfuse;
mod random;
mod relay;
mod ring;
mod samkv;
mod spec_prefill;
mod star;
mod trace;

use crate::method::{Command, Method};
use crate::names::nearest;
use crate::option::MethodOption;

/// Every method, in the order of help texts and tables.
pub static METHODS: [&Method; 27] = [
    &full::FULL,
    &prefix_cache::PREFIX_CACHE,
    &ring::RING,
    &all_gather::ALL_GATHER,
    &pass_q::PASS_Q,
    &context_pilot::CONTEXT_PILOT,
    &star::STAR,
    &apb::APB,
    &none::NONE,
    &random::RANDOM,
    &epic::EPIC,
    &infoflow::INFOFLOW,
    &prophetkv::PROPHETKV,
    &attn_drift::ATTN_DRIFT,
    &qcfuse::QCFUSE,
    &excerpt::EXCERPT,
    &relay::RELAY,
    &a3::A3,
    &cacheblend::CACHEBLEND,
    &kvshare::KVSHARE,
    &trace::TRACE,
    &ideal::IDEAL,
    &ape::APE,
    &samkv::SAMKV,
    &cacheclip::CACHECLIP,
    &spec_prefill::SPEC_PREFILL,
    &kv_packet::KV_PACKET,
];

/// The baseline of all other methods.
pub static REFERENCE: &Method = &full::FULL;

/// The method of prompts without context that may leave something in chunk caches.
pub static PREFIX_ALONE: &Method = &prefix_cache::PREFIX_CACHE;

/// The method that only fills chunk caches.
pub static CHUNKS_ALONE: &Method = &none::NONE;

impl Method {
    /// The method of that name.
    pub fn find(name: &str) -> Option<&'static Method> {
        METHODS.into_iter().find(|method| method.name == name)
    }

    /// The method of that name.
    ///
    /// # Errors
    /// Returns an error with the known names if the name is unknown.
    pub fn named(name: &str) -> Result<&'static Method, String> {
        let (known, unknown) = (Self::names(), format!("unknown method `{name}`"));
        let near = || nearest(name, known.iter().copied());
        Self::find(name).ok_or_else(|| format!("{unknown}{}; known are {}", near(), known.join(", ")))
    }

    /// Every name, for messages.
    pub fn names() -> Vec<&'static str> {
        METHODS.map(|method| method.name).to_vec()
    }

    /// Methods that a command runs by default.
    pub fn defaults_of(command: Command) -> Vec<&'static Method> {
        METHODS.into_iter().filter(|method| method.default_of.contains(&command)).collect()
    }

    /// Names of the methods that take an option.
    pub fn names_taking(option: &MethodOption) -> Vec<&'static str> {
        METHODS.into_iter().filter(|method| method.takes(option)).map(|method| method.name).collect()
    }
}
