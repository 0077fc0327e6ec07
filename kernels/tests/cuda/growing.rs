//! A context that stays and an answer that grows: every token sees both, and sends the device
//! nothing that grows with the context.

use candle_core::{DType, Device, Tensor};
use tributary_kernels::cuda::uploaded_bytes;
use tributary_kernels::{Kernels, Keys, PAD, Positions, Query, SHARED};

use crate::attention::{flat, relative, tolerance};
use crate::kit::{Random, gpu, on, values};

const KV_HEADS: usize = 2;
const HEADS: usize = 6;
const DIM: usize = 64;
/// Rows of the answer's first piece.
const FULL: u32 = 10;

/// Keys and values of random numbers on both sides.
struct Sides {
    host: Vec<Keys>,
    device: Vec<Keys>,
}

impl Sides {
    fn push(&mut self, random: &mut Random, at: &Positions, device: &Device) {
        let mut draw = || random.tensor(&[at.len(), KV_HEADS, DIM], DType::BF16);
        let (k, v) = (draw(), draw());
        let wide = |x: &Tensor| x.to_dtype(DType::F32).unwrap();
        self.host.push(Keys { k: wide(&k), v: wide(&v), at: at.clone() });
        self.device.push(Keys { k: on(&k, device), v: on(&v, device), at: at.clone() });
    }

    /// The first rows of the last block.
    fn shortened(&self, rows: usize, at: &Positions) -> [Vec<Keys>; 2] {
        [&self.host, &self.device].map(|blocks| {
            let (last, before) = blocks.split_last().unwrap();
            let cut = |x: &Tensor| x.narrow(0, 0, rows).unwrap();
            [before, &[Keys { k: cut(&last.k), v: cut(&last.v), at: at.clone() }]].concat()
        })
    }
}

/// A prefix that all see, and documents in another order than that of their rows; some rows are
/// hidden.
fn context(tokens: u32) -> Vec<Positions> {
    let prefix = Positions::new(vec![0; 5], (0..5).collect::<Vec<_>>(), vec![SHARED; 5]);
    let half = tokens / 2;
    let orders =
        |from: u32| (from..from + half).map(|order| if order % 7 == 3 { PAD } else { order }).collect::<Vec<_>>();
    let document = |from: u32| Positions::in_sequence(vec![0; half as usize], orders(from));
    vec![prefix, document(5 + half), document(5)]
}

/// Bytes that each of the answer's tokens sends, with a context of `tokens` tokens.
fn bytes_a_token(tokens: u32, answer: u32) -> Vec<u64> {
    let (device, mut random) = (gpu(), Random::new(u64::from(tokens)));
    let mut sides = Sides { host: Vec::new(), device: Vec::new() };
    context(tokens).iter().for_each(|at| sides.push(&mut random, at, &device));
    let first = 5 + tokens;
    let mut sent = Vec::new();
    // A piece of the answer is full, another one grows.
    for (piece, before) in [(FULL, 0), (answer, FULL)] {
        let at = |rows: u32| {
            let from = first + before;
            Positions::in_sequence(vec![0; rows as usize], (from..from + rows).collect::<Vec<_>>())
        };
        sides.push(&mut random, &at(piece), &device);
        for rows in 1..=piece {
            let (q, placed) = (random.tensor(&[1, HEADS, DIM], DType::BF16), at(rows));
            let [host, there] = sides.shortened(rows as usize, &placed);
            let row = placed.select(&[rows - 1]);
            let began = uploaded_bytes();
            let found = Kernels::Auto
                .attend(&Query {
                    q: &on(&q, &device),
                    at: &row,
                    keys: &there,
                    rope: None,
                    scale: 0.125,
                    dtype: DType::F32,
                })
                .unwrap();
            let again = Kernels::Auto
                .attend(&Query {
                    q: &on(&q, &device),
                    at: &row,
                    keys: &there,
                    rope: None,
                    scale: 0.125,
                    dtype: DType::F32,
                })
                .unwrap();
            sent.push(uploaded_bytes() - began);
            assert_eq!(values(&found.out), values(&again.out), "the next layer");
            let expected = Kernels::Auto
                .attend(&Query {
                    q: &q.to_dtype(DType::F32).unwrap(),
                    at: &row,
                    keys: &host,
                    rope: None,
                    scale: 0.125,
                    dtype: DType::F32,
                })
                .unwrap();
            let error = relative(&flat(&found.out), &values(&expected.out));
            assert!(error < tolerance(DType::BF16), "token {rows} of {piece} after {tokens}: {error:e}");
        }
    }
    sent
}

#[test]
fn a_token_sends_what_its_answer_needs_whatever_the_context() {
    let (short, long) = (bytes_a_token(300, 5), bytes_a_token(2400, 5));
    println!("bytes of the first tokens: {:?} after 300, {:?} after 2400", &short[..3], &long[..3]);
    assert!(long[0] > 12 * 2000, "the context's order is sent once");
    let most = |sent: &[u64]| sent[1..].iter().copied().max().unwrap();
    let (short, long) = (most(&short), most(&long));
    println!("a later token sends at most {short} bytes after 300, {long} after 2400");
    // Parts of the work are the more the more keys there are, at most as many as the device runs at
    // a time.
    assert!(long < 4096 && long < short + 1024, "{long} and {short} bytes");
}
