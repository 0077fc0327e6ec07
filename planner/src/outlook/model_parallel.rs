//! A rival that is not implemented here: the exact prefill of a model whose matrices are cut over
//! the ranks of a host (tensor parallelism), with the sequence cut over groups of them (context
//! parallelism). A formula predicts it, for comparison with implemented methods.
//!
//! T ranks cut each layer's matrices, as in Shoeybi et al. 2019 (Megatron-LM, section 3): a layer
//! sums its rows over them twice, after attention and after the feed-forward part. C groups of T
//! ranks cut the sequence; keys and values go round among them under the attention to the present
//! ones (Yang et al. 2024, arXiv:2411.01783, pass-KV). N rows of prompt, n = N / C of a group, h
//! the width of a row, b bytes a number, q and k the widths of a row's queries and keys.
//!
//! | a layer | seconds |
//! | --- | --- |
//! | products | 2 · n · parameters / (T · products' rate) + weights / (T · memory's rate) |
//! | sums | 2 · (2 · (T − 1) / T · n · h · b / link inside + latency), where T > 1 |
//! | norms and sums of rows, each rank all of them; rotation and activation, each its share | n · b · (10 h + (2 (q + k) + 3 · MLP width) / T) / elementwise rate |
//! | attention | 4 · q · N · (N + 1) / 2 / (C · T · attention's rate), or the keys' way round where that is longer: (C − 1) · (n · 2 k · b / T / link + latency) |
//!
//! After the last layer come the logits of one row, cut over T.

use crate::ModelShape;
use crate::forecast::{Interval, Profile};

/// Division of a model over ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Ranks that share a layer's matrices.
    pub tensor: usize,
    /// Groups of them that share the sequence.
    pub context: usize,
}

impl Cut {
    /// Whether a model's heads can be cut this way: each rank has the same number, and KV heads are
    /// copied if there are fewer than ranks.
    pub fn fits(self, shape: &ModelShape) -> bool {
        shape.heads.is_multiple_of(self.tensor)
            && (shape.kv_heads.is_multiple_of(self.tensor) || self.tensor.is_multiple_of(shape.kv_heads))
    }

    /// Seconds of a prefill of `tokens` tokens, up to the first one.
    pub fn seconds(self, tokens: usize, shape: &ModelShape, profile: &Profile) -> f64 {
        let rank = profile.rank_of(self.tensor * self.context);
        let number_bytes = shape.dtype_bytes as f64;
        let [tensor, context, all] = [self.tensor, self.context, tokens].map(|count| count as f64);
        let rows = all / context;
        let parameters = shape.layer_matrix_parameters() as f64;
        let read = shape.layer_numbers_read(rows as usize);
        let products_s = self.products_s(rows, (parameters, read), shape, profile);
        let sums_s = match self.tensor {
            0 | 1 => 0.0,
            // The ranks may be of several hosts: then the sum is as slow as their link.
            _ => {
                let link =
                    profile.between.as_ref().filter(|_| profile.hosts(self.tensor) > 1).unwrap_or(&profile.inside);
                let bytes = 2.0 * (tensor - 1.0) / tensor * rows * shape.hidden as f64 * number_bytes;
                2.0 * (bytes / link.rate(bytes) + link.latency_s)
            }
        };
        let (query, kv) = (shape.query_width() as f64, shape.kv_width() as f64);
        let cut = (2.0 * (query + kv) + 3.0 * shape.mlp_width() as f64) / tensor;
        let elementwise = rows * number_bytes * (10.0 * shape.hidden as f64 + cut);
        let elementwise_s = elementwise / rank.elementwise_bytes_per_s.unwrap_or(rank.memory_bytes_per_s);
        let pairs = all * (all + 1.0) / 2.0;
        let attention_rate = rank.attention_by_keys.at(all / 2.0).unwrap_or(rank.attention_flops_per_s);
        let attention_s = 4.0 * query * pairs / (context * tensor * attention_rate);
        let way_s = {
            let link = profile.between.as_ref().unwrap_or(&profile.inside);
            let copies = (tensor / shape.kv_heads as f64).max(1.0);
            let bytes = rows * 2.0 * kv * number_bytes * copies / tensor;
            (context - 1.0) * (bytes / link.rate(bytes) + link.latency_s)
        };
        let layer_s = (products_s + sums_s + elementwise_s + attention_s.max(way_s)).max(rank.layer_s);
        let of_logits = (shape.vocab * shape.hidden) as f64;
        let logits_s = self.products_s(1.0, (of_logits, of_logits), shape, profile);
        rank.request_s + shape.layers as f64 * layer_s + logits_s
    }

    /// Seconds of the products of `rows` rows that each meet `parameters` parameters, and together
    /// `read`, cut over the ranks of a group.
    fn products_s(self, rows: f64, (parameters, read): (f64, f64), shape: &ModelShape, profile: &Profile) -> f64 {
        let rank = profile.rank_of(self.tensor * self.context);
        let flops = 2.0 * rows * parameters / self.tensor as f64;
        match rank.gemm_by_rows.at(rows) {
            Some(rate) => flops / rate,
            None => {
                let weight_bytes = shape.read_bytes(read) / self.tensor as f64;
                flops / rank.gemm_flops_per_s + weight_bytes / rank.memory_bytes_per_s
            }
        }
    }

    /// Interval of those seconds, from the uncertainty of the profile's rates.
    pub fn interval(self, tokens: usize, shape: &ModelShape, profile: &Profile) -> Interval {
        let seconds = |profile: &Profile| self.seconds(tokens, shape, profile);
        Interval::around(seconds(profile), profile, seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::tests::QWEN3_14B;

    /// Llama 3 405B on 16 hosts of 8 H100: matrices cut inside a host, the sequence between hosts.
    const PUBLISHED: [(usize, f64); 2] = [(131_072, 3.8), (1_000_000, 77.0)];

    /// The hosts of that paper: attention at 540 TFLOP/s, its number for FlashAttention-3 alone;
    /// products as in the InfoFlow paper, since it gives none.
    fn hosts() -> Profile {
        let mut profile = Profile::by_name("h100x8x2-paper").unwrap();
        (profile.ranks, profile.rank.attention_flops_per_s) = (128, 540e12);
        profile.rank.elementwise_bytes_per_s = None;
        profile
    }

    #[test]
    fn context_parallel_prefill_of_405b_is_as_long_as_published() {
        let shape = ModelShape::named("llama-3.1-405b").unwrap();
        let cut = Cut { tensor: 8, context: 16 };
        assert!(cut.fits(&shape));
        for (tokens, published_s) in PUBLISHED {
            let error = cut.seconds(tokens, &shape, &hosts()) / published_s - 1.0;
            assert!(error.abs() < 0.15, "{tokens} tokens: {:+.1} %", 100.0 * error);
        }
    }

    #[test]
    fn one_rank_takes_as_long_as_a_full_prefill_and_sums_cost_more_between_hosts() {
        let profile = Profile::by_name("h100x8x2").unwrap();
        let seconds = |tensor, profile: &Profile| Cut { tensor, context: 1 }.seconds(32_768, &QWEN3_14B, profile);
        let plan = crate::kit::planned("full", 32_768, 2048, 1, &QWEN3_14B);
        let full_s = crate::forecast::ttft(&plan, 1, &QWEN3_14B, &profile).ttft_s;
        // In the last of 40 layers full prefill goes on with one row alone.
        assert!((seconds(1, &profile) / full_s - 1.0).abs() < 0.03, "{} and {full_s}", seconds(1, &profile));
        assert!(seconds(8, &profile) > seconds(1, &profile) / 8.0, "sums take their time");
        let together = Profile { ranks_per_host: 16, ..profile.clone() };
        assert!(seconds(16, &profile) > seconds(16, &together));
        assert!(!Cut { tensor: 3, context: 1 }.fits(&QWEN3_14B), "40 heads");
        let interval = Cut { tensor: 8, context: 1 }.interval(32_768, &QWEN3_14B, &profile);
        assert!(interval.has(seconds(8, &profile)) && !interval.has(2.0 * seconds(8, &profile)));
    }
}
