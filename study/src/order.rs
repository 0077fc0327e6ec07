//! The order of runs: drawn anew for every round, the same for the same seed, so that an
//! interrupted study resumes in the same order.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The numbers below `count` in the order of a round.
pub fn order(seed: u64, round: usize, count: usize) -> Vec<usize> {
    let mut draws = ChaCha8Rng::seed_from_u64(seed);
    draws.set_stream(round as u64);
    let mut order: Vec<usize> = (0..count).collect();
    // Fisher-Yates. The remainder favours small numbers by 2^-64 times the count: nothing here.
    for last in (1..count).rev() {
        order.swap(last, (draws.next_u64() % (last as u64 + 1)) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_round_holds_every_number_once_in_an_order_of_its_own() {
        let orders: Vec<Vec<usize>> = (0..50).map(|round| order(3, round, 5)).collect();
        for order in &orders {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4]);
        }
        let firsts: BTreeSet<usize> = orders.iter().map(|order| order[0]).collect();
        assert_eq!(firsts.len(), 5, "everyone is first some time");
        assert_eq!(order(3, 7, 5), orders[7], "the same again");
        assert!((0..50).any(|round| order(4, round, 5) != orders[round]), "another seed, other orders");
    }
}
