//! Keys with other positions in each KV head, as an eviction leaves them: against f64, head by
//! head.

#![allow(clippy::unwrap_used, dead_code)] // a test may panic; the naive module serves others too

use candle_core::{DType, Device, Tensor};
use tributary_kernels::{
    Kernels, Keys, PAD, Pairing, Positions, Query, Readings, Reduce, Rope, RopeConfig, RopeScaling, Rule, SHARED,
    gather, merge,
};

mod naive;
use naive::{Case, Random, Sizes};

const BOTH: [Kernels; 2] = [Kernels::Auto, Kernels::Plain];
const KV_HEADS: usize = 2;
const GROUP: usize = 3;
const HEAD_DIM: usize = 16;
const ROTARY: Option<(Pairing, usize)> = Some((Pairing::Half, HEAD_DIM));

/// A call over three blocks, the first two with positions per KV head; and the same as each head
/// sees it.
fn case(queries: usize, seed: u64) -> (Case, Vec<Case>) {
    let sizes = Sizes {
        seed,
        queries,
        keys: vec![37, 5, 120],
        kv_heads: KV_HEADS,
        group: GROUP,
        head_dim: HEAD_DIM,
        segments: 2,
        orders: 60,
        rotary: ROTARY,
        dtype: DType::F32,
        ascending: false,
    };
    let mut whole = Case::new(&sizes);
    let other = Case::new(&Sizes { seed: seed + 1, ..sizes });
    for block in 0..2 {
        let heads = vec![whole.keys[block].at.clone(), other.keys[block].at.clone()];
        assert_ne!(heads[0], heads[1]);
        whole.keys[block].at = Positions::per_head(heads);
    }
    let of_head = |head: usize| {
        let cut = |block: &Keys| Keys {
            k: block.k.narrow(1, head, 1).unwrap(),
            v: block.v.narrow(1, head, 1).unwrap(),
            at: block.at.of_head(head).clone(),
        };
        Case {
            q: whole.q.narrow(1, head * GROUP, GROUP).unwrap(),
            at_q: whole.at_q.clone(),
            keys: whole.keys.iter().map(cut).collect(),
            rope: whole.rope.clone(),
            scale: whole.scale,
        }
    };
    let heads = (0..KV_HEADS).map(of_head).collect();
    (whole, heads)
}

/// Numbers of each head, `[queries, GROUP, width]`, as those of all, `[queries, KV_HEADS · GROUP,
/// width]`.
fn interleaved(heads: &[Vec<f64>], width: usize) -> Vec<f64> {
    let row = GROUP * width;
    let queries = heads[0].len() / row;
    (0..queries).flat_map(|i| heads.iter().flat_map(move |head| head[i * row..(i + 1) * row].to_vec())).collect()
}

fn flat(x: &Tensor) -> Vec<f32> {
    x.flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn attention_over_keys_per_head_is_that_of_each_head() {
    for queries in [1, 7, 90] {
        let (whole, heads) = case(queries, 3 + queries as u64);
        let (out, lse): (Vec<_>, Vec<_>) = heads.iter().map(|head| naive::attend(head, ROTARY)).unzip();
        let (out, lse) = (interleaved(&out, HEAD_DIM), interleaved(&lse, 1));
        for kernels in BOTH {
            let attend = |keys: &[Keys]| kernels.attend(&Query { keys, ..whole.query() }).unwrap();
            let at_once = attend(&whole.keys);
            let beside = merge(&attend(&whole.keys[..2]), &attend(&whole.keys[2..])).unwrap();
            for (what, found) in [("at once", at_once), ("merged beside a shared block", beside)] {
                let error = naive::distance(&flat(&found.out), &out).max(naive::distance(&flat(&found.lse), &lse));
                assert!(error < 5e-6, "{kernels:?}, {queries} queries, {what}: {error:e}");
            }
        }
    }
}

#[test]
fn what_keys_per_head_receive_is_what_each_head_gives_them() {
    let (whole, heads) = case(9, 21);
    let lse: Vec<Vec<f64>> = heads.iter().map(|head| naive::attend(head, ROTARY).1).collect();
    let given: Vec<_> = heads.iter().zip(&lse).map(|(head, lse)| naive::attention(head, ROTARY, lse)).collect();
    let narrow: Vec<f32> = interleaved(&lse, 1).iter().map(|&lse| lse as f32).collect();
    let lse = Tensor::from_vec(narrow, (9, KV_HEADS * GROUP), &Device::Cpu).unwrap();
    let count = whole.keys.iter().map(|block| block.at.len()).sum();
    let mean: Vec<Vec<f64>> =
        (0..9).map(|i| (0..count).map(|j| (given[0][i][j] + given[1][i][j]) / 2.0).collect()).collect();
    let weights = Random::new(8).values(9);
    for kernels in BOTH {
        for reduce in [Reduce::Norm, Reduce::Mass, Reduce::Weighted(&weights)] {
            let found = kernels.column_scores(&whole.query(), &lse, reduce);
            let error = naive::distance(&flat(&found.unwrap()), &naive::reduced(&mean, count, reduce));
            assert!(error < 1e-5, "{kernels:?}, {reduce:?}: {error:e}");
        }
        let read = |by| flat(&kernels.readings(&whole.query(), &lse, by).unwrap());
        let by_head: Vec<f64> = given.iter().flat_map(|head| naive::reduced(head, count, Reduce::Mass)).collect();
        assert!(naive::distance(&read(Readings::PerKvHead), &by_head) < 1e-5, "{kernels:?}");
        assert!(naive::distance(&read(Readings::PerRow), &mean.concat()) < 1e-5, "{kernels:?}");
        let of_head = |(number, head): (usize, &Case)| {
            let lse = lse.narrow(1, number * GROUP, GROUP).unwrap();
            flat(&kernels.readings(&head.query(), &lse, Readings::Largest).unwrap())
        };
        let largest: Vec<Vec<f32>> = heads.iter().enumerate().map(of_head).collect();
        let largest: Vec<f64> = largest[0].iter().zip(&largest[1]).map(|(a, b)| f64::from(a.max(*b))).collect();
        assert!(naive::distance(&read(Readings::Largest), &largest) < 1e-6, "{kernels:?}");
    }
}

#[test]
fn keys_turned_to_the_positions_of_each_head_are_the_same_keys() {
    let (whole, _) = case(1, 5);
    let rope = whole.rope.as_ref().unwrap();
    let turn = |block: &Keys| Keys { k: rope.apply(&block.k, &block.at).unwrap(), ..block.clone() };
    let turned: Vec<Keys> = whole.keys.iter().map(turn).collect();
    let q = rope.apply(&whole.q, &whole.at_q).unwrap();
    let on_the_way = Kernels::Auto
        .attend(&Query {
            q: &whole.q,
            at: &whole.at_q,
            keys: &whole.keys,
            rope: Some(rope),
            scale: whole.scale,
            dtype: DType::F32,
        })
        .unwrap();
    let before = Kernels::Auto
        .attend(&Query { q: &q, at: &whole.at_q, keys: &turned, rope: None, scale: whole.scale, dtype: DType::F32 })
        .unwrap();
    let expected: Vec<f64> = flat(&on_the_way.out).into_iter().map(f64::from).collect();
    assert!(naive::distance(&flat(&before.out), &expected) < 5e-6);
}

#[test]
fn rows_of_every_head_are_taken_hidden_and_joined_alike() {
    let heads = Positions::per_head(vec![Positions::run(0, 3), Positions::run(10, 3)]);
    let shared = Positions::new(vec![7, 8], vec![1, 2], vec![SHARED, 0]);
    assert_eq!((heads.heads(), heads.len(), shared.heads()), (Some(2), 3, None));
    assert_eq!(heads.select(&[2, 0]).of_head(1).rope(), [12, 10]);
    assert_eq!(heads.without(&[1]).of_head(0).order(), [0, PAD, 2]);
    let both = Positions::concat(&[&heads, &shared]);
    assert_eq!((both.of_head(1).rope(), both.of_head(0).order()), (&[10, 11, 12, 7, 8][..], &[0, 1, 2, 1, 2][..]));
}

#[test]
fn heads_that_do_not_fit_are_refused() {
    let (whole, _) = case(2, 13);
    let rope = Rope::new(
        &RopeConfig {
            head_dim: HEAD_DIM,
            rotary_dims: HEAD_DIM,
            theta: 1e4,
            scaling: &RopeScaling::None,
            pairing: Pairing::Half,
        },
        64,
    )
    .unwrap();
    let three = Positions::per_head(vec![Positions::run(0, 5); 3]);
    let block = Keys { at: three.clone(), ..whole.keys[1].clone() };
    let refusal = Kernels::Auto
        .attend(&Query { q: &whole.q, at: &whole.at_q, keys: &[block], rope: None, scale: 1.0, dtype: DType::F32 })
        .unwrap_err()
        .to_string();
    assert!(refusal.contains("KV heads with positions of keys: expected 2, found 3"), "{refusal}");
    assert!(rope.apply(&whole.keys[1].k, &three).is_err());
    let queries = Positions::per_head(vec![Positions::run(0, 2); 2]);
    let q = gather(&whole.q, &[0, 1]).unwrap();
    let refusal = Kernels::Auto
        .attend(&Query { q: &q, at: &queries, keys: &whole.keys, rope: None, scale: 1.0, dtype: DType::F32 })
        .unwrap_err()
        .to_string();
    assert!(refusal.contains("KV heads with positions of queries: expected 0, found 2"), "{refusal}");
}

#[test]
#[should_panic(expected = "positions of 2 KV heads are read as one")]
fn nobody_reads_the_positions_of_heads_as_one() {
    let _ = Positions::per_head(vec![Positions::run(0, 3), Positions::run(10, 3)]).order();
}
