//! The operations between products, by the bytes that they must move.

use candle_core::{DType, Device, Tensor};
use tributary_kernels::cuda::{download, uniform};
use tributary_kernels::{
    Gate, Pairing, Partial, Positions, Rope, RopeConfig, RopeScaling, add, gated, merge, rms_norm, scale,
};

use crate::case::{Bound, Case, Planned};
use crate::{DIM, HEADS, KV_HEADS, distance, flat, host_rows, picked, random};

const HIDDEN: usize = HEADS * DIM;
const WIDE: usize = 14336;

/// An operation on rows, each for itself: checked on some of them against the CPU's in f32.
/// `numbers` are read and written a row.
fn by_rows(numbers: usize, inputs: Vec<Tensor>, work: impl Fn(&[Tensor], &Positions) -> Tensor + 'static) -> Case {
    let count = inputs[0].dims()[0];
    let (rows, at) = (picked(count), Positions::run(0, count));
    let few: Vec<Tensor> = inputs.iter().map(|input| host_rows(input, &rows)).collect();
    let expected = flat(&work(&few, &at.select(&rows)));
    let error = distance(&flat(&host_rows(&work(&inputs, &at), &rows)), &expected);
    Case::new(Bound::Memory, 0.0, (2 * count * numbers) as f64, move || work(&inputs, &at)).with_error(error)
}

/// Makes the tensors of a case.
#[derive(Clone)]
struct Rows {
    count: usize,
    device: Device,
}

impl Rows {
    fn of(&self, key: u8, width: usize) -> Tensor {
        random(key, &[self.count, width], &self.device)
    }

    fn of_heads(&self, key: u8, heads: usize) -> Tensor {
        random(key, &[self.count, heads, DIM], &self.device)
    }

    fn norm(&self) -> Case {
        let weight = uniform([18; 32], 1.0, &[HIDDEN], DType::F32, &self.device).unwrap();
        by_rows(2 * HIDDEN, vec![self.of(4, HIDDEN)], move |of, _| {
            let weight = if of[0].device().is_cpu() { download(&weight).unwrap() } else { weight.clone() };
            rms_norm(&of[0], &weight, 1e-5).unwrap()
        })
    }

    fn rope(&self) -> Case {
        let rope = Rope::new(
            &RopeConfig {
                head_dim: DIM,
                rotary_dims: DIM,
                theta: 5e5,
                scaling: &RopeScaling::None,
                pairing: Pairing::Half,
            },
            self.count,
        )
        .unwrap();
        by_rows(2 * KV_HEADS * DIM, vec![self.of_heads(8, KV_HEADS)], move |of, at| rope.apply(&of[0], at).unwrap())
    }

    fn gated(&self, by: Gate) -> Case {
        let both = vec![self.of(6, WIDE), self.of(7, WIDE)];
        by_rows(3 * WIDE, both, move |of, _| gated(&of[0], &of[1], by).unwrap())
    }

    fn merge(&self) -> Case {
        let lse = |key: u8| uniform([key; 32], 1.0, &[self.count, HEADS], DType::F32, &self.device).unwrap();
        let two = vec![self.of_heads(9, HEADS), lse(10), self.of_heads(11, HEADS), lse(12)];
        let partial = |out: &Tensor, lse: &Tensor| Partial { out: out.clone(), lse: lse.clone() };
        by_rows(3 * HIDDEN + 6 * HEADS, two, move |of, _| {
            merge(&partial(&of[0], &of[1]), &partial(&of[2], &of[3])).unwrap().out
        })
    }

    fn launches(&self) -> Case {
        let (small, other) = (random(13, &[1, HIDDEN], &self.device), random(14, &[1, HIDDEN], &self.device));
        Case::new(Bound::Nothing, 0.0, 0.0, move || (0..100).fold(small.clone(), |sum, _| add(&sum, &other).unwrap()))
    }
}

pub fn planned(keys: usize, device: &Device) -> Vec<Planned> {
    let rows = Rows { count: keys, device: device.clone() };
    let of = |name: &'static str, make: fn(&Rows) -> Case| {
        let rows = rows.clone();
        Planned::new(name, move || make(&rows))
    };
    vec![
        of("rms_norm", Rows::norm),
        of("scale", |rows| by_rows(2 * HIDDEN, vec![rows.of(4, HIDDEN)], |of, _| scale(&of[0], 0.9).unwrap())),
        of("add", |rows| {
            by_rows(3 * HIDDEN, vec![rows.of(4, HIDDEN), rows.of(5, HIDDEN)], |of, _| add(&of[0], &of[1]).unwrap())
        }),
        of("silu_mul", |rows| rows.gated(Gate::Silu)),
        of("gelu_mul", |rows| rows.gated(Gate::GeluTanh)),
        of("clamped_silu_mul", |rows| rows.gated(Gate::ClampedSilu { limit: 7.0 })),
        of("rope of keys", Rows::rope),
        of("merge of two", Rows::merge),
        of("100 small launches", Rows::launches),
    ]
}
