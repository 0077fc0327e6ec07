//! Every operation of kernels with its own backward pass, compared with candle's gradients, or
//! finite differences, in f64.

use candle_core::{DType, Device, Result, Tensor, Var};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use tributary_kernels::{
    Gate, Kernels, Keys, Pairing, Positions, Query, Rope, RopeConfig, RopeScaling, SHARED, gated, linear, rms_norm,
};

/// Numbers between −1 and 1, the same ones every time.
fn numbers(seed: u64, shape: &[usize]) -> Tensor {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let count = shape.iter().product();
    let numbers: Vec<f64> = (0..count).map(|_| f64::from(random.next_u32()) / 2_147_483_648.0 - 1.0).collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu).expect("numbers")
}

fn variable(seed: u64, shape: &[usize]) -> Var {
    Var::from_tensor(&numbers(seed, shape)).expect("a variable")
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.flatten_all().and_then(|flat| flat.to_dtype(DType::F64)?.to_vec1()).expect("numbers")
}

/// The largest difference, as a share of the largest value.
fn error(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len(), "as many numbers");
    let largest = expected.iter().fold(0.0f64, |most, value| most.max(value.abs()));
    let apart = found.iter().zip(expected).fold(0.0f64, |most, (a, b)| most.max((a - b).abs()));
    apart / largest.max(1e-12)
}

/// Largest difference between the gradient of `loss` at `at` and its central differences, as a
/// share of the largest slope.
fn differs(at: &Var, loss: impl Fn() -> Result<Tensor>) -> f64 {
    let gradients = loss().and_then(|loss| loss.backward()).expect("gradients");
    let found = values(gradients.get(at).expect("a gradient"));
    let (start, step) = (values(at), 1e-5);
    let at_other = |index: usize, by: f64| {
        let mut moved = start.clone();
        moved[index] += by;
        at.set(&Tensor::from_vec(moved, at.dims(), &Device::Cpu).expect("numbers")).expect("set");
        loss().and_then(|loss| loss.to_scalar::<f64>()).expect("a loss")
    };
    let slope = |index| (at_other(index, step) - at_other(index, -step)) / (2.0 * step);
    let expected: Vec<f64> = (0..start.len()).map(slope).collect();
    at.set(&Tensor::from_vec(start, at.dims(), &Device::Cpu).expect("numbers")).expect("set");
    error(&found, &expected)
}

#[test]
fn gradients_of_small_operations_are_those_of_finite_differences() {
    let (weight, norm) = (numbers(2, &[5, 6]), numbers(3, &[6]));
    let x = variable(1, &[7, 6]);
    let pull = |out: Tensor| (out.clone() * numbers(4, out.dims()))?.sum_all();
    assert!(differs(&x, || pull(linear(&x, &weight, None).expect("a product"))) < 1e-8);
    assert!(differs(&x, || pull(rms_norm(&x, &norm, 1e-5).expect("normalised"))) < 1e-8);
    let (gate, up) = (variable(5, &[3, 4]), variable(6, &[3, 4]));
    // A limit that some gates meet, and some of their partners on either side.
    for by in [Gate::Silu, Gate::GeluTanh, Gate::ClampedSilu { limit: 7.0 }, Gate::ClampedSilu { limit: 0.4 }] {
        let loss = || pull(gated(&gate, &up, by).expect("gated"));
        assert!(differs(&gate, loss) < 1e-8 && differs(&up, loss) < 1e-8, "{by:?}");
    }
    for pairing in [Pairing::Half, Pairing::Interleaved] {
        let rope = Rope::new(
            &RopeConfig { head_dim: 6, rotary_dims: 4, theta: 100.0, scaling: &RopeScaling::None, pairing },
            50,
        )
        .expect("tables");
        let (x, at) = (variable(7, &[3, 2, 6]), Positions::run(30, 3));
        assert!(differs(&x, || pull(rope.apply(&x, &at).expect("turned"))) < 1e-8, "{pairing:?}");
    }
}

/// Where a limit takes the place of a number, and where a cube would be infinite.
#[test]
fn gradients_of_activations_are_finite_at_extremes() {
    let far = Tensor::new(&[-1e30f32, -300.0, 300.0, 1e30], &Device::Cpu).expect("numbers");
    for by in [Gate::Silu, Gate::GeluTanh, Gate::ClampedSilu { limit: 7.0 }] {
        let (gate, up) = (Var::from_tensor(&far).expect("a variable"), variable(1, &[4]));
        let up = Var::from_tensor(&up.to_dtype(DType::F32).expect("numbers")).expect("a variable");
        let gradients = gated(&gate, &up, by).and_then(|out| Ok(out.sum_all()?.backward()?)).expect("gradients");
        let of = |var: &Var| values(gradients.get(var).expect("a gradient"));
        assert!(of(&gate).iter().chain(&of(&up)).all(|number| number.is_finite()), "{by:?}");
        let pull = if matches!(by, Gate::ClampedSilu { .. }) { vec![0.0; 2] } else { values(&up)[2..].to_vec() };
        assert_eq!(of(&gate), [vec![0.0; 2], pull].concat(), "{by:?}");
    }
}

/// Output, log-sum-exp, and the gradients of a function of both.
fn attended(kernels: Kernels, dtype: DType) -> Vec<Vec<f64>> {
    let var = |seed, shape: &[usize]| Var::from_tensor(&numbers(seed, shape).to_dtype(dtype)?);
    let run = || -> Result<Vec<Vec<f64>>> {
        let (q, k, v) = (var(1, &[11, 4, 6])?, var(2, &[11, 2, 6])?, var(3, &[11, 2, 6])?);
        let (shared_k, shared_v) = (var(4, &[2, 2, 6])?, var(5, &[2, 2, 6])?);
        // Three packed segments after a prefix whose second row is in the future of each segment's
        // first.
        let places = vec![2, 3, 4, 5, 2, 3, 4, 2, 3, 4, 5];
        let at = Positions::new(places.clone(), places, vec![0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2]);
        let prefix = Positions::new(vec![0, 3], vec![0, 3], vec![SHARED; 2]);
        let keys = [
            Keys { k: shared_k.as_tensor().clone(), v: shared_v.as_tensor().clone(), at: prefix },
            Keys { k: k.as_tensor().clone(), v: v.as_tensor().clone(), at: at.clone() },
        ];
        let rope = Rope::new(
            &RopeConfig {
                head_dim: 6,
                rotary_dims: 6,
                theta: 100.0,
                scaling: &RopeScaling::None,
                pairing: Pairing::Half,
            },
            10,
        )
        .expect("tables");
        let partial = kernels
            .attend(&Query { q: &q, at: &at, keys: &keys, rope: Some(&rope), scale: 0.6, dtype: DType::F32 })
            .expect("attention");
        let weight = |seed, of: &Tensor| numbers(seed, of.dims()).to_dtype(dtype);
        let first = (&partial.out * weight(8, &partial.out)?)?.sum_all()?;
        let loss = (first + (&partial.lse * weight(9, &partial.lse)?)?.sum_all()?)?;
        let gradients = loss.backward()?;
        let of = |var: &Var| values(gradients.get(var).expect("a gradient"));
        let mut found = vec![values(&partial.out), values(&partial.lse)];
        found.extend([&q, &k, &v, &shared_k, &shared_v].map(of));
        Ok(found)
    };
    run().expect("tensors")
}

#[test]
fn attention_by_tiles_is_the_plain_one_with_its_gradients() {
    let plain = attended(Kernels::Plain, DType::F64);
    for (dtype, bound) in [(DType::F64, 1e-12), (DType::F32, 2e-5)] {
        for (index, (found, expected)) in attended(Kernels::Auto, dtype).iter().zip(&plain).enumerate() {
            let apart = error(found, expected);
            assert!(apart < bound, "{dtype:?}, number {index}: {apart:e}");
        }
    }
}

#[test]
fn a_row_that_sees_nothing_gives_nothing() {
    let (q, k) = (variable(1, &[2, 2, 4]), variable(2, &[1, 1, 4]));
    let keys = [Keys { k: k.as_tensor().clone(), v: k.as_tensor().clone(), at: Positions::run(1, 1) }];
    let partial = Kernels::Auto
        .attend(&Query { q: &q, at: &Positions::run(0, 2), keys: &keys, rope: None, scale: 0.5, dtype: DType::F32 })
        .expect("attention");
    assert_eq!(values(&partial.out.narrow(0, 0, 1).expect("a row")), [0.0; 8]);
    assert_eq!(values(&partial.lse)[..2], [f64::NEG_INFINITY; 2]);
    let gradients = partial.out.sum_all().and_then(|sum| sum.backward()).expect("gradients");
    assert!(values(gradients.get(&k).expect("a gradient")).iter().all(|number| number.is_finite()));
}
