//! Rows that are gathered, joined and made contiguous, bit for bit.

use candle_core::{DType, Tensor};
use tributary_kernels::{add_rows, contiguous, gather, join, write_rows};

use crate::kit::{Random, gpu, on, values};

const TYPES: [DType; 5] = [DType::BF16, DType::F16, DType::F32, DType::U8, DType::U32];

/// Small whole numbers, which every type holds.
fn tensor(random: &mut Random, shape: &[usize], dtype: DType) -> Tensor {
    let list: Vec<u32> = (0..shape.iter().product()).map(|_| random.below(200)).collect();
    Tensor::from_vec(list, shape, &candle_core::Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

fn assert_same(what: &str, found: &Tensor, expected: &Tensor) {
    assert!(found.device().is_cuda(), "{what}: stays on the GPU");
    assert_eq!((found.dims(), found.dtype()), (expected.dims(), expected.dtype()), "{what}");
    assert!(found.is_contiguous(), "{what}");
    assert_eq!(values(found), values(expected), "{what}");
}

#[test]
fn rows_are_gathered() {
    let (device, mut random) = (gpu(), Random::new(30));
    for dtype in TYPES {
        for shape in [&[6, 2, 8][..], &[9, 1], &[5, 3, 7], &[4, 1024], &[3], &[2, 4, 80]] {
            let what = format!("{dtype:?} {shape:?}");
            let base = tensor(&mut random, shape, dtype);
            let rows = shape[0] as u32;
            let indices: Vec<u32> = (0..11).map(|_| random.below(rows)).collect();
            let picked = gather(&base, &indices).unwrap();
            let found = gather(&on(&base, &device), &indices).unwrap();
            assert_same(&what, &found, &picked);
            assert_same(
                &what,
                &gather(&on(&base, &device).narrow(0, 1, 1).unwrap(), &[0]).unwrap(),
                &base.narrow(0, 1, 1).unwrap(),
            );
            assert!(gather(&on(&base, &device), &[rows]).is_err(), "{what}: beyond the rows");
            assert_eq!(gather(&on(&base, &device), &[]).unwrap().dims()[0], 0);
        }
    }
}

#[test]
fn many_rows_take_turns() {
    let (device, mut random) = (gpu(), Random::new(31));
    let base = tensor(&mut random, &[3, 1], DType::U32);
    let indices: Vec<u32> = (0..70_000).map(|_| random.below(3)).collect();
    let found = gather(&on(&base, &device), &indices).unwrap();
    assert_same("more rows than a grid is high", &found, &gather(&base, &indices).unwrap());
}

#[test]
fn rows_are_added_on_a_cpu_alone() {
    let rows = Tensor::zeros((2, 3), DType::F32, &candle_core::Device::Cpu).unwrap();
    let moved = on(&rows, &gpu());
    for (into, added) in [(&moved, &moved), (&rows, &moved), (&moved, &rows)] {
        let error = add_rows(into, added, &[0, 1], &[1.0; 2]).unwrap_err().to_string();
        assert!(error.contains("expected rows on a CPU, found Cuda"), "{error}");
    }
}

#[test]
fn parts_are_joined() {
    let (device, mut random) = (gpu(), Random::new(32));
    for dtype in TYPES {
        for (dim, tail) in [(0, vec![2, 8]), (0, vec![3]), (1, vec![16]), (1, vec![5]), (1, vec![])] {
            for count in [1, 2, 5, 40] {
                let what = format!("{count} parts of {dtype:?} along {dim}, {tail:?}");
                let part = |i: usize| -> Vec<usize> {
                    let head = if dim == 0 { vec![i % 4] } else { vec![3, 1 + i % 4] };
                    head.into_iter().chain(tail.iter().copied()).collect()
                };
                let parts: Vec<Tensor> = (1..=count).map(|i| tensor(&mut random, &part(i), dtype)).collect();
                let expected = Tensor::cat(&parts, dim).unwrap();
                let moved: Vec<Tensor> = parts
                    .iter()
                    .map(|part| match part.elem_count() {
                        0 => tributary_kernels::cuda::nothing(part.shape(), dtype, &device).unwrap(),
                        _ => on(part, &device),
                    })
                    .collect();
                let joined = join(&moved.iter().collect::<Vec<_>>(), dim).unwrap();
                assert_same(&what, &joined, &expected);
            }
        }
    }
    assert!(join(&[], 0).is_err());
}

#[test]
fn views_become_contiguous() {
    let (device, mut random) = (gpu(), Random::new(33));
    for dtype in TYPES {
        let base = tensor(&mut random, &[7, 6, 24], dtype);
        let moved = on(&base, &device);
        let views: [fn(&Tensor) -> Tensor; 5] = [
            |x| x.narrow(1, 2, 3).unwrap(),
            |x| x.narrow(2, 5, 9).unwrap(),
            |x| x.narrow(0, 2, 4).unwrap().narrow(1, 5, 1).unwrap(),
            |x| x.narrow(0, 1, 3).unwrap(),
            |x| x.narrow(1, 0, 4).unwrap().narrow(0, 6, 1).unwrap(),
        ];
        for (i, view) in views.iter().enumerate() {
            let expected = view(&base).contiguous().unwrap();
            assert_same(&format!("view {i} {dtype:?}"), &contiguous(&view(&moved)).unwrap(), &expected);
        }
    }
}

#[test]
fn rows_are_written_in_place() {
    let (device, mut random) = (gpu(), Random::new(33));
    for dtype in TYPES {
        let what = format!("{dtype:?}");
        let base = tensor(&mut random, &[6, 2, 5], dtype);
        let rows = tensor(&mut random, &[2, 2, 5], dtype);
        let expected =
            Tensor::cat(&[&base.narrow(0, 0, 3).unwrap(), &rows, &base.narrow(0, 5, 1).unwrap()], 0).unwrap();
        let (into, rows) = (on(&base, &device), on(&rows, &device));
        let view = into.narrow(0, 2, 4).unwrap();
        write_rows(&into, &rows, 3).unwrap();
        assert_same(&what, &into, &expected);
        assert_same("who shares its storage", &view, &expected.narrow(0, 2, 4).unwrap());
        write_rows(&into, &rows.narrow(0, 0, 0).unwrap(), 6).unwrap();
        assert!(write_rows(&into, &rows, 5).is_err(), "{what}: beyond the end");
        assert_same(&what, &into, &expected);
    }
}
