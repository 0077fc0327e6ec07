//! Eviction: the part of a prompt's keys and values that decoding may discard.
//! The registry of its methods, the parameters in a plan, and the number of rows that each layer
//! keeps. A plan tells where rows lie.
//!
//! A budget C counts rows of the whole prompt (prefix, context and query) in each layer and KV
//! head. The kept rows differ by layer and KV head; generated rows are all kept.

mod choice;
mod methods;
#[cfg(test)]
mod tests;

pub use self::choice::{EvictChoice, Keep, KeepPerChunk};
pub use self::methods::{EVICTIONS, Eviction, EvictionDescriptor, EvictionEvidence, LayerBudgets};

/// Rows of the window: the last rows of the prompt, whose attention chooses the kept rows (SnapKV,
/// Li et al. 2024).
pub const WINDOW_ROWS: usize = 32;
/// Width of the pooling of scores along the rows: a row's score becomes the maximum over this
/// number of rows around it (SnapKV).
pub const POOLED_ROWS: usize = 7;
/// First rows that are always kept (StreamingLLM, Xiao et al. 2024).
pub const SINK_ROWS: usize = 4;
/// β of PyramidKV (Cai et al. 2024): the last layer keeps one β-th of the mean budget beside the
/// window.
pub const PYRAMID_BETA: usize = 20;

/// Tokens written to measure their attention, by the model itself (LAQ, Wang et al. 2025) or by a
/// small one (SpecKV, Galim et al. 2025).
pub const PSEUDO_TOKENS: usize = 32;

/// Eviction of a prompt's rows after its first token.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Evict {
    /// Method that chooses the rows.
    pub method: Eviction,
    /// C: rows of the prompt that each KV head of a layer keeps, the mean over the layers.
    pub keep: usize,
    /// Maximum number of rows of the window.
    pub window: usize,
    /// Rows over which scores are pooled, an odd number; 1 for none.
    pub pooled: usize,
    /// First rows that are always kept, if the method keeps any.
    pub sinks: usize,
    /// β: steepness of falling budgets.
    pub beta: usize,
    /// Tokens that are written to measure their attention and then discarded, if the method writes
    /// any.
    pub pseudo: usize,
    /// Seed of random draws.
    pub seed: u64,
    /// Whether kept rows of all ranks are gathered on the owner, which then decodes alone.
    pub gather: bool,
}

impl Evict {
    /// `keep` rows by a method with its authors' parameters, each kept where it lies; the seed is
    /// 0.
    pub fn usual(method: Eviction, keep: usize) -> Self {
        let (window, pooled, sinks, beta) = (WINDOW_ROWS, POOLED_ROWS, SINK_ROWS, PYRAMID_BETA);
        Self { method, keep, window, pooled, sinks, beta, pseudo: PSEUDO_TOKENS, seed: 0, gather: false }
    }

    /// Descriptor of its method.
    pub fn descriptor(&self) -> &'static EvictionDescriptor {
        self.method.descriptor()
    }

    /// Rows of the window: at most half of the budget, so that scores choose the other half. At
    /// least one.
    pub fn window_rows(&self) -> usize {
        self.window.min((self.keep / 2).max(1))
    }

    /// Number of temporary tokens after the prompt whose attention is measured; 0 for most methods.
    pub fn pseudo_tokens(&self) -> usize {
        match self.descriptor().evidence {
            EvictionEvidence::PseudoTokens | EvictionEvidence::OwnTokens | EvictionEvidence::DraftTokens => self.pseudo,
            _ => 0,
        }
    }

    /// Number of those tokens that the model itself generates from a draft of the kept rows.
    pub fn generated_tokens(&self) -> usize {
        if self.asks_draft_model() { 0 } else { self.pseudo_tokens() }
    }

    /// Rows in the draft that tokens are generated from, in each KV head of a prompt of `rows`
    /// rows.
    /// That is the final number or all of them; 0 if the model generates nothing.
    pub fn draft_rows(&self, rows: usize) -> usize {
        match self.descriptor().evidence {
            EvictionEvidence::PseudoTokens => self.keep,
            EvictionEvidence::OwnTokens => rows,
            _ => 0,
        }
    }

    /// Whether a small model writes the tokens.
    pub fn asks_draft_model(&self) -> bool {
        self.descriptor().evidence == EvictionEvidence::DraftTokens
    }

    /// Bytes that distinguish a chunk compressed this way from others, for its name: the inputs of
    /// its choice of rows, and nothing else.
    pub fn chunk_bytes(&self) -> Vec<u8> {
        let descriptor = self.descriptor();
        let mut numbers = vec![self.keep as u64];
        match descriptor.evidence {
            EvictionEvidence::Places => numbers.push(self.sinks as u64),
            EvictionEvidence::Draw => numbers.push(self.seed),
            _ => numbers.extend([self.window as u64, if descriptor.pools { self.pooled as u64 } else { 1 }]),
        }
        let name = descriptor.name.as_bytes();
        let numbers = numbers.into_iter().flat_map(u64::to_le_bytes);
        b"keeps".iter().chain(name).copied().chain([0]).chain(numbers).collect()
    }

    /// Numbers of first rows and last rows that are kept regardless of their score, where a layer
    /// keeps `budget` rows.
    pub fn unscored(&self, budget: usize) -> (usize, usize) {
        match self.descriptor().evidence {
            EvictionEvidence::Places => {
                let first = self.sinks.min(budget.saturating_sub(1));
                (first, budget - first)
            }
            EvictionEvidence::Draw
            | EvictionEvidence::LookAhead
            | EvictionEvidence::PseudoTokens
            | EvictionEvidence::OwnTokens
            | EvictionEvidence::DraftTokens => (0, 0),
            EvictionEvidence::Window => (0, self.window_rows().min(budget)),
            EvictionEvidence::LastRow => (0, 1.min(budget)),
            EvictionEvidence::AllRows => (0, budget - budget / 2),
        }
    }

    /// Number of rows that each KV head keeps in each of `layers` layers, of `rows` available: the
    /// budget, or linearly falling numbers with the same sum.
    /// PyramidKV, section 4: with w rows of window the last layer keeps (C − w) / β + w, the first
    /// 2 · (C − w) − (C − w) / β + w. If that exceeds `rows`, the first layer keeps all and the
    /// last one the remainder of the sum.
    ///
    /// # Panics
    /// If the budget exceeds `rows`: only a bug can cause that.
    pub fn budgets(&self, layers: usize, rows: usize) -> Vec<usize> {
        assert!(self.keep <= rows, "{} rows to keep of {rows}", self.keep);
        if self.descriptor().budgets == LayerBudgets::Even {
            return vec![self.keep; layers];
        }
        let window = self.window_rows();
        let (mean, most) = ((self.keep - window) as f64, (rows - window) as f64);
        let first = (2.0 * mean - mean / self.beta.max(1) as f64).min(most);
        let last = 2.0 * mean - first;
        let step = if layers > 1 { (first - last) / (layers - 1) as f64 } else { 0.0 };
        let first = if layers > 1 { first } else { mean };
        let exact: Vec<f64> = (0..layers).map(|layer| first - step * layer as f64 + 1e-9).collect();
        let mut budgets: Vec<usize> = exact.iter().map(|rows| rows.max(0.0).floor() as usize).collect();
        // The remainder of rounding down goes to the layers that lost most, ties to the earlier
        // one.
        let left = layers * (self.keep - window) - budgets.iter().sum::<usize>();
        let mut by_loss: Vec<usize> = (0..layers).collect();
        by_loss.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()).then(a.cmp(&b)));
        by_loss.into_iter().take(left).for_each(|layer| budgets[layer] += 1);
        budgets.into_iter().map(|budget| budget + window).collect()
    }
}
