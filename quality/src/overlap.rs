//! Overlap of the methods' selections: for every two methods at one ratio the Jaccard index of
//! their selections, over requests.

use schemars::JsonSchema;
use serde::Serialize;

use crate::answers::{Answers, Reply};
use crate::design::Arm;
use crate::evaluation::Evaluation;
use crate::selected::Rows;
use crate::statistics::{Mean, mean_of};

/// Draws of an interval: there are as many as pairs of methods, and digits that a thousand leave
/// unsure are not shown.
const DRAWS: usize = 1000;

/// Comparison of the selections of all methods at one ratio.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Overlap {
    /// The share of the context that each of them recomputes.
    pub ratio: f64,
    /// The methods and their options, as asked for: those that select rows.
    pub methods: Vec<String>,
    /// A row a method, a column a method, in that order: mean over requests of the rows that both
    /// select over the rows that at least one does, from 0 to 1, with its interval; absent where no
    /// request was answered by both.
    pub jaccard: Vec<Vec<Option<Mean>>>,
}

/// All of them, by ratio. Methods without a ratio, and those that select nothing, are left out, as
/// are ratios of one method.
pub fn overlaps(evaluation: &Evaluation, answers: &Answers) -> Vec<Overlap> {
    let mut ratios: Vec<f64> = evaluation.arms.iter().filter_map(|arm| arm.ratio).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    ratios.dedup();
    let of = |ratio: &f64| overlap(*ratio, evaluation, answers);
    ratios.iter().filter_map(of).collect()
}

fn overlap(ratio: f64, evaluation: &Evaluation, answers: &Answers) -> Option<Overlap> {
    let selections = |arm: &Arm| -> Vec<Option<Rows>> {
        let reply = |request: &crate::evaluation::Request| {
            answers.get(&request.cell, request.number, arm).and_then(|answer| answer.reply())
        };
        evaluation.requests.iter().map(|request| reply(request).map(|reply: &Reply| reply.selected.clone())).collect()
    };
    // Eviction comes after the selection: where its method is listed without eviction, it would
    // show the same rows again.
    let again = |arm: &Arm| {
        let same = |other: &Arm| other.method == arm.behind && other.ratio == arm.ratio;
        arm.evicts() && evaluation.arms.iter().any(same)
    };
    let arms = evaluation.arms.iter().filter(|arm| arm.ratio == Some(ratio) && !again(arm));
    let all: Vec<(&Arm, Vec<Option<Rows>>)> = arms
        .map(|arm| (arm, selections(arm)))
        .filter(|(_, own)| own.iter().flatten().any(|rows| !rows.is_empty()))
        .collect();
    if all.len() < 2 {
        return None;
    }
    let seed = evaluation.design.seed;
    let pair = |one: &[Option<Rows>], other: &[Option<Rows>]| {
        let both = one.iter().zip(other).filter_map(|(one, other)| jaccard(one.as_ref()?, other.as_ref()?));
        mean_of(&both.collect::<Vec<_>>(), seed, DRAWS)
    };
    let mut matrix = vec![vec![None; all.len()]; all.len()];
    for (index, (_, one)) in all.iter().enumerate() {
        for (behind, (_, other)) in all.iter().enumerate().skip(index) {
            let found = pair(one, other);
            (matrix[index][behind], matrix[behind][index]) = (found, found);
        }
    }
    Some(Overlap { ratio, methods: all.iter().map(|(arm, _)| arm.method.clone()).collect(), jaccard: matrix })
}

/// Rows that both have over rows that at least one has; nothing where neither has any.
fn jaccard(one: &Rows, other: &Rows) -> Option<f64> {
    let mut shared = 0;
    let (mut left, mut right) = (one.ranges(), other.ranges());
    while let (Some(&[a, a_end]), Some(&[b, b_end])) = (left.first(), right.first()) {
        shared += a_end.min(b_end).saturating_sub(a.max(b)) as usize;
        if a_end <= b_end { left = &left[1..] } else { right = &right[1..] }
    }
    let all = one.len() + other.len() - shared;
    (all > 0).then(|| shared as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::{Answer, Outcome};
    use crate::kit;

    #[test]
    fn shared_rows_over_all_rows() {
        let rows = |rows: &[u32]| Rows::of(rows.iter().copied());
        let of = |one: &[u32], other: &[u32]| jaccard(&rows(one), &rows(other));
        assert_eq!(of(&[1, 2, 3, 7], &[2, 3, 4, 7, 9]), Some(3.0 / 6.0));
        assert_eq!(of(&[5, 6, 7, 8, 9], &[5, 6, 7, 8, 9]), Some(1.0));
        assert_eq!(of(&[0, 1], &[2, 3]), Some(0.0), "neighbours share nothing");
        assert_eq!(of(&[0, 1, 2, 3, 4, 5], &[0, 2, 5]), Some(0.5), "one range with several");
        assert_eq!((of(&[1], &[]), of(&[], &[])), (Some(0.0), None));
    }

    /// A method that decodes from some rows of the prompt.
    fn evicting(method: &str) -> Arm {
        let arm = kit::arm(method, Some(0.5));
        let mut run_config = arm.run_config;
        run_config.settings.eviction.method = Some(tributary_protocol::Eviction::SnapKv);
        Arm { ratio: arm.ratio, ..Arm::new(arm.method, run_config) }
    }

    #[test]
    fn methods_of_one_ratio_stand_beside_each_other() {
        let arms = vec![
            kit::arm("full", None),
            kit::arm("infoflow:layers=0..1", Some(0.5)),
            kit::arm("infoflow:layers=3..4", Some(0.5)),
            kit::arm("epic", Some(0.5)),
            kit::arm("epic", Some(0.25)),
            kit::arm("nothing", Some(0.5)),
            evicting("epic:evict=snapkv:keep=8"),
        ];
        let evaluation = kit::evaluation(arms, 2);
        let mut answers = Answers::default();
        let selected: [&[&[u32]]; 7] =
            [&[&[], &[]], &[&[0, 1], &[4, 5]], &[&[1, 2], &[4, 5]], &[&[0, 1]], &[&[0], &[0]], &[&[], &[]], &[&[0, 1]]];
        for (arm, own) in evaluation.arms.iter().zip(selected) {
            for (request, rows) in evaluation.requests.iter().zip(own) {
                let reply = Reply { selected: Rows::of(rows.iter().copied()), ..kit::reply() };
                answers.add(Answer::new(request, arm, Outcome::Answered(Box::new(reply))));
            }
        }
        let [found] = overlaps(&evaluation, &answers).try_into().unwrap();
        assert_eq!(
            (found.ratio, found.methods.len()),
            (0.5, 3),
            "methods without a selection, single ones, and those listed without eviction are left out"
        );
        let mean = |a: usize, b: usize| found.jaccard[a][b].unwrap().mean;
        assert!((mean(0, 0) - 1.0).abs() < 1e-12 && (mean(0, 1) - mean(1, 0)).abs() < 1e-12);
        assert!((mean(0, 1) - (1.0 / 3.0 + 1.0) / 2.0).abs() < 1e-12, "the mean of both requests");
        assert!(
            (mean(0, 2) - 1.0).abs() < 1e-12 && (mean(1, 2) - 1.0 / 3.0).abs() < 1e-12,
            "one request answered by both"
        );
        let spread = found.jaccard[0][1].unwrap();
        assert!((spread.low - 1.0 / 3.0).abs() < 1e-9 && (spread.high - 1.0).abs() < 1e-9, "{spread:?}");
    }
}
