//! The fitted size: examples that transformers' own function gives, and properties of all sizes.

use proptest::prelude::*;
use tributary_pictures::{Error, Rules};

use super::tiny_rules;

/// Published rules of Qwen3-VL and Qwen2.5-VL.
fn published() -> [Rules; 2] {
    [Rules::new(16, 2, 65536, 16_777_216).expect("rules"), Rules::new(14, 2, 3136, 12_845_056).expect("rules")]
}

#[test]
fn fitted_sizes_of_examples() {
    let [third, older] = published();
    // Rules, (height, width), (fitted height, fitted width).
    let examples = [
        (tiny_rules(), (120, 200), (128, 192)),
        (tiny_rules(), (250, 70), (256, 64)),
        (tiny_rules(), (480, 640), (192, 288)),
        (tiny_rules(), (14, 20), (64, 96)),
        (tiny_rules(), (64, 96), (64, 96)),
        // 80 / 32 = 2.5 is rounded to 2, 112 / 32 = 3.5 to 4.
        (tiny_rules(), (80, 112), (64, 128)),
        (third, (1024, 1024), (1024, 1024)),
        (third, (2339, 1654), (2336, 1664)),
        (third, (30000, 2000), (15840, 1056)),
        (third, (1, 1), (256, 256)),
        (third, (1, 200), (32, 3648)),
        (older, (14, 14), (56, 56)),
        (older, (4000, 3000), (4004, 2996)),
    ];
    for (rules, (height, width), (fitted_height, fitted_width)) in examples {
        assert_eq!(rules.fitted(width, height), Ok((fitted_width, fitted_height)), "{height} x {width}");
    }
    assert_eq!(third.places(1024, 1024), Ok((32, 32)));
    assert_eq!(third.places(1654, 2339).map(|(rows, columns)| rows * columns), Ok(3796));
    assert_eq!(third.low().places(1024, 1024), Ok((16, 16)));
    assert_eq!(third.low().places(20, 14), third.places(20, 14));
}

#[test]
fn shapes_that_no_model_reads_are_refused() {
    let [rules, _] = published();
    for (width, height) in [(201, 1), (1, 201), (0, 0), (0, 7), (7, 0), (u32::MAX, 1)] {
        let error = rules.fitted(width, height);
        assert_eq!(error, Err(Error::Aspect { width, height, most: 200 }), "{width} x {height}");
    }
    let fitted = [rules.fitted(200, 1), rules.fitted(1, 200), rules.fitted(u32::MAX, u32::MAX)];
    assert!(fitted.iter().all(Result::is_ok), "{fitted:?}");
}

#[test]
fn rules_that_contradict_themselves_are_refused() {
    let wrong = [(0, 2, 0, 4096), (16, 0, 0, 4096), (16, 2, 0, 1023), (16, 2, 4097, 4096), (1025, 1, 0, 1 << 28)];
    for (patch, merge, least, most) in wrong {
        let error = Rules::new(patch, merge, least, most).expect_err("wrong rules").to_string();
        assert!(error.starts_with("the model's rules for pictures do not hold: "), "{error}");
    }
    assert!(Rules::new(16, 2, 0, (1 << 28) + 1).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Sides are multiples of the factor; little detail means at most 256 places.
    #[test]
    fn places_are_bounded(shorter in 1_u32..5000, aspect in 1.0_f64..200.0, turned: bool, which in 0_usize..3) {
        let longer = (f64::from(shorter) * aspect) as u32;
        let (width, height) = if turned { (shorter, longer) } else { (longer, shorter) };
        let rules = [published().as_slice(), &[tiny_rules()]].concat()[which];
        let (fitted_width, fitted_height) = rules.fitted(width, height).expect("a shape that is read");
        prop_assert!(fitted_width > 0 && fitted_width % rules.factor() == 0);
        prop_assert!(fitted_height > 0 && fitted_height % rules.factor() == 0);
        let (rows, columns) = rules.low().places(width, height).expect("a shape that is read");
        prop_assert!(rows * columns <= 256, "{} x {} places", rows, columns);
    }
}
