//! The config of a vision tower: `vision_config` of a config.json, the ids of its marks, and the
//! preprocessing that files beside it state.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::families::Towers;
use crate::preprocessing::Preprocessing;

/// The largest size that is accepted.
const SIZE_LIMIT: usize = 1 << 16;

/// The largest side of a patch, and of a merged block in patches, that is accepted.
const SIDE_LIMIT: usize = 256;

/// Frames of a picture's patch at most: the picture counts as a film that stands still.
const FRAME_LIMIT: usize = 16;

/// A vision tower and its input.
#[derive(Debug, Clone, PartialEq)]
pub struct VisionConfig {
    /// Number of blocks.
    pub layers: usize,
    /// Width of its residual stream.
    pub hidden: usize,
    /// Width of its MLPs.
    pub intermediate: usize,
    /// Number of heads.
    pub heads: usize,
    /// Width of its features: the decoder's residual stream.
    pub out: usize,
    /// Side of a patch, in pixels.
    pub patch: usize,
    /// Side of the block of patches that makes a token.
    pub merge: usize,
    /// Number of times that a picture stands in each patch.
    pub frames: usize,
    /// Fields of its family alone.
    pub tower: TowerConfig,
    /// Tokens that stand for pictures.
    pub marks: Marks,
    /// From pixels to numbers.
    pub preprocessing: Preprocessing,
}

/// The fields of one family's towers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TowerConfig {
    /// Qwen3-VL's.
    Qwen3 {
        /// Side of the square table of positions.
        side: usize,
        /// Blocks whose output becomes a level, which the decoder adds after one of its first
        /// layers (DeepStack; Meng et al. 2024, "DeepStack", section 3), rising.
        levels: Vec<usize>,
    },
    /// Qwen2.5-VL's.
    Qwen25 {
        /// Side of a window, in tokens.
        window: usize,
        /// For each block whether a patch sees its whole picture instead of its window.
        sees_whole: Vec<bool>,
    },
}

/// Ids of the tokens that stand for pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// A row of a picture.
    pub picture: u32,
    /// Before a picture.
    pub start: u32,
    /// After a picture.
    pub end: u32,
    /// A row of a film, which is not read.
    pub video: Option<u32>,
}

/// The decoder of a config of text and pictures, as far as its tower must fit it.
#[derive(Debug, Clone, Copy)]
pub(super) struct OfText {
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
}

#[derive(Deserialize)]
struct Raw {
    depth: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_heads: usize,
    out_hidden_size: usize,
    patch_size: usize,
    spatial_merge_size: usize,
    temporal_patch_size: usize,
    in_channels: Option<usize>,
    in_chans: Option<usize>,
    hidden_act: Option<String>,
    num_position_embeddings: Option<usize>,
    deepstack_visual_indexes: Option<Vec<usize>>,
    window_size: Option<usize>,
    fullatt_block_indexes: Option<Vec<usize>>,
}

impl VisionConfig {
    /// The tower of a whole config.json, `whole`, of a family.
    ///
    /// # Errors
    /// Returns the field that is missing, impossible, or contradicts another.
    pub(super) fn of(whole: &Value, family: Towers, text: OfText) -> Result<Self, String> {
        let of_field = |error: serde_json::Error| format!("vision_config: {error}");
        let raw: Raw = Deserialize::deserialize(&whole["vision_config"]).map_err(of_field)?;
        raw.check(family, text)?;
        let tower = match family {
            Towers::Qwen3 => raw.qwen3(text)?,
            Towers::Qwen25 => raw.qwen25()?,
        };
        Ok(Self {
            layers: raw.depth,
            hidden: raw.hidden_size,
            intermediate: raw.intermediate_size,
            heads: raw.num_heads,
            out: raw.out_hidden_size,
            patch: raw.patch_size,
            merge: raw.spatial_merge_size,
            frames: raw.temporal_patch_size,
            tower,
            marks: Marks::of(whole, text.vocab)?,
            preprocessing: Preprocessing::published(family),
        })
    }

    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.hidden / self.heads
    }

    /// Numbers of a patch: channels, frames, rows, columns.
    pub fn patch_numbers(&self) -> usize {
        3 * self.frames * self.patch * self.patch
    }

    /// Patches of a token.
    pub fn token_patches(&self) -> usize {
        self.merge * self.merge
    }

    /// Number of levels that its features come with.
    pub fn levels(&self) -> usize {
        match &self.tower {
            TowerConfig::Qwen3 { levels, .. } => levels.len(),
            TowerConfig::Qwen25 { .. } => 0,
        }
    }
}

impl Raw {
    fn check(&self, family: Towers, text: OfText) -> Result<(), String> {
        let sizes = [self.depth, self.hidden_size, self.intermediate_size, self.num_heads];
        let sides = [self.patch_size, self.spatial_merge_size];
        if sizes.iter().chain(&sides).chain([&self.temporal_patch_size]).any(|&size| size == 0) {
            return Err("vision_config: a size is 0".to_owned());
        }
        let beyond = |sizes: &[usize], most: usize| sizes.iter().find(|&&size| size > most).map(|&size| (size, most));
        let beyond = beyond(&sizes, SIZE_LIMIT).or(beyond(&sides, SIDE_LIMIT));
        if let Some((size, most)) =
            beyond.or((self.temporal_patch_size > FRAME_LIMIT).then_some((self.temporal_patch_size, FRAME_LIMIT)))
        {
            return Err(format!("vision_config: a size is {size}; the maximum is {most}"));
        }
        // A head's pairs turn by rows and by columns, half of them each.
        if !self.hidden_size.is_multiple_of(4 * self.num_heads) {
            let (hidden, heads) = (self.hidden_size, self.num_heads);
            return Err(format!("vision_config: hidden_size {hidden} is not a multiple of 4 times num_heads {heads}"));
        }
        if self.out_hidden_size != text.hidden {
            let (out, hidden) = (self.out_hidden_size, text.hidden);
            return Err(format!(
                "vision_config: out_hidden_size {out} and the text's hidden_size {hidden} contradict each other"
            ));
        }
        if let Some(channels) = [self.in_channels, self.in_chans].into_iter().flatten().find(|&channels| channels != 3)
        {
            return Err(format!("vision_config: {channels} channels are not supported; 3 are"));
        }
        let known: &[&str] = match family {
            Towers::Qwen3 => &["gelu_pytorch_tanh"],
            Towers::Qwen25 => &["silu", "swish"],
        };
        match self.hidden_act.as_deref() {
            Some(other) if !known.contains(&other) => {
                Err(format!("vision_config: hidden_act `{other}` is not supported; `{}` is", known[0]))
            }
            _ => Ok(()),
        }
    }

    fn qwen3(&self, text: OfText) -> Result<TowerConfig, String> {
        let lacks = |name: &str| format!("vision_config lacks `{name}`");
        let count = self.num_position_embeddings.ok_or_else(|| lacks("num_position_embeddings"))?;
        let side = count.isqrt();
        if side == 0 || side * side != count || side > SIZE_LIMIT {
            return Err(format!("vision_config: num_position_embeddings {count}: must be a square"));
        }
        let levels = self.deepstack_visual_indexes.clone().ok_or_else(|| lacks("deepstack_visual_indexes"))?;
        let rises = levels.windows(2).all(|pair| pair[0] < pair[1]);
        if !rises || levels.last().is_some_and(|&last| last >= self.depth) || levels.len() > text.layers {
            let (depth, layers) = (self.depth, text.layers);
            return Err(format!(
                "vision_config: deepstack_visual_indexes {levels:?}: must rise below depth {depth}, at most {layers} of them"
            ));
        }
        Ok(TowerConfig::Qwen3 { side, levels })
    }

    fn qwen25(&self) -> Result<TowerConfig, String> {
        let lacks = |name: &str| format!("vision_config lacks `{name}`");
        let pixels = self.window_size.ok_or_else(|| lacks("window_size"))?;
        let window = pixels / self.spatial_merge_size / self.patch_size;
        if window == 0 || pixels > SIZE_LIMIT {
            let token = self.spatial_merge_size * self.patch_size;
            return Err(format!(
                "vision_config: window_size {pixels}: must be from {token} pixels, a token's, to {SIZE_LIMIT}"
            ));
        }
        let whole = self.fullatt_block_indexes.as_ref().ok_or_else(|| lacks("fullatt_block_indexes"))?;
        if let Some(block) = whole.iter().find(|&&block| block >= self.depth) {
            return Err(format!("vision_config: fullatt_block_indexes {block}: must be below depth {}", self.depth));
        }
        Ok(TowerConfig::Qwen25 { window, sees_whole: (0..self.depth).map(|block| whole.contains(&block)).collect() })
    }
}

impl Marks {
    fn of(whole: &Value, vocab: usize) -> Result<Self, String> {
        let id = |name: &str| match &whole[name] {
            Value::Null => Ok(None),
            value => match value.as_u64().filter(|&id| id < vocab as u64) {
                Some(id) => Ok(Some(id as u32)),
                None => Err(format!("{name} {value}: must be a token of {vocab}")),
            },
        };
        let needed =
            |name: &str| id(name)?.ok_or_else(|| format!("`{name}` is missing, a token that stands for pictures"));
        let marks = Self {
            picture: needed("image_token_id")?,
            start: needed("vision_start_token_id")?,
            end: needed("vision_end_token_id")?,
            video: id("video_token_id")?,
        };
        let mut ids: Vec<u32> = [marks.picture, marks.start, marks.end].into_iter().chain(marks.video).collect();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            None => Ok(marks),
            Some(pair) => Err(format!("token {} stands for two marks of pictures", pair[0])),
        }
    }
}

/// The axis whose position turns each pair of a head, by the sections of a decoder of pictures:
/// axes in turns as far as sections reach, then time (Qwen3-VL), or one axis after the other.
///
/// # Errors
/// Returns the sections that do not make up the pairs.
pub(super) fn axes(sections: [usize; 3], pairs: usize, interleaved: bool) -> Result<Arc<[u8]>, String> {
    let sum = sections.iter().try_fold(0usize, |sum, &section| sum.checked_add(section));
    if sum != Some(pairs) {
        return Err(format!("mrope_section {sections:?}: must sum to the {pairs} pairs of a head that rotate"));
    }
    if !interleaved {
        return Ok((0..3).flat_map(|axis| std::iter::repeat_n(axis as u8, sections[axis])).collect());
    }
    if 3 * sections[1].max(sections[2]) > pairs {
        return Err(format!(
            "mrope_section {sections:?}: height and width take turns within {pairs} pairs, so have a third at most"
        ));
    }
    let axis = |pair: usize| match pair % 3 {
        0 => 0,
        axis if pair < 3 * sections[axis] => axis as u8,
        _ => 0,
    };
    Ok((0..pairs).map(axis).collect())
}

#[cfg(test)]
mod tests;
