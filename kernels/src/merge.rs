//! The exact merge of two partial attentions over disjoint keys.

use candle_core::{D, Tensor};

use crate::Partial;
use crate::error::Result;

/// Attention over the union of the two key sets, which must be disjoint: a key that both sides saw would count twice.
///
/// In f32: m = max(a.lse, b.lse), w = exp(lse − m), out = Σ w·out / Σ w, lse = m + ln Σ w. A side with lse = −∞ (it saw
/// no key) leaves the other unchanged; where both are −∞ the result is (0, −∞), never NaN.
///
/// # Errors
/// Shapes that do not fit.
pub fn merge(a: &Partial, b: &Partial) -> Result<Partial> {
    let m = a.lse.maximum(&b.lse)?;
    // A finite stand-in where neither side saw a key: exp(−∞ − finite) = 0, and −∞ − −∞ never happens.
    let finite = m.maximum(f32::MIN)?;
    let (wa, wb) = (a.lse.sub(&finite)?.exp()?, b.lse.sub(&finite)?.exp()?); // [queries, heads]
    let total = (&wa + &wb)?;
    let lse = (&finite + total.log()?)?; // ln 0 = −∞ where nothing was seen
    let divisor = total.maximum(f32::MIN_POSITIVE)?;
    let weigh = |out: &Tensor, w: &Tensor| -> Result<Tensor> {
        Ok(out.broadcast_mul(&(w / &divisor)?.unsqueeze(D::Minus1)?)?)
    };
    let out = (weigh(&a.out, &wa)? + weigh(&b.out, &wb)?)?;
    Ok(Partial { out, lse })
}
