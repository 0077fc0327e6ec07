//! Towers against features that transformers recorded (`tests/golden`), block by block, picture by
//! picture and packed; towers that differ in one thing must show.

use candle_core::{DType, Device, Tensor};
use tributary_kernels::{Gelu, Positions};

use super::parts::attend;
use super::{Features, Grid, Pictures, Tower};
use crate::error::{Error, Result};
use crate::picture_kit::{self, PICTURES, RECORDED, below, error, pictures, recorded, vision};
use crate::progress::Progress;
use crate::vision_config::TowerConfig;
use crate::weights::Weights;

/// Bound of the error of features and levels.
const TOLERANCE: f64 = 1e-5;

/// The tower of a recorded model, with MLPs of at most `slice_rows` rows.
fn tower(model: &str, dtype: DType, slice_rows: usize) -> Tower {
    let weights = Weights::open(&picture_kit::folder(model), dtype, &Device::Cpu).expect("weights");
    let weights = weights.of_text_part().expect("names");
    Tower::new(&vision(model), &weights, slice_rows).expect("a tower")
}

fn run(tower: &Tower, pictures: &Pictures) -> Features {
    tower.features(pictures, &Progress::default()).expect("features")
}

/// The recorded features of pictures, one below the other.
fn expected(model: &str, names: &[&str]) -> Features {
    let images = recorded(model, "images");
    let of =
        |part: &str| below(&names.iter().map(|name| images[&format!("{name}.{part}")].clone()).collect::<Vec<_>>());
    let levels = vision(model).levels();
    Features { features: of("features"), levels: (0..levels).map(|level| of(&format!("deepstack.{level}"))).collect() }
}

/// The largest error of features and levels.
fn worst(found: &Features, expected: &Features) -> f64 {
    assert_eq!(found.levels.len(), expected.levels.len());
    let levels = found.levels.iter().zip(&expected.levels).map(|(found, expected)| error(found, expected));
    levels.fold(error(&found.features, &expected.features), f64::max)
}

#[test]
fn blocks_of_a_small_picture() {
    for model in RECORDED {
        let (tower, images) = (tower(model, DType::F32, 2048), recorded(model, "images"));
        let mut seen = 0;
        let mut watch = |index: usize, x: &Tensor| {
            // Recorded are the patches in the order of the file, later rows in that of windows.
            let (name, x) = match index {
                0 if model == "qwen25vl-tiny" => {
                    let to: Vec<u32> =
                        [0, 1, 4, 2, 3, 5].iter().flat_map(|token| (0..4).map(move |p| 4 * token + p)).collect();
                    let to = Tensor::new(to, &Device::Cpu).expect("a list");
                    ("d.patch_embed".to_owned(), x.index_select(&to, 0).expect("rows"))
                }
                0 => ("d.patch_embed".to_owned(), x.clone()),
                _ => (format!("d.block.{}", index - 1), x.clone()),
            };
            let error = error(&x, &images[&name]);
            println!("{model}: {name}: {error:.1e}");
            assert!(error < TOLERANCE, "{model}: {name}: {error:e}");
            seen += 1;
        };
        tower.pass(&pictures(model, &["d"]), &Progress::default(), &mut watch).expect("a pass");
        assert_eq!(seen, vision(model).layers + 1);
    }
}

#[test]
fn features_of_all_pictures_one_by_one_and_packed() {
    for model in RECORDED {
        let tower = tower(model, DType::F32, 2048);
        for name in PICTURES {
            let error = worst(&run(&tower, &pictures(model, &[name])), &expected(model, &[name]));
            println!("{model}: {name}: {error:.1e}");
            assert!(error < TOLERANCE, "{model}: {name}: {error:e}");
        }
        let packed = run(&tower, &pictures(model, &PICTURES));
        let error = worst(&packed, &expected(model, &PICTURES));
        println!("{model}: packed: {error:.1e}");
        assert!(error < TOLERANCE, "{model}: packed: {error:e}");
        let part = Features::joined(&[&packed.rows(0, 10).expect("rows"), &packed.rows(10, 5).expect("rows")]);
        assert_eq!(worst(&part.expect("joined"), &packed.rows(0, 15).expect("rows")), 0.0);
    }
}

#[test]
fn features_in_slices_and_in_other_types() {
    for model in RECORDED {
        let (given, expected) = (pictures(model, &["b", "f"]), expected(model, &["b", "f"]));
        for (dtype, slice_rows, bound) in
            [(DType::F32, 7, TOLERANCE), (DType::F64, 2048, TOLERANCE), (DType::BF16, 2048, 0.2)]
        {
            let found = run(&tower(model, dtype, slice_rows), &given);
            let error = worst(&found, &expected);
            println!("{model}: {dtype:?}, slices of {slice_rows}: {error:.1e}");
            assert!(error < bound, "{model}: {dtype:?}, slices of {slice_rows}: {error:e}");
            let rows = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
            assert_eq!(found.features.dtype(), rows);
        }
    }
}

/// The features change by more than the tolerance if the tower differs in one thing.
#[test]
fn towers_that_differ_in_one_thing_show() {
    for model in RECORDED {
        let (given, expected) = (pictures(model, &["a", "d"]), expected(model, &["a", "d"]));
        let mut spoilt = tower(model, DType::F32, 2048);
        for merger in spoilt.blocks.mergers_mut() {
            merger.gelu = Gelu::Tanh;
        }
        let mut cases = vec![("the merger's GELU by tanh", worst(&run(&spoilt, &given), &expected))];
        // Two pictures as one: the patches of one see those of the other.
        let tower = tower(model, DType::F32, 2048);
        let grids = vec![Grid { rows: 2, columns: given.patches.dims()[0] as u32 / 2 }];
        cases.push(("one picture", worst(&run(&tower, &Pictures { grids, ..given.clone() }), &expected)));
        let mut whole = self::tower(model, DType::F32, 2048);
        if let TowerConfig::Qwen25 { window, .. } = &mut whole.config.tower {
            *window = 100;
            cases.push(("no windows", worst(&run(&whole, &given), &expected)));
        }
        for (what, error) in cases {
            println!("{model}: {what}: {error:.1e}");
            assert!(error > 3.0 * TOLERANCE, "{model}: {what}: {error:e}");
        }
    }
}

#[test]
fn heads_that_are_filled_up_attend_alike() {
    let random = || Tensor::randn(0f32, 1.0, (50, 3, 20), &Device::Cpu).expect("numbers");
    let (q, k, v) = (random(), random(), random());
    let at = Positions::new(vec![0; 50], vec![0; 50], (0..50).map(|row| row / 20).collect::<Vec<u32>>());
    let found = [20, 32].map(|width| attend([&q, &k, &v], &at, width).expect("attention"));
    let error = error(&found[1], &found[0]);
    assert!(error < 1e-6, "{error:e}");
}

#[test]
fn pictures_that_do_not_fit_are_refused() {
    for model in RECORDED {
        let (tower, config) = (tower(model, DType::F32, 2048), vision(model));
        let given = |patches: usize, numbers: usize, grids: &[(u32, u32)]| Pictures {
            patches: Tensor::zeros((patches, numbers), DType::F32, &Device::Cpu).expect("zeros"),
            grids: grids.iter().map(|&(rows, columns)| Grid { rows, columns }).collect(),
        };
        let numbers = config.patch_numbers();
        let refused = |pictures: Pictures| -> String {
            let found: Result<Features> = tower.features(&pictures, &Progress::default());
            let error = found.expect_err("pictures that do not fit");
            assert!(matches!(error, Error::Input(_)), "{error}");
            assert_eq!(error.exit_code(), 64);
            error.to_string()
        };
        assert!(refused(given(8, numbers, &[(4, 4)])).contains("expected [16,"));
        assert!(refused(given(16, numbers - 1, &[(4, 4)])).contains(&format!("{numbers}]")));
        assert!(refused(given(12, numbers, &[(3, 4)])).contains("3 x 4 patches: must be multiples of 2"));
        assert!(refused(given(0, numbers, &[(0, 4)])).contains("0 x 4"));
        let none = run(&tower, &given(0, numbers, &[]));
        assert_eq!((none.features.dims(), none.levels.len()), (&[0, config.out][..], config.levels()));
    }
}
