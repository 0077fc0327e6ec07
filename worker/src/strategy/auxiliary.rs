//! Evidence of auxiliary models: the attention of the last rows of their own prompts, read as numbers of the main model's
//! context rows. Rank 0 runs them and tells the others.

use tributary_kernels::cuda;
use tributary_protocol::{Auxiliary, Plan, Refusal};

use crate::attention::Reading;
use crate::context::Context;
use crate::error::{Error, Result};

/// For each auxiliary model that the plan lists, one number a context row: the attention of the query's rows of its own prompt in its
/// last layer, mean over query rows and heads, softmax over its whole prompt. The same on every rank.
///
/// # Errors
/// [`Error::Refused`] on every rank if readings are not finite; kernels' and communicator's.
pub(super) fn readings(cx: &mut Context<'_>, plan: &Plan) -> Result<Vec<Vec<f32>>> {
    if plan.auxiliary.is_empty() {
        return Ok(Vec::new());
    }
    let bytes = match cx.rank() {
        0 => Some(tributary_protocol::encode(&read_all(cx, plan)?)?),
        _ => None,
    };
    let read: std::result::Result<Vec<Vec<f32>>, Refusal> =
        tributary_protocol::decode(&cx.comm.broadcast_bytes(0, bytes)?)?;
    read.map_err(Error::Refused)
}

/// All of them on rank 0. A failure that is the request's own is told to the other ranks.
fn read_all(cx: &Context<'_>, plan: &Plan) -> Result<std::result::Result<Vec<Vec<f32>>, Refusal>> {
    let read = plan.auxiliary.iter().map(|auxiliary| read(cx, plan, auxiliary)).collect::<Result<Vec<_>>>();
    match read {
        Ok(read) => Ok(Ok(read)),
        Err(error) if error.is_the_requests() => Ok(Err(error.refusal())),
        Err(error) => Err(error),
    }
}

fn read(cx: &Context<'_>, plan: &Plan, auxiliary: &Auxiliary) -> Result<Vec<f32>> {
    let model = cx.models.auxiliary(&auxiliary.model).ok_or(Error::Bug("rank 0 lacks a model that all ranks know"))?;
    let math = cx.math_of(model, auxiliary.ids.len())?;
    let read = Reading::of(model, math, model.embed(&auxiliary.ids)?, auxiliary.query)?;
    let read = cuda::download(&read)?.to_vec1::<f32>()?;
    assert_eq!(read.len(), auxiliary.ids.len(), "readings of an auxiliary model's rows");
    if !read.iter().all(|reading| reading.is_finite()) {
        return Err(Error::NotFinite { what: "an auxiliary model's readings", rank: cx.rank() });
    }
    let means: Vec<f32> = read[..auxiliary.stands_for.len()].iter().map(|sum| sum / auxiliary.query as f32).collect();
    Ok(auxiliary.mapped(&means, plan.prefix_tokens() as u32, plan.context_rows()))
}
