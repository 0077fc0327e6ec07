//! The keys that some queries can see: of a long block only the runs of rows in their past and in
//! their segments. A kernel prepares all keys that it gets, which a slice of a layer cannot afford.

use std::ops::Range;

use tributary_kernels::{Keys, PAD, Positions, Rule, SHARED};

use crate::error::Result;

/// Fewer hidden rows between two runs do not part them.
const GAP_ROWS: usize = 256;

/// `keys` without most of the rows that no query at `at` sees.
///
/// # Errors
/// Returns an error if a candle operation fails.
pub fn in_sight(at: &Positions, keys: &[Keys]) -> Result<Vec<Keys>> {
    let mut seen = Vec::with_capacity(keys.len());
    for block in keys {
        let Some(runs) = runs_in_sight(at, &block.at) else {
            seen.push(block.clone());
            continue;
        };
        for run in runs {
            let of = |x: &candle_core::Tensor| x.narrow(0, run.start, run.len());
            let rows: Vec<u32> = (run.start as u32..run.end as u32).collect();
            seen.push(Keys { k: of(&block.k)?, v: of(&block.v)?, at: block.at.select(&rows) });
        }
    }
    // Queries that see nothing need a block too.
    Ok(if seen.is_empty() { keys.to_vec() } else { seen })
}

/// The runs of keys outside which no query at `at` sees a key at `keys`; `None` for all keys.
pub fn runs_in_sight(at: &Positions, keys: &Positions) -> Option<Vec<Range<usize>>> {
    if at.rule() != Rule::Causal || keys.heads().is_some() {
        return None;
    }
    let latest = at.order().iter().copied().filter(|&order| order != PAD).max();
    let mut segments = at.segment().to_vec();
    segments.sort_unstable();
    segments.dedup();
    let lowest = (0..at.len()).filter(|&row| at.order()[row] != PAD).map(|row| at.lowest(row)).min();
    let (orders, segment_of, rope) = (keys.order(), keys.segment(), keys.rope());
    let is_seen = |row: usize| {
        let (order, segment) = (orders[row], segment_of[row]);
        let in_past = order != PAD && latest.is_some_and(|latest| order <= latest);
        let in_past = in_past && lowest.is_some_and(|lowest| rope[row] >= lowest);
        in_past && (segment == SHARED || segments.binary_search(&segment).is_ok())
    };
    let runs = runs(keys.len(), is_seen);
    if matches!(&*runs, [run] if run.len() == keys.len()) { None } else { Some(runs) }
}

/// Runs of rows that are seen, joined over short gaps.
fn runs(rows: usize, is_seen: impl Fn(usize) -> bool) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for row in (0..rows).filter(|&row| is_seen(row)) {
        match runs.last_mut() {
            Some(run) if row - run.end < GAP_ROWS => run.end = row + 1,
            _ => runs.push(row..row + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::*;
    use crate::kit;

    fn values(rows: usize, heads: usize) -> Tensor {
        let numbers: Vec<f32> = (0..rows * heads * 8).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0).collect();
        Tensor::from_vec(numbers, (rows, heads, 8), &Device::Cpu).expect("numbers")
    }

    #[test]
    fn attention_to_keys_in_sight_is_attention() {
        let model = kit::model(&kit::config());
        let math = kit::math(&*model, 2048);
        let math = math.layer(0);
        // A head of 10 rows seen by all, then three chunks of 600.
        let (head, chunk) = (10u32, 600u32);
        let order: Vec<u32> = (0..head).chain((0..3).flat_map(|_| head..head + chunk)).collect();
        let segment = std::iter::repeat_n(SHARED, head as usize);
        let segment: Vec<u32> = segment.chain((0..3).flat_map(|number| [number; 600])).collect();
        let at = Positions::new(order.clone(), order, segment);
        let keys = [Keys { k: values(at.len(), 2), v: values(at.len(), 2), at: at.clone() }];
        for (queries, kept) in [(1300..1340u32, 10 + 131), (600..620, 610 + 10), (1210..1211, 10 + 1)] {
            let at = at.select(&queries.clone().collect::<Vec<_>>());
            let q = values(at.len(), 4);
            let seen = in_sight(&at, &keys).expect("keys");
            let rows: usize = seen.iter().map(|block| block.at.len()).sum();
            assert!(rows < 1810 && rows >= kept - 1, "{queries:?}: {rows} rows of {kept}");
            let (whole, part) = (math.attend(&q, &at, &keys), math.attend(&q, &at, &seen));
            let (whole, part) = (whole.expect("attention"), part.expect("attention"));
            for (found, wanted) in [(&part.out, &whole.out), (&part.lse, &whole.lse)] {
                let far = (found - wanted).and_then(|far| far.abs()?.flatten_all()?.max(0)?.to_dtype(DType::F32));
                let far = far.and_then(|far| far.to_scalar::<f32>()).expect("a number");
                assert!(far < 1e-5, "{queries:?}: {far:e}");
            }
        }
    }

    #[test]
    fn short_gaps_do_not_part_runs() {
        let ends = |is_seen: fn(usize) -> bool| -> Vec<(usize, usize)> {
            runs(1000, is_seen).into_iter().map(|run| (run.start, run.end)).collect()
        };
        assert_eq!(ends(|row| row != 500), [(0, 1000)]);
        assert_eq!(ends(|row| !(300..600).contains(&row)), [(0, 300), (600, 1000)]);
        assert_eq!(ends(|row| row > 900), [(901, 1000)]);
        assert_eq!(ends(|_| false), []);
    }
}
