//! Time of a step of decoding: one token of each of several sequences. Their rows pass the weights
//! together on each rank that owns some, and each attends to its own keys.

use super::arithmetic::{order_s, work_s};
use super::profile::Profile;
use crate::ModelShape;
use crate::cost::{Decoding, Products, RankWork};

/// A running sequence, as steps of decoding see it.
#[derive(Debug, Clone, PartialEq)]
pub struct Running {
    /// The rank that computes its rows.
    owner: usize,
    /// Work of one token on each rank.
    ranks: Vec<RankWork>,
    /// Seconds of its transfers; 0 if the owner holds all that it attends to.
    moved_s: f64,
}

impl Running {
    pub(super) fn new(token: &Decoding, owner: usize, moved_s: f64) -> Self {
        Self { owner, ranks: token.ranks.clone(), moved_s }
    }

    /// The rank that computes its rows.
    pub fn owner(&self) -> usize {
        self.owner
    }
}

/// Seconds of a step of these sequences on `world` ranks: the slowest rank's work, the longest
/// transfers of each owner's sequences, which go together, and the order.
pub fn step_s<'a>(
    sequences: impl IntoIterator<Item = &'a Running>,
    world: usize,
    shape: &ModelShape,
    profile: &Profile,
) -> f64 {
    let mut ranks = vec![RankWork::default(); world];
    let (mut rows, mut moved_s) = (vec![0; world], vec![0.0; world]);
    for sequence in sequences {
        rows[sequence.owner] += 1;
        moved_s[sequence.owner] = f64::max(moved_s[sequence.owner], sequence.moved_s);
        for (sum, work) in ranks.iter_mut().zip(&sequence.ranks) {
            sum.probe += work.probe;
            sum.kv_bytes += work.kv_bytes;
            sum.elementwise += work.elementwise;
            sum.merged += work.merged;
            sum.layers = sum.layers.max(work.layers);
            join(&mut sum.products, &work.products);
        }
    }
    let has_work = |work: &&RankWork| work.probe > 0.0 || !work.products.is_empty();
    let rates = profile.rank_of(ranks.iter().filter(has_work).count());
    let slowest_s = ranks.iter().map(|work| work_s(work, rates, shape)).fold(0.0, f64::max);
    slowest_s + moved_s.iter().sum::<f64>() + order_s(profile, world)
}

/// Adds another row to products with the same weights.
fn join(sums: &mut Vec<Products>, row: &[Products]) {
    if sums.is_empty() {
        sums.extend(row);
        return;
    }
    for (sum, row) in sums.iter_mut().zip(row) {
        sum.rows += row.rows;
        sum.flops += row.flops;
    }
}

#[cfg(test)]
mod tests {
    use tributary_protocol::{Exchange, Plan};

    use super::*;
    use crate::forecast::Counted;
    use crate::kit::planned;
    use crate::shape::tests::QWEN3_14B;

    fn sequence(method: &str, owner: usize, profile: &Profile) -> (Running, f64) {
        let plan = planned(method, 8192, 2048, 4, &QWEN3_14B);
        let plan = Plan { max_tokens: 64, owner, exchange: Exchange::Replicate, ..plan };
        let counted = Counted::new(&plan, 4, &QWEN3_14B);
        (counted.running(&plan, profile).expect("it goes on"), counted.on(&plan, profile).token_s)
    }

    #[test]
    fn a_step_of_one_sequence_takes_the_time_of_its_token() {
        let profile = Profile::by_name("h100x4").expect("a shipped profile");
        for method in ["infoflow", "ring"] {
            let (running, token_s) = sequence(method, 1, &profile);
            let alone_s = step_s([&running], 4, &QWEN3_14B, &profile);
            assert!((alone_s / token_s - 1.0).abs() < 0.02, "{method}: {alone_s} s, a token {token_s} s");
        }
    }

    #[test]
    fn sequences_share_the_reading_of_weights_on_their_owner_and_ranks_work_side_by_side() {
        let profile = Profile::by_name("h100x4").expect("a shipped profile");
        let (one, _) = sequence("infoflow", 1, &profile);
        let (other, _) = sequence("infoflow", 2, &profile);
        let step = |sequences: &[&Running]| step_s(sequences.iter().copied(), 4, &QWEN3_14B, &profile);
        let (alone, apart, together) = (step(&[&one]), step(&[&one, &other]), step(&[&one; 8]));
        assert!((apart / alone - 1.0).abs() < 1e-9, "{apart} s on two ranks, {alone} s on one");
        assert!(together > alone && together < 2.0 * alone, "{together} s for eight, {alone} s for one");
    }
}
