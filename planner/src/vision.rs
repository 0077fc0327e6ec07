//! What pictures cost: FLOPs of a vision tower, bytes of pixels and features, memory while it runs.

use tributary_protocol::{PATCHES_AT_ONCE, Picture, Plan};

/// The shape of a vision tower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VisionShape {
    /// Blocks.
    pub layers: usize,
    /// Blocks in which a patch sees its whole picture; in the others it sees its window.
    pub whole_layers: usize,
    /// Patches of a window, where there are windows.
    pub window_patches: usize,
    /// Width of its residual stream.
    pub hidden: usize,
    /// Width of its MLPs.
    pub intermediate: usize,
    /// Matrices of an MLP: two, or three where it is gated.
    pub mlp_matrices: usize,
    /// Side of a patch, in pixels.
    pub patch: usize,
    /// Side of the block of patches that makes a row of the decoder.
    pub merge: usize,
    /// Times that a picture stands in each patch.
    pub frames: usize,
    /// Levels that the decoder adds after its first layers.
    pub levels: usize,
    /// Width of its features.
    pub out: usize,
    /// Smallest number of pixels that a picture is enlarged to.
    pub least_pixels: u64,
    /// Largest number of pixels that a picture is reduced to.
    pub most_pixels: u64,
}

/// Published towers by the names of their models: blocks, width, width of the MLPs, levels.
const NAMED: [(&str, [usize; 4]); 4] = [
    ("qwen2.5-vl-7b", [32, 1280, 3420, 0]),
    ("qwen3-vl-2b", [24, 1024, 4096, 3]),
    ("qwen3-vl-4b", [24, 1024, 4096, 3]),
    ("qwen3-vl-8b", [27, 1152, 4304, 3]),
];

impl VisionShape {
    /// The tower of a model that is known by name, whose decoder's rows have width `out`.
    pub(crate) fn named(name: &str, out: usize) -> Option<Self> {
        let (_, [layers, hidden, intermediate, levels]) = NAMED.iter().find(|(known, _)| *known == name)?;
        let tower = Self {
            layers: *layers,
            whole_layers: *layers,
            window_patches: 0,
            hidden: *hidden,
            intermediate: *intermediate,
            mlp_matrices: 2,
            patch: 16,
            merge: 2,
            frames: 2,
            levels: *levels,
            out,
            least_pixels: 65_536,
            most_pixels: 16_777_216,
        };
        if *levels > 0 {
            return Some(tower);
        }
        // Qwen2.5-VL's: four blocks see whole pictures, the others windows of 112 x 112 pixels.
        let (least_pixels, most_pixels) = (3136, 12_845_056);
        Some(Self {
            whole_layers: 4,
            window_patches: 64,
            mlp_matrices: 3,
            patch: 14,
            least_pixels,
            most_pixels,
            ..tower
        })
    }

    /// Parameters of its matrices.
    pub fn parameters(&self) -> usize {
        let patches = 3 * self.frames * self.patch * self.patch * self.hidden;
        let block = 4 * self.hidden * self.hidden + self.mlp_matrices * self.hidden * self.intermediate;
        patches + self.layers * block + self.merger_parameters()
    }

    /// Those of all mergers.
    fn merger_parameters(&self) -> usize {
        let merged = self.merge * self.merge * self.hidden;
        (1 + self.levels) * (merged * merged + merged * self.out)
    }

    /// Patches of a picture.
    pub fn patches(&self, picture: &Picture) -> usize {
        picture.grid_rows() * self.merge * self.merge
    }

    /// FLOPs of a picture in products with weights.
    pub fn linear_flops(&self, picture: &Picture) -> f64 {
        let per_patch = self.parameters() - self.merger_parameters();
        2.0 * (self.patches(picture) as f64 * per_patch as f64
            + picture.grid_rows() as f64 * self.merger_parameters() as f64)
    }

    /// FLOPs of a picture in attention: every patch sees its picture, or its window.
    pub fn attention_flops(&self, picture: &Picture) -> f64 {
        let patches = self.patches(picture) as f64;
        let windowed = (self.layers - self.whole_layers) as f64 * patches.min(self.window_patches as f64);
        4.0 * self.hidden as f64 * patches * (self.whole_layers as f64 * patches + windowed)
    }

    /// Bytes of a picture's pixels.
    pub fn pixel_bytes(&self, picture: &Picture) -> u64 {
        picture.pixel_bytes(self.patch * self.merge) as u64
    }

    /// Bytes of the features of a row, its levels included.
    pub fn feature_bytes(&self, dtype_bytes: usize) -> u64 {
        ((1 + self.levels) * self.out * dtype_bytes) as u64
    }

    /// Bytes of the features of all pictures of a plan.
    pub fn features_bytes(&self, plan: &Plan, dtype_bytes: usize) -> u64 {
        let rows: usize = plan.pictures().iter().map(|(picture, _)| picture.grid_rows()).sum();
        rows as u64 * self.feature_bytes(dtype_bytes)
    }

    /// Bytes of memory on a rank while its tower runs, with numbers of `number_bytes` bytes: the
    /// pixels of its pictures, patches, the residual stream, queries, keys, values, outputs, and a
    /// slice of an MLP.
    pub fn tower_bytes(&self, plan: &Plan, rank: usize, number_bytes: u64) -> u64 {
        let own: Vec<&Picture> =
            plan.pictures().into_iter().filter(|(_, of)| *of == rank).map(|(picture, _)| picture).collect();
        // Rank 0 has all pixels in the plan, and once more while they are sent.
        let pixels: u64 = match rank {
            0 => 2 * plan.pictures().iter().map(|(picture, _)| self.pixel_bytes(picture)).sum::<u64>(),
            _ => own.iter().map(|picture| self.pixel_bytes(picture)).sum(),
        };
        let patches = || own.iter().map(|picture| self.patches(picture));
        let at_once = patches().max().unwrap_or(0).max(patches().sum::<usize>().min(PATCHES_AT_ONCE));
        let numbers = 2 * 3 * self.frames * self.patch * self.patch + 8 * self.hidden + self.intermediate;
        pixels + (at_once * numbers) as u64 * number_bytes
    }
}
