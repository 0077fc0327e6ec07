//! The rows that the last pass over a prompt returns: the prompt's last row, from which the first
//! token is drawn, and the rows that log-probabilities of the query follow from, if the plan
//! requests them.

use tributary_model::{Attention, Model, Rows};
use tributary_protocol::Plan;

use super::arrivals::Arrivals;
use crate::error::{Error, Result};
use crate::handing;
use crate::models::Models;

/// Rows after the last layer.
#[derive(Default)]
pub struct Output {
    /// On the owner: the prompt's last row, `[1, hidden]`.
    pub last: Option<Rows>,
    /// This rank's rows of the query that another row of the query follows, and their numbers;
    /// `None` if not requested.
    pub scored: Option<(Rows, Vec<u32>)>,
}

/// Runs a prompt's rows of these numbers through all layers. If the query is not scored, the last
/// layer computes the prompt's last row alone.
///
/// # Errors
/// As a layer of the model.
pub(super) fn run(
    (model, plan, rank): (&dyn Model, &Plan, usize),
    (rows, numbers): (Rows, &[u32]),
    attention: &mut dyn Attention<Error = Error>,
) -> Result<Output> {
    handing::noted(attention, |attention| {
        if plan.returns.prompt_logprobs.is_none() {
            return Ok(Output { last: last(model.prompt(rows, attention)?, plan, rank), scored: None });
        }
        all(model.layers(0..model.config().layers, rows, attention)?, plan, rank, numbers)
    })
}

/// The same with chunks that are still being read.
///
/// # Errors
/// As [`Arrivals::prompt`].
pub(super) fn run_arriving(
    (models, plan, rank): (&Models<'_>, &Plan, usize),
    arrivals: &mut Arrivals,
    (rows, numbers): (Rows, &[u32]),
    attention: &mut dyn Attention<Error = Error>,
) -> Result<Output> {
    handing::noted(attention, |attention| {
        if plan.returns.prompt_logprobs.is_none() {
            return Ok(Output { last: last(arrivals.prompt(models, rows, attention)?, plan, rank), scored: None });
        }
        all(arrivals.whole(models, rows, attention)?, plan, rank, numbers)
    })
}

fn last(rows: Rows, plan: &Plan, rank: usize) -> Option<Rows> {
    assert_eq!(rows.len(), usize::from(rank == plan.owner), "last rows of the prompt on rank {rank}");
    (rank == plan.owner).then_some(rows)
}

/// The output of a pass that returned all of its rows.
fn all(rows: Rows, plan: &Plan, rank: usize, numbers: &[u32]) -> Result<Output> {
    assert_eq!(rows.len(), numbers.len(), "rows of the last pass on rank {rank}");
    let query = plan.query_rows();
    let is_scored = |place: &u32| {
        let number = numbers[*place as usize];
        query.contains(&number) && number + 1 < query.end
    };
    let places: Vec<u32> = (0..numbers.len() as u32).filter(is_scored).collect();
    let of_query: Vec<u32> = places.iter().map(|&place| numbers[place as usize]).collect();
    let last = (rank == plan.owner).then(|| rows.last(1)).transpose()?;
    Ok(Output { last, scored: Some((rows.select(&places)?, of_query)) })
}
