//! Requests with pictures: the settings, plans and models that read texts alone.

use tributary_protocol::{Packets, Plan, PlannedMethod, Prefill, Requirement};

use super::settings::RequestSettings;
use crate::error::setting;
use crate::{Error, ModelShape, Result};

/// Refuses settings with which a request has no pictures, before any other model reads its texts.
///
/// # Errors
/// Returns [`Error::Setting`] with the method or the eviction.
pub fn check_settings(settings: &RequestSettings) -> Result<()> {
    check_chunk_settings(settings)?;
    let method = settings.method;
    if method.needs(Requirement::AuxiliaryModel) {
        return Err(refused("--method", method.name, "its auxiliary model reads texts alone"));
    }
    if method.reads_sentences() {
        return Err(refused("--method", method.name, "it selects whole sentences"));
    }
    let eviction = &settings.eviction;
    let name = eviction.method.map_or("", |method| method.descriptor().name);
    if eviction.asks_draft_model() {
        return Err(refused("--evict", name, "its draft model reads texts alone"));
    }
    if eviction.looks_ahead() {
        return Err(refused("--evict", name, "its adapter was trained on texts"));
    }
    if eviction.method.is_some_and(|method| method.descriptor().contiguous) {
        return Err(refused("--evict", name, "it gives kept rows other positions"));
    }
    Ok(())
}

/// The same for chunks that are prefilled ahead of use.
///
/// # Errors
/// Returns [`Error::Setting`] with the method.
pub fn check_chunk_settings(settings: &RequestSettings) -> Result<()> {
    if settings.chunk_packets() == Packets::On {
        return Err(refused("--method", settings.spec(), "the rows of its adapter were trained around texts"));
    }
    Ok(())
}

/// The same with the method's way of prefilling, for a model that reads pictures.
///
/// # Errors
/// Returns [`Error::Setting`] with the method or the eviction, and the errors of a method that does
/// not fit the model.
pub fn check_method(settings: &RequestSettings, shape: &ModelShape) -> Result<()> {
    check_settings(settings)?;
    check_prefill(&settings.method(shape.facts())?.0)
}

fn check_prefill(method: &PlannedMethod) -> Result<()> {
    if matches!(method.prefill, Prefill::Anchored { .. }) {
        return Err(refused("--method", method.name(), "its blocks begin at any row, in a picture too"));
    }
    if method.reuses_prefix() {
        let why = "pieces of a prompt are cached under the ids of its tokens alone";
        return Err(refused("--method", method.name(), why));
    }
    Ok(())
}

/// Refuses a plan with pictures that its method or its model cannot compute.
pub(super) fn check(plan: &Plan, settings: &RequestSettings, shape: &ModelShape) -> Result<()> {
    if !plan.has_pictures() {
        return Ok(());
    }
    if shape.vision.is_none() {
        return Err(refused("--model", "of text", "it has no vision tower"));
    }
    check_settings(settings)?;
    check_prefill(&plan.method)?;
    if shape.kv_in_eight_bits {
        let why = "later tokens turn packed keys as they read them, and know no places of pictures";
        return Err(refused("--kv-dtype", "fp8", why));
    }
    Ok(())
}

fn refused(name: &'static str, found: impl ToString, why: &str) -> Error {
    setting(name, found, format!("reads no pictures: {why}"))
}

#[cfg(test)]
mod tests {
    use tributary_methods::{EvictChoice, MethodSpec};

    use super::*;
    use crate::EvictionWish;

    #[test]
    fn settings_for_texts_alone_are_refused_by_name() {
        let with = |spec: &str| RequestSettings::default().set(&spec.parse::<MethodSpec>().expect(spec));
        let evicting = |name: &str| {
            let choice: EvictChoice = name.parse().expect(name);
            let eviction = EvictionWish { method: Some(choice.method), ..EvictionWish::default() };
            RequestSettings { eviction, ..RequestSettings::default() }
        };
        let cases = [
            (with("cacheclip"), "--method cacheclip: reads no pictures: its auxiliary model"),
            (with("spec-prefill-like"), "--method spec-prefill-like: reads no pictures: its auxiliary model"),
            (with("excerpt"), "--method excerpt: reads no pictures: it selects whole sentences"),
            (with("kv-packet"), "--method kv-packet: reads no pictures: the rows of its adapter"),
            (with("infoflow:packets"), "--method infoflow:packets: reads no pictures: the rows of its adapter"),
            (evicting("speckv"), "--evict speckv: reads no pictures: its draft model"),
            (evicting("lookahead"), "--evict lookahead: reads no pictures: its adapter"),
            (evicting("streamingllm"), "--evict streamingllm: reads no pictures: it gives kept rows"),
        ];
        for (settings, begins) in cases {
            let error = check_settings(&settings).expect_err(begins);
            assert!(error.to_string().starts_with(begins), "{begins}: {error}");
            assert_eq!(error.exit_code(), 64);
        }
        for spec in ["infoflow", "full", "ring", "none", "epic", "cacheblend", "relay"] {
            assert!(check_settings(&with(spec)).is_ok(), "{spec}");
        }
        assert!(check_chunk_settings(&with("cacheclip")).is_ok(), "nothing is read ahead of use");
        assert!(check_chunk_settings(&with("kv-packet")).is_err(), "rows of an adapter are");
    }
}
