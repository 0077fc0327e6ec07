//! Experts in place of a dense MLP: a router chooses some of them for each row, and the row's
//! output is the weighted sum of theirs. Qwen3-MoE's router takes a softmax (Yang et al. 2025,
//! "Qwen3 Technical Report"), GLM-4.5's a sigmoid with a bias and groups of experts (DeepSeek-AI
//! 2024, "DeepSeek-V3 Technical Report", section 2.1.2), gpt-oss's a softmax over the chosen
//! (OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", section 2.1).
//!
//! `expert_layer.rs` computes them.

use std::collections::HashSet;

use candle_core::Tensor;
use rayon::prelude::*;
use serde::Deserialize;
use tributary_protocol::ExpertSizes;

use crate::error::Result;

#[cfg(test)]
mod tests;

/// The largest number of experts of a layer that is accepted.
const MOST_EXPERTS: usize = 4096;

/// The largest width of an expert that is accepted.
const MOST_WIDE: usize = 1 << 20;

/// How a router makes scores of its logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scores {
    /// Softmax over all experts. The best are chosen.
    Softmax,
    /// Softmax over the chosen experts, the best by logits with a learned bias (gpt-oss).
    Biased,
    /// A sigmoid for each. A learned bias is added for the choice, not for the weight; experts are
    /// chosen from the best groups only.
    Sigmoid,
}

/// The experts of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct Experts {
    /// Their numbers and widths.
    pub sizes: ExpertSizes,
    /// For each layer whether it has experts; else it has a dense MLP.
    pub in_layer: Vec<bool>,
    /// The router's rule.
    pub router: Router,
}

/// The rule by which experts are chosen and weighted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Router {
    /// Scores of experts.
    pub scores: Scores,
    /// Number of experts that a row passes.
    pub active: usize,
    /// Whether the weights of a row's experts are divided by their sum.
    pub normalised: bool,
    /// Factor of the weights.
    pub factor: f64,
    /// Number of groups, all of one size; a group's score is the sum of its two best.
    pub groups: usize,
    /// Number of groups that experts are chosen from.
    pub used_groups: usize,
}

/// The fields of a config.json that tell of experts.
#[derive(Deserialize)]
pub(super) struct Stated {
    num_experts: Option<usize>,
    num_local_experts: Option<usize>,
    n_routed_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    intermediate_size: Option<usize>,
    moe_intermediate_size: Option<usize>,
    norm_topk_prob: Option<bool>,
    decoder_sparse_step: Option<usize>,
    mlp_only_layers: Option<Vec<usize>>,
    n_shared_experts: Option<usize>,
    n_group: Option<usize>,
    topk_group: Option<usize>,
    first_k_dense_replace: Option<usize>,
    routed_scaling_factor: Option<f64>,
}

impl Stated {
    /// The experts of a decoder of `layers` layers whose router makes such scores; none if no layer
    /// has any.
    ///
    /// # Errors
    /// Returns the field that is missing or does not fit.
    pub fn into_experts(self, scores: Scores, layers: usize) -> std::result::Result<Option<Experts>, String> {
        let (group, shared, (name, count)) = match scores {
            Scores::Softmax => ((1, 1), 0, ("num_experts", self.num_experts)),
            Scores::Biased => ((1, 1), 0, ("num_local_experts", self.num_local_experts)),
            Scores::Sigmoid => {
                let group = (self.n_group.unwrap_or(1), self.topk_group.unwrap_or(1));
                (group, self.n_shared_experts.unwrap_or(1), ("n_routed_experts", self.n_routed_experts))
            }
        };
        if let (Some(one), Some(other)) = (count, self.num_local_experts)
            && one != other
        {
            return Err(format!("{name} {one} and num_local_experts {other} contradict each other"));
        }
        let in_layer = self.in_layer(scores, layers)?;
        let stated = |value: Option<usize>, name: &str| value.ok_or_else(|| format!("missing field `{name}`"));
        let count = stated(count.or(self.num_local_experts), name)?;
        let active = stated(self.num_experts_per_tok, "num_experts_per_tok")?;
        let width = match scores {
            Scores::Biased => stated(self.intermediate_size, "intermediate_size")?,
            _ => stated(self.moe_intermediate_size, "moe_intermediate_size")?,
        };
        let with_experts = in_layer.iter().filter(|&&there| there).count();
        if with_experts == 0 {
            return Ok(None);
        }
        if !(1..=MOST_EXPERTS).contains(&count) {
            return Err(format!("{name} {count}: must be from 1 to {MOST_EXPERTS}"));
        }
        if !(1..=count).contains(&active) {
            return Err(format!("num_experts_per_tok {active}: must be from 1 to {name} {count}"));
        }
        let shared_width = shared.saturating_mul(width);
        if width == 0 || width.max(shared_width) > MOST_WIDE {
            return Err(format!(
                "moe_intermediate_size {width}, {shared} times in the expert for all rows: must be from 1 to {MOST_WIDE}"
            ));
        }
        let (groups, used_groups) = group;
        check_groups(group, count, active)?;
        let factor = match scores {
            Scores::Softmax | Scores::Biased => 1.0,
            Scores::Sigmoid => self.routed_scaling_factor.unwrap_or(1.0),
        };
        if !(factor.is_finite() && factor > 0.0) {
            return Err(format!("routed_scaling_factor {factor}: must be a positive number"));
        }
        let normalised = match scores {
            Scores::Biased => true,
            scores => self.norm_topk_prob.unwrap_or(scores == Scores::Sigmoid),
        };
        let sizes = ExpertSizes { count, active, width, shared_width, layers: with_experts };
        Ok(Some(Experts {
            sizes,
            in_layer,
            router: Router { scores, active, normalised, factor, groups, used_groups },
        }))
    }

    /// For each layer whether it has experts.
    fn in_layer(&self, scores: Scores, layers: usize) -> std::result::Result<Vec<bool>, String> {
        let dense: HashSet<usize> = self.mlp_only_layers.iter().flatten().copied().collect();
        let step = self.decoder_sparse_step.unwrap_or(1);
        if step == 0 {
            return Err("decoder_sparse_step is 0".to_owned());
        }
        let first = self.first_k_dense_replace.unwrap_or(1);
        let there = |layer: usize| match scores {
            Scores::Softmax => !dense.contains(&layer) && (layer + 1).is_multiple_of(step),
            Scores::Biased => true,
            Scores::Sigmoid => layer >= first,
        };
        Ok((0..layers).map(there).collect())
    }
}

/// Rejects groups of experts, and a number of groups that are used, that do not fit.
fn check_groups((groups, used): (usize, usize), count: usize, active: usize) -> std::result::Result<(), String> {
    if groups == 0 || !count.is_multiple_of(groups) || (groups > 1 && count / groups < 2) {
        return Err(format!("n_group {groups}: {count} experts are not in such groups of two or more"));
    }
    if !(1..=groups).contains(&used) || used * (count / groups) < active {
        return Err(format!(
            "topk_group {used}: must be from 1 to n_group {groups}, with at least num_experts_per_tok {active} experts"
        ));
    }
    Ok(())
}

/// The rows that pass an expert, rising, and their weights.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Met {
    /// The rows.
    pub rows: Vec<u32>,
    /// The weight of the expert's output in each.
    pub weights: Vec<f32>,
}

impl Router {
    /// Shares rows out to experts by the router's logits `[rows, experts]`, in f64, on the current
    /// rayon pool.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub(super) fn route(&self, logits: &Tensor, bias: &[f32]) -> Result<Vec<Met>> {
        let experts = logits.dim(1)?;
        let mut met = vec![Met::default(); experts];
        let all: Vec<f64> = logits.flatten_all()?.to_vec1()?;
        let chosen: Vec<_> = all.par_chunks(experts).map(|logits| self.choose(logits, bias)).collect();
        for (row, chosen) in chosen.into_iter().enumerate() {
            for (expert, weight) in chosen {
                met[expert].rows.push(row as u32);
                met[expert].weights.push(weight as f32);
            }
        }
        Ok(met)
    }

    /// A row's experts with their weights, by its logits. Of equal scores the earlier expert's
    /// counts as the higher one.
    fn choose(&self, logits: &[f64], bias: &[f32]) -> Vec<(usize, f64)> {
        let (chosen, scores) = match self.scores {
            Scores::Softmax | Scores::Biased => {
                let with_bias: Vec<f64>;
                let logits = match bias {
                    [] => logits,
                    bias => {
                        with_bias = logits.iter().zip(bias).map(|(logit, &bias)| logit + f64::from(bias)).collect();
                        &with_bias
                    }
                };
                let chosen = best(logits.iter().copied(), self.active);
                let most = chosen.iter().map(|&expert| logits[expert]).fold(f64::NEG_INFINITY, f64::max);
                let part = |logit: f64| (logit - most).exp();
                // If weights are divided by their sum, other experts' parts do not matter.
                let all = if self.normalised { 1.0 } else { logits.iter().map(|&logit| part(logit)).sum() };
                let scores: Vec<f64> = chosen.iter().map(|&expert| part(logits[expert]) / all).collect();
                (chosen, scores)
            }
            Scores::Sigmoid => {
                let scores: Vec<f64> = logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect();
                let with_bias: Vec<f64> =
                    scores.iter().zip(bias).map(|(score, &bias)| score + f64::from(bias)).collect();
                let chosen = self.in_groups(&with_bias);
                let scores = chosen.iter().map(|&expert| scores[expert]).collect();
                (chosen, scores)
            }
        };
        let sum: f64 = if self.normalised { scores.iter().sum() } else { 1.0 };
        chosen.into_iter().zip(scores).map(|(expert, score)| (expert, self.factor * score / sum)).collect()
    }

    /// The best experts of the best groups.
    fn in_groups(&self, scores: &[f64]) -> Vec<usize> {
        if self.used_groups == self.groups {
            return best(scores.iter().copied(), self.active);
        }
        let size = scores.len() / self.groups;
        let of_group =
            |members: &[f64]| best(members.iter().copied(), 2).iter().map(|&member| members[member]).sum::<f64>();
        let used = best(scores.chunks(size).map(of_group), self.used_groups);
        let members: Vec<usize> = used.iter().flat_map(|group| group * size..(group + 1) * size).collect();
        let chosen = best(members.iter().map(|&member| scores[member]), self.active);
        chosen.into_iter().map(|member| members[member]).collect()
    }
}

/// The places of the highest scores, at most `count` of them, rising. Of equal scores the earlier
/// one counts as the higher one.
fn best(scores: impl Iterator<Item = f64>, count: usize) -> Vec<usize> {
    let mut all: Vec<(f64, usize)> = scores.zip(0..).collect();
    if count < all.len() {
        all.select_nth_unstable_by(count, |one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        all.truncate(count);
    }
    let mut places: Vec<usize> = all.into_iter().map(|(_, place)| place).collect();
    places.sort_unstable();
    places
}
