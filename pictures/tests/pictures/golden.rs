//! From PNG files to patch rows, as transformers computes them: decoded and resized bytes are
//! equal, patch rows within 1e-6.

use safetensors::SafeTensors;
use sha2::{Digest, Sha256};
use tributary_pictures::{Limits, PatchRows, Picture, Pixels, Rules, decode, patch_rows, resized};

use super::{golden, golden_path, tiny_rules};

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// A tiny model: its golden file, its rules, and its patches.
fn models() -> [(&'static str, Rules, PatchRows); 2] {
    let third = PatchRows { patch: 16, merge: 2, frames: 2, mean: [0.5; 3], std: [0.5; 3] };
    let (mean, std) = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]);
    let older = PatchRows { patch: 14, merge: 2, frames: 2, mean, std };
    let older_rules = Rules::new(14, 2, 3136, 50176).expect("rules");
    [("qwen3vl-tiny.safetensors", tiny_rules(), third), ("qwen25vl-tiny.safetensors", older_rules, older)]
}

fn decoded(name: &str) -> Pixels {
    decode(&golden(&format!("{name}.png")), None, &Limits::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Bytes that differ, and the largest difference.
fn differences(a: &[u8], b: &[u8]) -> (usize, u8) {
    assert_eq!(a.len(), b.len());
    let apart = a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).filter(|apart| *apart > 0);
    (apart.clone().count(), apart.max().unwrap_or(0))
}

#[test]
fn decoded_bytes_are_equal() {
    let lines = std::fs::read_to_string(golden_path("rgb.sha256")).expect("hashes");
    assert_eq!(lines.lines().count(), NAMES.len());
    for line in lines.lines() {
        let [hash, height, width, name] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let pixels = decoded(name);
        assert_eq!((pixels.height.to_string(), pixels.width.to_string()), (height.into(), width.into()), "{name}");
        let own: String = Sha256::digest(&pixels.rgb).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(own, hash, "{name}");
    }
}

#[test]
fn resized_bytes_are_equal() {
    for (file, rules, _) in models() {
        let file_bytes = golden(file);
        let tensors = SafeTensors::deserialize(&file_bytes).expect("tensors");
        for name in NAMES {
            let wanted = tensors.tensor(&format!("{name}.resized")).expect("the resized picture");
            let picture = Picture::of(decoded(name), &rules, None).expect("a picture");
            let shape = [picture.height as usize, picture.width as usize, 3];
            assert_eq!(wanted.shape(), shape, "{file} {name}");
            let (different, most) = differences(&picture.rgb, wanted.data());
            assert_eq!(different, 0, "{file} {name}: {different} bytes differ, at most by {most}");
            let grid = tensors.tensor(&format!("{name}.grid_thw")).expect("the grid");
            let grid: Vec<i64> = grid.data().as_chunks().0.iter().map(|number| i64::from_le_bytes(*number)).collect();
            let merge = i64::from(rules.merge());
            assert_eq!(grid, [1, merge * i64::from(picture.rows), merge * i64::from(picture.columns)], "{file} {name}");
            assert_eq!(picture.tokens() as i64, grid[1] * grid[2] / merge / merge, "{file} {name}");
        }
    }
}

/// The passes in the other order give other bytes: the golden files can tell them apart.
#[test]
fn passes_in_the_other_order_differ() {
    for (file, ..) in models() {
        let file_bytes = golden(file);
        let tensors = SafeTensors::deserialize(&file_bytes).expect("tensors");
        let wanted = tensors.tensor("c.resized").expect("the resized picture");
        let [height, width] = [0, 1].map(|axis| wanted.shape()[axis] as u32);
        let pixels = decoded("c");
        let old_width = pixels.width;
        let down_first = resized(resized(pixels, old_width, height), width, height);
        let (different, most) = differences(&down_first.rgb, wanted.data());
        println!("{file}: {different} bytes of c differ, at most by {most}");
        assert!(different > 0, "{file}: the order of the passes is not seen");
    }
}

#[test]
fn patch_rows_are_equal() {
    for (file, rules, shape) in models() {
        let file_bytes = golden(file);
        let tensors = SafeTensors::deserialize(&file_bytes).expect("tensors");
        let wanted = tensors.tensor("d.pixel_values").expect("patch rows");
        let picture = Picture::of(decoded("d"), &rules, None).expect("a picture");
        let (height, width) = (picture.height as usize, picture.width as usize);
        let rows = patch_rows(&picture.rgb, height, width, &shape);
        assert_eq!(wanted.shape(), [rows.len() / shape.row_len(), shape.row_len()], "{file}");
        let wanted = wanted.data().as_chunks().0.iter().map(|number| f32::from_le_bytes(*number));
        let error = rows.iter().zip(wanted).map(|(own, wanted)| (own - wanted).abs()).fold(0.0, f32::max);
        println!("{file}: {error:e}");
        assert!(error < 1e-6, "{file}: {error:e}");
        // Every frame is the same picture.
        let single = patch_rows(&picture.rgb, height, width, &PatchRows { frames: 1, ..shape });
        let patch = shape.patch * shape.patch;
        let first: Vec<f32> = rows.chunks(2 * patch).flat_map(|frames| frames[..patch].to_vec()).collect();
        assert_eq!(single, first, "{file}");
    }
}
