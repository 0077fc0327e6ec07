//! Forms that contradict themselves are refused, with the tensor's name.

#![allow(clippy::unwrap_used)] // a test may panic

use std::collections::HashMap;

use serde_json::json;

use super::*;

/// Tensors in memory, by their names: type, shape and bytes.
type Held = HashMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// A tensor's name, type, shape and bytes.
type Part = (&'static str, Dtype, &'static [usize], Vec<u8>);

impl Tensors for Held {
    fn find(&self, name: &str) -> Option<TensorView<'_>> {
        let (dtype, shape, bytes) = self.get(name)?;
        Some(TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    }
}

fn refused(config: &Value, parts: &[Part], shape: [usize; 2]) -> String {
    let form = Quantisation::stated(config, false).unwrap().unwrap();
    let one = |(name, dtype, shape, bytes): &Part| (format!("m.{name}"), (*dtype, shape.to_vec(), bytes.clone()));
    let held: Held = parts.iter().map(one).collect();
    match matrix(&held, "m", shape, form) {
        Err(what) => what,
        Ok(found) => panic!("taken: {}", found.is_some()),
    }
}

/// An f32 tensor of one value.
fn of_f32(name: &'static str, shape: &'static [usize], value: f32) -> Part {
    let count = shape.iter().product();
    (name, Dtype::F32, shape, vec![value.to_le_bytes(); count].concat())
}

#[test]
fn scales_and_numbers_of_fp8_that_do_not_fit_are_refused() {
    let config = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    let weight = |code: u8| -> Part { ("weight", Dtype::F8_E4M3, &[2, 32], vec![code; 64]) };
    let scale = |shape: &'static [usize], value: f32| of_f32("weight_scale_inv", shape, value);
    for (wanted, parts) in [
        ("has no `weight_scale` of its form", vec![weight(1)]),
        ("shape [3, 1] does not fit [2, 32]", vec![weight(1), scale(&[3, 1], 1.0)]),
        ("a scale is inf", vec![weight(1), scale(&[1, 1], f32::INFINITY)]),
        ("a number in FP8 is NaN", vec![weight(0x7f), scale(&[1, 1], 1.0)]),
        (
            "expected shape [2, 32], found [2, 16]",
            vec![("weight", Dtype::F8_E4M3, &[2, 16], vec![1; 32]), scale(&[1, 1], 1.0)],
        ),
    ] {
        let found = refused(&config, &parts, [2, 32]);
        assert!(found.contains(wanted), "{found} for {wanted}");
    }
}

#[test]
fn groups_of_gptq_that_do_not_fit_are_refused() {
    let plain = json!({"quant_method": "gptq", "bits": 4, "group_size": 16});
    let reordered = json!({"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": true});
    let weight = || -> Part { ("qweight", Dtype::I32, &[4, 8], vec![0x33; 128]) };
    let scales = |shape: &'static [usize]| of_f32("scales", shape, 1.0);
    let zeros = || -> Part { ("qzeros", Dtype::I32, &[2, 1], vec![0x77; 8]) };
    let order: Part = ("g_idx", Dtype::I32, &[32], [2u32.to_le_bytes(); 32].concat());
    for (wanted, config, parts) in [
        ("has no `scales` of its form", &plain, vec![weight(), zeros()]),
        ("has no `qzeros` of its form", &plain, vec![weight(), scales(&[2, 8])]),
        ("3 groups of 16 of 32 inputs", &plain, vec![weight(), zeros(), scales(&[3, 8])]),
        ("shape [2, 9] does not fit 8 outputs", &plain, vec![weight(), zeros(), scales(&[2, 9])]),
        ("names group 2 of 2", &plain, vec![weight(), zeros(), scales(&[2, 8]), order]),
        ("has no `g_idx` of its form", &reordered, vec![weight(), zeros(), scales(&[2, 8])]),
    ] {
        let found = refused(config, &parts, [8, 32]);
        assert!(found.contains(wanted), "{found} for {wanted}");
    }
}

#[test]
fn zero_points_that_four_bits_cannot_have_are_refused() {
    let group = json!({"g": {"weights": {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": false}}});
    let config = json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": group});
    let parts: [Part; 3] = [
        ("weight_packed", Dtype::I32, &[2, 4], vec![0x21; 32]),
        of_f32("weight_scale", &[2, 1], 1.0),
        ("weight_zero_point", Dtype::I8, &[2, 1], vec![0, 200]),
    ];
    let found = refused(&config, &parts, [2, 32]);
    assert!(found.contains("a zero point is -48; from 0 to 16"), "{found}");
}
