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

/// A matrix of `[8, inputs]` with groups of so many inputs, and the config that says so: its form
/// and parts.
fn in_groups(method: &str, inputs: usize, group: usize) -> (Value, Held) {
    let (words, groups) = (inputs / 8, inputs / group);
    let bytes = |count: usize| (0..count).map(|i| (i * 37 % 256) as u8 & 0x77).collect::<Vec<u8>>();
    let scales = |count: usize| (0..count).flat_map(|i| (0.5 + i as f32 / 8.0).to_le_bytes()).collect::<Vec<u8>>();
    let (config, parts) = match method {
        "gptq" => (
            json!({"quant_method": "gptq", "bits": 4, "group_size": group}),
            vec![
                ("qweight", Dtype::I32, vec![words, 8], bytes(4 * words * 8)),
                ("qzeros", Dtype::I32, vec![groups, 1], bytes(4 * groups)),
                ("scales", Dtype::F32, vec![groups, 8], scales(groups * 8)),
            ],
        ),
        "awq" => (
            json!({"quant_method": "awq", "bits": 4, "group_size": group}),
            vec![
                ("qweight", Dtype::I32, vec![inputs, 1], bytes(4 * inputs)),
                ("qzeros", Dtype::I32, vec![groups, 1], bytes(4 * groups)),
                ("scales", Dtype::F32, vec![groups, 8], scales(groups * 8)),
            ],
        ),
        "fp8" => (
            json!({"quant_method": "fp8", "weight_block_size": [4, group]}),
            vec![
                ("weight", Dtype::F8_E4M3, vec![8, inputs], bytes(8 * inputs)),
                ("weight_scale_inv", Dtype::F32, vec![2, groups], scales(2 * groups)),
            ],
        ),
        _ => {
            let weights = json!({"num_bits": 8, "type": "int", "strategy": "group", "group_size": group});
            let groups_of = json!({"group_0": {"weights": weights, "format": "int-quantized"}});
            (
                json!({"quant_method": "compressed-tensors", "config_groups": groups_of}),
                vec![
                    ("weight", Dtype::I8, vec![8, inputs], bytes(8 * inputs)),
                    ("weight_scale", Dtype::F32, vec![8, groups], scales(8 * groups)),
                ],
            )
        }
    };
    let held = parts.into_iter().map(|(name, dtype, shape, bytes)| (format!("m.{name}"), (dtype, shape, bytes)));
    (config, held.collect())
}

#[test]
fn groups_of_128_inputs_have_a_scale_each_and_smaller_ones_a_scale_for_32() {
    for method in ["gptq", "awq", "fp8", "int8"] {
        for (inputs, group, numbers) in [(256, 128, 128), (512, 256, 128), (384, 384, 128), (256, 64, 32), (96, 96, 32)]
        {
            let what = format!("{method}, {inputs} inputs in groups of {group}");
            let (config, held) = in_groups(method, inputs, group);
            let form = Quantisation::stated(&config, false).unwrap().unwrap();
            let found = matrix(&held, "m", [8, inputs], form).unwrap().unwrap();
            let packed = found.packed().unwrap().unwrap();
            assert_eq!(packed.packing().numbers(), numbers, "{what}");
            assert_eq!(packed.packing(), form.packing(inputs), "{what}: as forecast");
            let other = form.of_codes(Packing::Fp8, inputs);
            let is_fp8 = other.in_groups_of_128() == Some(Packing::Fp8G128);
            assert!(is_fp8 && other.numbers() == numbers, "{what}: where others are in FP8, {other:?}");
            let (_, (_, shape, _)) = held.iter().find(|(name, _)| name.ends_with("weight")).unwrap();
            let of_a_word = if form.packing == Packing::Int4 { 8 } else { 1 };
            assert_eq!(form.stored_inputs(shape, of_a_word), inputs, "{what}");
            let of = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let (unpacked, plain) = (of(&packed.unpacked(DType::F32).unwrap()), of(&found.plain(DType::F32).unwrap()));
            for (found, expected) in unpacked.iter().zip(&plain) {
                // Code and zero point are multiplied apart.
                assert!((found - expected).abs() <= 1e-6 * 16.0 * 200.0, "{what}: {found} for {expected}");
            }
        }
    }
}
