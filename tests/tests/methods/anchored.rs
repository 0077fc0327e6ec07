//! QCFuse-like's selection against a slow computation of its definition, in every world and
//! exchange; its anchors against those of chunks that another method left in the cache; and the
//! setting in which it scores as InfoFlow does.

use std::ops::Range;
use std::sync::Arc;

use tributary_kernels::{Kernels, Keys, Partial, Positions, gather};
use tributary_model::{Attention, LayerAttention, Model, Progress, Qkv, Result};
use tributary_protocol::{Exchange, Plan, SplitMix64};
use tributary_tests::equal::assert_same_bits;
use tributary_tests::samples::Case;
use tributary_tests::{dummy_model, group, kept, method, plan, run, run_all, run_one, tiny_config, warm, with_ratio};

const EXCHANGES: [Exchange; 3] = [Exchange::Replicate, Exchange::PassQ, Exchange::Selected];
const CHUNKS: [usize; 6] = [17, 5, 23, 9, 1, 31];

/// Keys and values of every layer, and the positions at which they stand.
type Seen = (Vec<Qkv>, Positions);

/// A chunk in the sequence, and its rows.
type Standing = (Seen, Range<u32>);

/// A pass of rows that see what is there and each other. It records its rows, layer by layer.
struct Recording<'a> {
    model: &'a dyn Model,
    at: Positions,
    before: &'a [Seen],
    rows: Vec<Qkv>,
    progress: Progress,
}

impl Attention for Recording<'_> {
    type Error = tributary_model::Error;

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let key = |rows: &Qkv, at: &Positions| Keys { k: rows.k.clone(), v: rows.v.clone(), at: at.clone() };
        let mut keys: Vec<Keys> = self.before.iter().map(|(layers, at)| key(&layers[layer], at)).collect();
        keys.push(key(&qkv, &self.at));
        self.rows.push(qkv.clone());
        self.model.layer_attention(1024)?[layer].attend(Kernels::Plain, &qkv.q, &self.at, &keys)
    }
}

/// Positions of rows that stand at the places of their numbers.
fn standing(places: impl Iterator<Item = u32>) -> Positions {
    let places: Vec<u32> = places.collect();
    Positions::in_sequence(places.clone(), places)
}

/// The rows of a pass in every layer.
fn passed(model: &dyn Model, ids: &[u32], at: &Positions, before: &[Seen]) -> Vec<Qkv> {
    let mut recording = Recording { model, at: at.clone(), before, rows: Vec::new(), progress: Progress::default() };
    model.layers(0..model.config().layers, model.embed(ids).expect("ids"), &mut recording).expect("layers");
    recording.rows
}

/// Some of a pass's rows.
fn picked(layers: &[Qkv], rows: &[u32]) -> Vec<Qkv> {
    let of = |x: &candle_core::Tensor| gather(x, rows).expect("rows");
    layers.iter().map(|layer| Qkv { q: of(&layer.q), k: of(&layer.k), v: of(&layer.v) }).collect()
}

type Numbers = Vec<Vec<Vec<f64>>>;

fn numbers(x: &candle_core::Tensor) -> Numbers {
    let rows = x.to_vec3::<f32>().expect("f32");
    let wide = |head: Vec<f32>| head.into_iter().map(f64::from).collect();
    rows.into_iter().map(|row| row.into_iter().map(wide).collect()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The mean query of a layer over 64 tokens that are drawn with the seed 0, one list a head.
fn typical(model: &dyn Model, layer: usize) -> Vec<Vec<f64>> {
    let mut draw = SplitMix64::new(0);
    let ids: Vec<u32> = (0..64).map(|_| draw.below(model.config().vocab) as u32).collect();
    let queries = numbers(&passed(model, &ids, &standing(0..64), &[])[layer].q);
    let mean = |head: usize, place: usize| queries.iter().map(|row| row[head][place]).sum::<f64>() / 64.0;
    (0..queries[0].len()).map(|head| (0..queries[0][0].len()).map(|place| mean(head, place)).collect()).collect()
}

/// First, last, and the `count` others that the mean query attends to most, where distance does not
/// count.
fn anchors(keys: &Numbers, (query, scale): (&[Vec<f64>], f32), count: usize) -> Vec<u32> {
    let rows = keys.len();
    let mut received = vec![0.0; rows];
    let group = query.len() / keys[0].len();
    for (head, query) in query.iter().enumerate() {
        let key = |row: usize| &keys[row][head / group];
        let weights: Vec<f64> = (0..rows).map(|row| (f64::from(scale) * dot(query, key(row))).exp()).collect();
        let all: f64 = weights.iter().sum();
        received.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += weight / all);
    }
    let mut inner: Vec<usize> = (1..rows.saturating_sub(1)).collect();
    inner.sort_by(|&a, &b| f64::total_cmp(&received[b], &received[a]));
    inner.truncate(count);
    let mut all: Vec<u32> = inner.into_iter().chain([0, rows - 1]).map(|row| row as u32).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The attention of each query to each of some keys, the mean over heads: causal by place.
fn attention(layer: &LayerAttention, (q, at): (&Qkv, &Positions), seen: &[Seen], number: usize) -> Vec<Vec<f64>> {
    let queries = numbers(&layer.rope.apply(&q.q, at).expect("turned"));
    let mut keys: Vec<(Vec<Vec<f64>>, u32)> = Vec::new();
    for (layers, at) in seen {
        let turned = numbers(&layer.rope.apply(&layers[number].k, at).expect("turned"));
        keys.extend(turned.into_iter().zip(at.order().iter().copied()));
    }
    let group = queries[0].len() / keys[0].0.len();
    let of_query = |(query, &place): (&Vec<Vec<f64>>, &u32)| {
        let mut means = vec![0.0; keys.len()];
        for (head, query) in query.iter().enumerate() {
            let weight = |(key, of): &(Vec<Vec<f64>>, u32)| match *of <= place {
                true => (f64::from(layer.scale) * dot(query, &key[head / group])).exp(),
                false => 0.0,
            };
            let weights: Vec<f64> = keys.iter().map(weight).collect();
            let all: f64 = weights.iter().sum();
            means.iter_mut().zip(&weights).for_each(|(mean, weight)| *mean += weight / all);
        }
        means.iter().map(|mean| mean / queries[0].len() as f64).collect()
    };
    queries.iter().zip(at.order()).map(of_query).collect()
}

/// The parameters of a slow computation.
#[derive(Clone, Copy)]
struct Asked {
    spec: &'static str,
    layer: usize,
    anchors: usize,
    share: f64,
    by_norm: bool,
    ratio: f64,
}

/// Scores of the context's rows, the selected rows, and the number of chunks that are selected
/// whole for the budget's sake, from the definition.
fn slow(model: &dyn Model, plan: &Plan, asked: Asked) -> (Vec<f64>, Vec<u32>, usize) {
    let layer = &model.layer_attention(1024).expect("layers")[asked.layer];
    let typical = typical(model, asked.layer);
    let prefix_rows = plan.prefix.len() as u32;
    let prefix_at = standing(0..prefix_rows);
    let prefix = (passed(model, &plan.prefix, &prefix_at, &[]), prefix_at);
    let (mut chunks, mut stand_in): (Vec<Standing>, Vec<(Seen, usize)>) = (Vec::new(), Vec::new());
    for (chunk, rows) in plan.chunks.iter().zip(plan.chunk_rows()) {
        let alone = standing(prefix_rows..prefix_rows + rows.len() as u32);
        let layers = passed(model, &chunk.ids, &alone, std::slice::from_ref(&prefix));
        let of_chunk = anchors(&numbers(&layers[asked.layer].k), (&typical, layer.scale), asked.anchors);
        let at = standing(of_chunk.iter().map(|place| rows.start + place));
        stand_in.push(((picked(&layers, &of_chunk), at), of_chunk.len()));
        chunks.push(((layers, standing(rows.clone())), rows));
    }
    let query_at = standing(plan.query_rows());
    let mut seen: Vec<Seen> =
        std::iter::once(prefix.clone()).chain(stand_in.iter().map(|(seen, _)| seen.clone())).collect();
    let query = passed(model, &plan.query, &query_at, &seen);
    seen.push((query.clone(), query_at.clone()));
    let paid = attention(layer, (&query[asked.layer], &query_at), &seen, asked.layer);
    let mut next = prefix_rows as usize;
    let worth: Vec<f64> = stand_in
        .iter()
        .map(|(_, count)| {
            let own = next..next + count;
            next = own.end;
            paid.iter().flat_map(|of_query| &of_query[own.clone()]).sum::<f64>() / (count * paid.len()) as f64
        })
        .collect();
    let mut ranked: Vec<usize> = (1..chunks.len()).collect();
    ranked.sort_by(|&a, &b| worth[b].total_cmp(&worth[a]));
    let (mut read, mut whole) = ((asked.share * ranked.len() as f64).ceil() as usize, 0);
    let rows_of = |chunks: &[usize], of: &[Standing]| -> Vec<u32> {
        chunks.iter().flat_map(|&chunk| of[chunk].1.clone()).collect()
    };
    while read < ranked.len() && rows_of(&ranked[..read], &chunks).len() < plan.budget {
        (whole, read) = (read, read + 1);
    }
    let best = &ranked[..read];
    let mut seen = vec![prefix];
    seen.extend(best.iter().map(|&chunk| chunks[chunk].0.clone()));
    seen.push((query.clone(), query_at.clone()));
    let paid = attention(layer, (&query[asked.layer], &query_at), &seen, asked.layer);
    let mut scores = vec![0.0; plan.context_rows()];
    for (place, &row) in rows_of(best, &chunks).iter().enumerate() {
        let of_row = paid.iter().map(|of_query| of_query[prefix_rows as usize + place]);
        let score = if asked.by_norm { of_row.map(|a| a * a).sum::<f64>().sqrt() } else { of_row.sum() };
        scores[(row - prefix_rows) as usize] = score;
    }
    let (mut selected, mut rest) = (rows_of(&best[..whole], &chunks), rows_of(&best[whole..], &chunks));
    rest.sort_by(|a, b| scores[(b - prefix_rows) as usize].total_cmp(&scores[(a - prefix_rows) as usize]));
    rest.truncate(plan.budget - selected.len());
    selected.extend(rest);
    selected.sort_unstable();
    (scores, selected, whole)
}

fn model() -> Arc<dyn Model> {
    dummy_model(&tiny_config(&[]), 3)
}

#[test]
fn scores_and_rows_are_those_of_the_definition_in_every_world_and_exchange() {
    let model = model();
    let bare = Asked { spec: "qcfuse-like", layer: 2, anchors: 4, share: 0.5, by_norm: true, ratio: 0.3 };
    let cases = [
        bare,
        Asked { spec: "qcfuse-like:score=mass:layer=1:anchors=1", layer: 1, anchors: 1, by_norm: false, ..bare },
        Asked {
            spec: "qcfuse-like:layer=3:anchors=0:chunks=0.2",
            layer: 3,
            anchors: 0,
            share: 0.2,
            ratio: 0.6,
            ..bare
        },
    ];
    let mut largest = 0.0;
    for asked in cases {
        let of = |world, exchange| with_ratio(plan(3, &CHUNKS, 5, world, method(asked.spec), exchange), asked.ratio);
        let one = of(1, Exchange::PassQ);
        let (scores, selected, whole) = slow(&*model, &one, asked);
        let peak = scores.iter().copied().fold(0.0, f64::max);
        let read = scores.iter().filter(|&&score| score > 0.0).count();
        assert_eq!((selected.len(), whole > 0), (one.budget, asked.share < 0.5), "{}", asked.spec);
        assert!(read > selected.len() && read < one.context_rows(), "{}: {read} rows are read", asked.spec);
        for world in 1..=4 {
            for exchange in EXCHANGES {
                let what = format!("{}, world {world}, {exchange:?}", asked.spec);
                let found = run(&model, world, &of(world, exchange)).0;
                assert_eq!(found.selected, selected, "{what}");
                let given = found.scores.expect("scores of the context's rows");
                for (row, (given, score)) in given.iter().zip(&scores).enumerate() {
                    let error = (f64::from(*given) - score).abs() / peak;
                    assert!(error < 1e-4, "{what}, row {row}: {given} for {score}");
                    largest = f64::max(largest, error);
                }
            }
        }
    }
    println!("scores of anchored probes: largest error {largest:.1e} of the largest score");
}

/// Anchors follow from cached keys, so it does not matter who left a chunk.
#[test]
fn chunks_that_another_method_left_have_the_same_anchors() {
    let model = model();
    for world in 1..=3 {
        let of = |spec| with_ratio(plan(3, &CHUNKS, 5, world, method(spec), Exchange::PassQ), 0.3);
        let (ours, cold) = (group(&model, world), group(&model, world));
        let (left, _) = run_one(&ours, &kept(of("infoflow")));
        let (found, reports) = run_one(&ours, &warm(of("qcfuse-like")));
        let (expected, _) = run_one(&cold, &of("qcfuse-like"));
        let hits: usize = reports.iter().map(|report| report.chunk_cache.hits).sum();
        assert_eq!(hits, CHUNKS.len(), "world {world}");
        assert_same_bits(&found, &expected, &format!("world {world}"));
        assert_ne!(found.selected, left.selected, "world {world}: another method's rows");
        ours.end().and_then(|()| cold.end()).expect("the groups end well");
    }
}

/// Where all rows are anchors and all chunks are read, the first too, the query sees what
/// InfoFlow's does.
#[test]
fn with_all_rows_as_anchors_it_is_infoflow_in_one_layer() {
    let model = model();
    for (world, lead) in [(1, &[][..]), (2, &[1, 1]), (3, &[])] {
        let exchange = EXCHANGES[world - 1];
        let case = Case { prefix: 3, lead, chunks: &CHUNKS, query: 5, world, exchange, ratio: 0.3 };
        let plan = |spec: &str| case.planned(spec, &*model).expect("a plan");
        let specs = [
            ("qcfuse-like:anchors=1000:chunks=1:layer=1", "infoflow:layers=1..2"),
            ("qcfuse-like:anchors=1000:chunks=1:layer=3:score=mass", "infoflow:layers=3..4:score=mass"),
        ];
        for (ours, theirs) in specs {
            let plans = [ours, theirs].map(|spec| plan(&format!("{spec}:layout=tl-tp:first")));
            let found = run_all(&model, Kernels::Auto, world, &plans);
            let [ours, theirs] = [0, 1].map(|index| &found[index].0);
            assert_eq!(ours.selected, theirs.selected, "{theirs:?}, world {world}");
            let scores = ours.scores.iter().flatten().zip(theirs.scores.iter().flatten());
            let error = scores.map(|(a, b)| (a - b).abs() / a.max(*b)).fold(0.0, f32::max);
            assert!(error < 1e-4, "world {world}: {error:e}");
            assert!(ours.scores.as_ref().is_some_and(|scores| scores.iter().all(|&score| score > 0.0)));
        }
    }
}
