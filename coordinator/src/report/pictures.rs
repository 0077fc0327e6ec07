//! The pictures of a request.

use schemars::JsonSchema;
use serde::Serialize;
use tributary_planner::ModelShape;
use tributary_protocol::{Phase, Plan, RankReport};

use super::rows::ms;
use crate::intake::Prepared;

/// The pictures of a request, all ranks together. A picture that is there twice is read once.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct PicturesRow {
    /// Number of pictures.
    pub count: usize,
    /// Tokens of the context that are their places.
    pub tokens: usize,
    /// Number of different pictures.
    pub different: usize,
    /// Number of different pictures whose features were in the chunk cache, so that no tower ran.
    pub cached: usize,
    /// Bytes of their resized pixels, of each different picture once.
    pub pixel_bytes: u64,
    /// Bytes of their features, those of levels included, of each different picture once.
    pub feature_bytes: u64,
    /// Time in which rank 0 decoded and resized their files.
    pub decode_ms: f64,
    /// Time of the vision phase without waits, on the rank where it took longest.
    pub tower_ms: f64,
}

impl PicturesRow {
    /// Of a request; `None` if it has no pictures.
    pub(super) fn new(prepared: &Prepared, plan: &Plan, reports: &[RankReport], shape: &ModelShape) -> Option<Self> {
        let different = plan.pictures();
        if different.is_empty() {
            return None;
        }
        let all = || plan.chunks.iter().flat_map(|chunk| &chunk.pictures);
        let vision = shape.vision.as_ref();
        let of_tower = |report: &RankReport| -> f64 {
            let spans = report.spans.iter().filter(|span| span.phase == Phase::Vision);
            spans.map(|span| span.seconds - span.waited_s).sum()
        };
        Some(Self {
            count: all().filter(|picture| picture.begins()).count(),
            tokens: all().map(tributary_protocol::Picture::rows).sum(),
            different: different.len(),
            cached: reports.iter().map(|report| report.chunk_cache.picture_hits).sum(),
            pixel_bytes: vision
                .map_or(0, |vision| different.iter().map(|(picture, _)| vision.pixel_bytes(picture)).sum()),
            feature_bytes: vision.map_or(0, |vision| vision.features_bytes(plan, shape.dtype_bytes)),
            decode_ms: ms(prepared.pictures.0.as_secs_f64()),
            tower_ms: ms(reports.iter().map(of_tower).fold(0.0, f64::max)),
        })
    }

    /// The row as a line of text, with a line break.
    pub(super) fn render(&self) -> String {
        let Self { count, tokens, different, cached, pixel_bytes, feature_bytes, decode_ms, tower_ms } = self;
        format!(
            "pictures: {count} ({different} different, {cached} cached), {tokens} tokens, {pixel_bytes} bytes of pixels, \
             {feature_bytes} of features; decoded in {decode_ms:.2} ms, towers {tower_ms:.2} ms\n"
        )
    }
}
