//! The exact merge of two partial attentions over disjoint keys.

use candle_core::{CpuStorage, D, DType, Storage, Tensor};

use crate::error::{Error, Result};
use crate::{Partial, cpu, cuda};

/// Attention over the union of the two key sets, which must be disjoint: a key that both sides saw
/// would count twice.
///
/// In f32, the output in the parts' dtype: m = max(a.lse, b.lse), w = exp(lse − m), out = Σ w·out /
/// Σ w, lse = m + ln Σ w. A side with lse = −∞ (it saw no key) leaves the other unchanged; where
/// both are −∞ the result is (0, −∞), never NaN. Differentiable; a merge that needs no gradient is
/// merged in one pass on the CPU, in one launch on a GPU.
///
/// # Errors
/// Returns an error if shapes do not fit.
pub fn merge(a: &Partial, b: &Partial) -> Result<Partial> {
    check(a, b)?;
    if a.out.elem_count() == 0 {
        return Ok(a.clone());
    }
    if let Some(merged) = cuda::merge(&[a, b])? {
        return Ok(merged);
    }
    let tensors = [&a.out, &a.lse, &b.out, &b.lse];
    let at_once = |x: &Tensor| x.device().is_cpu() && x.dtype() == DType::F32 && x.is_contiguous() && !x.track_op();
    if tensors.into_iter().all(at_once) { merge_at_once(a, b) } else { merge_plain(a, b) }
}

/// Attention over the union of the key sets of all parts, which must be disjoint. `None` where
/// there is no part.
///
/// # Errors
/// Returns an error if shapes do not fit.
pub fn merge_all(parts: &[&Partial]) -> Result<Option<Partial>> {
    let Some((first, rest)) = parts.split_first() else { return Ok(None) };
    for part in rest {
        check(first, part)?;
    }
    if first.out.elem_count() > 0
        && let Some(merged) = cuda::merge(parts)?
    {
        return Ok(Some(merged));
    }
    rest.iter().try_fold((*first).clone(), |merged, part| merge(&merged, part)).map(Some)
}

/// Checks that two parts have the same rows and heads.
fn check(a: &Partial, b: &Partial) -> Result<()> {
    let (rows, heads, _) = a.out.dims3()?;
    for (what, found, expected) in [
        ("output of the other side", b.out.dims(), a.out.dims()),
        ("lse of the first side", a.lse.dims(), &[rows, heads][..]),
        ("lse of the other side", b.lse.dims(), &[rows, heads][..]),
    ] {
        if found != expected {
            let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
            return Err(Error::Shape { op: "merge", what, expected, found });
        }
    }
    Ok(())
}

fn merge_plain(a: &Partial, b: &Partial) -> Result<Partial> {
    // A finite value where neither side saw a key, so that −∞ − −∞ never happens. The result does
    // not depend on m, so no gradient flows through it.
    let m = a.lse.maximum(&b.lse)?.maximum(f32::MIN)?.detach();
    let (wa, wb) = (a.lse.sub(&m)?.exp()?, b.lse.sub(&m)?.exp()?); // [queries, heads]
    let total = (&wa + &wb)?;
    let blind = total.detach().eq(0f32)?;
    let total = (total + blind.to_dtype(a.lse.dtype())?)?; // 1 in place of 0 keeps logarithm, quotient and gradients finite
    let nothing = Tensor::full(f64::NEG_INFINITY, total.dims(), total.device())?.to_dtype(total.dtype())?;
    let lse = blind.where_cond(&nothing, &(&m + total.log()?)?)?;
    let weigh =
        |out: &Tensor, w: &Tensor| -> Result<Tensor> { Ok(out.broadcast_mul(&(w / &total)?.unsqueeze(D::Minus1)?)?) };
    let out = (weigh(&a.out, &wa)? + weigh(&b.out, &wb)?)?;
    Ok(Partial { out, lse })
}

/// The same for contiguous f32 on the CPU.
fn merge_at_once(a: &Partial, b: &Partial) -> Result<Partial> {
    let (rows, heads, head_dim) = a.out.dims3()?;
    let tensors = [&a.out, &a.lse, &b.out, &b.lse];
    let held = tensors.map(Tensor::storage_and_layout);
    let slices = [&held[0], &held[1], &held[2], &held[3]].map(|(storage, layout)| {
        let Storage::Cpu(CpuStorage::F32(list)) = &**storage else { unreachable!("checked by merge: f32 on the CPU") };
        &list[layout.start_offset()..layout.start_offset() + layout.shape().elem_count()]
    });
    let (out, lse) = cpu::merge(&[(slices[0], slices[1]), (slices[2], slices[3])], head_dim);
    let out = Tensor::from_vec(out, (rows, heads, head_dim), a.out.device())?;
    Ok(Partial { out, lse: Tensor::from_vec(lse, (rows, heads), a.out.device())? })
}
