//! Weights of chunks, and their assignment to ranks. The weights are estimates from counts.

use tributary_protocol::Exchange;

use super::cached::Held;
use crate::ModelShape;

/// Weights of chunks for the assignment to ranks: FLOPs of their prefill after the head, or, if
/// queries travel to the keys, their length times the tokens after them.
pub(crate) fn chunk_weights(
    lengths: &[usize],
    head_tokens: usize,
    query_tokens: usize,
    exchange: Exchange,
    shape: &ModelShape,
) -> Vec<f64> {
    if exchange != Exchange::PassQ {
        return lengths.iter().map(|&length| shape.prefill_flops(length, head_tokens)).collect();
    }
    let mut after = lengths.iter().sum::<usize>() + query_tokens;
    let weigh = |&length: &usize| {
        after -= length;
        (length * after) as f64
    };
    lengths.iter().map(weigh).collect()
}

/// Deals chunks to ranks. Chunks in a rank's memory stay there. The others follow, the heaviest
/// first, each to the rank with the least so far, of those that can read it from its store; ties to
/// the earlier chunk and the lower rank.
pub(crate) fn deal(weights: &[f64], held: &[Held], world: usize) -> Vec<usize> {
    assert_eq!(weights.len(), held.len(), "chunks with a weight, and with a place");
    assert!(world > 0, "{} chunks are dealt to no rank", weights.len());
    let stays = |chunk: usize| match held[chunk] {
        Held::Memory(rank) => Some(rank),
        Held::Nowhere | Held::Stored(_) => None,
    };
    let all: Vec<usize> = (0..world).collect();
    let may_have = |chunk: usize| match &held[chunk] {
        Held::Stored(ranks) => &ranks[..],
        Held::Nowhere | Held::Memory(_) => &all,
    };
    let is_there = |rank: &usize| *rank < world;
    assert!((0..held.len()).filter_map(stays).all(|rank| is_there(&rank)), "chunks of {world} ranks: {held:?}");
    assert!((0..held.len()).all(|chunk| may_have(chunk).iter().all(is_there)), "chunks of {world} ranks: {held:?}");
    let free = |&chunk: &usize| stays(chunk).is_none();
    let mut heaviest_first: Vec<usize> = (0..weights.len()).filter(free).collect();
    heaviest_first.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
    let mut loads = vec![0.0; world];
    let mut ranks: Vec<usize> = (0..held.len()).map(|chunk| stays(chunk).unwrap_or(0)).collect();
    for (chunk, weight) in weights.iter().enumerate().filter(|(chunk, _)| !free(chunk)) {
        loads[ranks[chunk]] += weight;
    }
    for chunk in heaviest_first {
        let least = may_have(chunk).iter().min_by(|&&a, &&b| f64::total_cmp(&loads[a], &loads[b]).then(a.cmp(&b)));
        let rank = *least.expect("there is at least one rank");
        loads[rank] += weights[chunk];
        ranks[chunk] = rank;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::tests::DEMO;

    #[test]
    fn chunks_are_dealt_evenly() {
        let cases: [(&[f64], usize, &[usize]); 7] = [
            (&[1.0, 1.0, 1.0, 1.0], 2, &[0, 1, 0, 1]),
            (&[1.0, 2.0, 3.0], 2, &[1, 1, 0]),
            (&[5.0, 4.0, 3.0, 3.0, 3.0], 2, &[0, 1, 1, 0, 1]),
            (&[1.0], 4, &[0]),
            (&[1.0, 2.0], 5, &[1, 0]),
            (&[3.0, 1.0, 2.0], 1, &[0, 0, 0]),
            (&[], 3, &[]),
        ];
        for (weights, world, wanted) in cases {
            assert_eq!(deal(weights, &vec![Held::Nowhere; weights.len()], world), wanted, "{weights:?} on {world}");
        }
        let (free, on) = (Held::Nowhere, Held::Memory(1));
        let deal = |weights: &[f64], held: &[&Held]| {
            deal(weights, &held.iter().map(|&held| held.clone()).collect::<Vec<_>>(), 2)
        };
        assert_eq!(deal(&[4.0, 1.0, 1.0, 1.0], &[&on, &free, &free, &free]), [1, 0, 0, 0], "one stays");
        assert_eq!(deal(&[0.0, 0.0, 1.0, 1.0], &[&on, &on, &free, &free]), [1, 1, 0, 1], "warm ones are no load");
        let (all, other) = (Held::Stored([0, 1].into()), Held::Stored([1].into()));
        assert_eq!(deal(&[1.0, 1.0, 1.0, 1.0], &[&all, &all, &all, &all]), [0, 1, 0, 1], "any rank reads them");
        assert_eq!(deal(&[1.0, 1.0, 1.0, 1.0], &[&other, &all, &other, &all]), [1, 0, 1, 0], "who can, reads");
    }

    #[test]
    fn pass_q_weighs_what_stands_after() {
        let weights = chunk_weights(&[10, 20, 30], 1, 5, Exchange::PassQ, &DEMO);
        assert_eq!(weights, [10.0 * 55.0, 20.0 * 35.0, 30.0 * 5.0]);
        let weights = chunk_weights(&[10, 20], 1, 5, Exchange::Replicate, &DEMO);
        assert_eq!(weights, [DEMO.prefill_flops(10, 1), DEMO.prefill_flops(20, 1)]);
        assert!(weights[1] > 2.0 * weights[0], "attention grows with the square");
    }
}
