//! Experts in place of a dense MLP: a router chooses some of them for each row, and the row's
//! output is the weighted sum of theirs. Qwen3-MoE's router takes a softmax (Yang et al. 2025,
//! "Qwen3 Technical Report"), GLM-4.5's a sigmoid with a bias and groups of experts (DeepSeek-AI
//! 2024, "DeepSeek-V3 Technical Report", section 2.1.2).
//!
//! `expert_layer.rs` computes them.

use candle_core::Tensor;
use serde::Deserialize;
use tributary_protocol::ExpertSizes;

use crate::error::Result;

#[cfg(test)]
mod tests;

/// The largest number of experts of a layer that is accepted.
const MOST_EXPERTS: usize = 4096;

/// How a router makes scores of its logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scores {
    /// Softmax over all experts. The best are chosen.
    Softmax,
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
    #[serde(alias = "num_local_experts", alias = "n_routed_experts")]
    num_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
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
        let (group, shared) = match scores {
            Scores::Softmax => ((1, 1), 0),
            Scores::Sigmoid => {
                ((self.n_group.unwrap_or(1), self.topk_group.unwrap_or(1)), self.n_shared_experts.unwrap_or(1))
            }
        };
        let in_layer = self.in_layer(scores, layers)?;
        let stated = |value: Option<usize>, name: &str| value.ok_or_else(|| format!("missing field `{name}`"));
        let count = stated(self.num_experts, "num_experts")?;
        let active = stated(self.num_experts_per_tok, "num_experts_per_tok")?;
        let width = stated(self.moe_intermediate_size, "moe_intermediate_size")?;
        let with_experts = in_layer.iter().filter(|&&there| there).count();
        if with_experts == 0 {
            return Ok(None);
        }
        if !(1..=MOST_EXPERTS).contains(&count) {
            return Err(format!("num_experts {count}: must be from 1 to {MOST_EXPERTS}"));
        }
        if !(1..=count).contains(&active) {
            return Err(format!("num_experts_per_tok {active}: must be from 1 to num_experts {count}"));
        }
        if width == 0 {
            return Err("moe_intermediate_size is 0".to_owned());
        }
        let (groups, used_groups) = group;
        if groups == 0 || !count.is_multiple_of(groups) || (groups > 1 && count / groups < 2) {
            return Err(format!("n_group {groups}: num_experts {count} are not in such groups of two or more"));
        }
        if !(1..=groups).contains(&used_groups) || used_groups * (count / groups) < active {
            return Err(format!(
                "topk_group {used_groups}: must be from 1 to n_group {groups}, with at least num_experts_per_tok \
                 {active} experts"
            ));
        }
        let factor = match scores {
            Scores::Softmax => 1.0,
            Scores::Sigmoid => self.routed_scaling_factor.unwrap_or(1.0),
        };
        if !(factor.is_finite() && factor > 0.0) {
            return Err(format!("routed_scaling_factor {factor}: must be a positive number"));
        }
        let normalised = self.norm_topk_prob.unwrap_or(scores == Scores::Sigmoid);
        let sizes = ExpertSizes { count, active, width, shared_width: shared * width, layers: with_experts };
        Ok(Some(Experts {
            sizes,
            in_layer,
            router: Router { scores, active, normalised, factor, groups, used_groups },
        }))
    }

    /// For each layer whether it has experts.
    fn in_layer(&self, scores: Scores, layers: usize) -> std::result::Result<Vec<bool>, String> {
        let dense = self.mlp_only_layers.clone().unwrap_or_default();
        let step = self.decoder_sparse_step.unwrap_or(1);
        if step == 0 {
            return Err("decoder_sparse_step is 0".to_owned());
        }
        let first = self.first_k_dense_replace.unwrap_or(1);
        let there = |layer: usize| match scores {
            Scores::Softmax => !dense.contains(&layer) && (layer + 1).is_multiple_of(step),
            Scores::Sigmoid => layer >= first,
        };
        Ok((0..layers).map(there).collect())
    }
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
    /// Shares rows out to experts by the router's logits `[rows, experts]`, in f64.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub(super) fn route(&self, logits: &Tensor, bias: &[f32]) -> Result<Vec<Met>> {
        let (rows, experts) = logits.dims2()?;
        let mut met = vec![Met::default(); experts];
        let all: Vec<f64> = logits.flatten_all()?.to_vec1()?;
        for row in 0..rows {
            for (expert, weight) in self.choose(&all[row * experts..(row + 1) * experts], bias) {
                met[expert].rows.push(row as u32);
                met[expert].weights.push(weight as f32);
            }
        }
        Ok(met)
    }

    /// A row's experts with their weights, by its logits. Of equal scores the earlier expert's
    /// counts as the higher one.
    fn choose(&self, logits: &[f64], bias: &[f32]) -> Vec<(usize, f64)> {
        let scores: Vec<f64> = match self.scores {
            Scores::Sigmoid => logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect(),
            Scores::Softmax => {
                let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let parts: Vec<f64> = logits.iter().map(|logit| (logit - most).exp()).collect();
                let all: f64 = parts.iter().sum();
                parts.iter().map(|part| part / all).collect()
            }
        };
        let for_choice = |expert: usize| scores[expert] + bias.get(expert).map_or(0.0, |&bias| f64::from(bias));
        let size = logits.len() / self.groups;
        let groups = best(self.groups, self.used_groups, |group| {
            let members = best(size, 2, |member| for_choice(group * size + member));
            members.iter().map(|member| for_choice(group * size + member)).sum()
        });
        let members: Vec<usize> = groups.iter().flat_map(|group| group * size..(group + 1) * size).collect();
        let chosen = best(members.len(), self.active, |member| for_choice(members[member]));
        let chosen: Vec<usize> = chosen.into_iter().map(|member| members[member]).collect();
        let sum: f64 = match self.normalised {
            true => chosen.iter().map(|&expert| scores[expert]).sum(),
            false => 1.0,
        };
        chosen.into_iter().map(|expert| (expert, self.factor * scores[expert] / sum)).collect()
    }
}

/// The indices below `all` with the highest scores, at most `count` of them, rising. Of equal
/// scores the lower index counts as the higher one.
fn best(all: usize, count: usize, score: impl Fn(usize) -> f64) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..all).collect();
    if count >= all {
        return indices;
    }
    let scores: Vec<f64> = indices.iter().map(|&index| score(index)).collect();
    indices.select_nth_unstable_by(count, |&one, &other| {
        scores[other].total_cmp(&scores[one]).then_with(|| one.cmp(&other))
    });
    indices.truncate(count);
    indices.sort_unstable();
    indices
}
