//! Which plans a request with pictures can have.

use tributary_protocol::{Plan, Prefill};

use crate::error::setting;
use crate::{ModelShape, Result};

/// Refuses a plan with pictures that something in it cannot read, and says what.
pub(super) fn check(plan: &Plan, shape: &ModelShape) -> Result<()> {
    if !plan.has_pictures() {
        return Ok(());
    }
    let refused = |name, found: &str, why: &str| Err(setting(name, found, format!("reads no pictures: {why}")));
    let method = plan.method.name();
    if shape.vision.is_none() {
        return refused("--model", "of text", "it has no vision tower");
    }
    if matches!(plan.method.prefill, Prefill::Anchored { .. }) {
        return refused("--method", method, "its blocks begin at any row, in a picture too");
    }
    if plan.method.reuses_prefix() {
        return refused("--method", method, "pieces of a prompt are cached under the ids of its tokens alone");
    }
    if !plan.auxiliary.is_empty() {
        return refused("--method", method, "a model of text reads the documents for it");
    }
    if plan.chunks.iter().any(|chunk| chunk.around.is_some()) {
        return refused("--adapter", method, "its rows were trained around text");
    }
    if let Some(evict) = &plan.evict {
        let (name, descriptor) = (evict.descriptor().name, evict.descriptor());
        if descriptor.contiguous {
            return refused("--evict", name, "it gives kept rows other positions");
        }
        if plan.draft_model.is_some() || plan.look_ahead.is_some() {
            return refused("--evict", name, "what it was trained with is text");
        }
    }
    if plan.hands_over {
        return refused("a hand-over", method, "another program takes rows at one position each");
    }
    if shape.kv_in_eight_bits {
        return refused(
            "--kv-dtype",
            "fp8",
            "later tokens turn packed keys as they read them, and know no places of pictures",
        );
    }
    Ok(())
}
