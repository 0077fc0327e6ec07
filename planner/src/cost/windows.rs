//! Rows that decoding drops in layers with a sliding window: no later row sees them.

use tributary_protocol::Plan;

use crate::shape::WindowShape;
use crate::{ModelShape, TokenBytes};

/// Rows at the end of a prompt from any of which a later request can go on: its template may write
/// the end of the last message in another way.
const LAST_ROWS: usize = 64;

/// Rows of an answer that are dropped together.
const PIECE_ROWS: usize = 256;

/// The first row whose windows the sequence of a plan keeps whole; 0 if it keeps all rows. It does
/// where another program reads them, and where positions do not tell rows apart.
pub fn windows_from(plan: &Plan, shape: &ModelShape) -> usize {
    let total = plan.total_rows();
    let is_apart = plan.method.parallel().is_some() || plan.has_pictures();
    let keeps_all = plan.hands_over || is_apart || plan.chunks.iter().any(|chunk| chunk.compress.is_some());
    if keeps_all || shape.windows.is_none_or(|windows| total <= windows.tokens) {
        return 0;
    }
    match plan.keep_sequence {
        true => total.saturating_sub(LAST_ROWS).max(plan.continues.map_or(0, |continues| continues.rows)),
        false => total,
    }
}

/// The windows beyond which the sequence of a plan drops rows.
pub fn windows(plan: &Plan, shape: &ModelShape) -> Option<WindowShape> {
    shape.windows.filter(|_| plan.windows_from > 0)
}

/// Rows of a plan's prompt that a layer with a window keeps at most.
pub fn most_of_prompt(plan: &Plan, windows: WindowShape) -> usize {
    windows.tokens - 1 + if plan.keep_sequence { LAST_ROWS } else { 0 }
}

/// Bytes of the tokens of an answer on the owner. A kept sequence has all of them: a later request
/// may leave out some.
pub fn token_bytes(plan: &Plan, shape: &ModelShape) -> TokenBytes {
    let windows = windows(plan, shape).filter(|_| !plan.keep_sequence && plan.evicts().is_none());
    let Some(WindowShape { tokens, layers }) = windows else { return shape.kv_bytes().into() };
    let newest = layers.len() as u64 * shape.layer_kv_bytes();
    TokenBytes { always: shape.kv_bytes() - newest, newest, most_newest: tokens + 2 * PIECE_ROWS }
}

#[cfg(test)]
mod tests {
    use tributary_protocol::Continues;

    use super::*;
    use crate::cost::running_bytes;
    use crate::kit::{planned, warm};
    use crate::shape::tests::QWEN3_14B;

    /// Qwen3-14B with a window in 30 of its 40 layers.
    fn shape(tokens: usize) -> ModelShape {
        ModelShape { windows: Some(WindowShape { tokens, layers: (0..30).collect() }), ..QWEN3_14B }
    }

    #[test]
    fn a_sequence_keeps_the_windows_of_rows_that_may_follow() {
        let plan = planned("full", 8192, 2048, 4, &shape(1000));
        let total = plan.total_rows();
        assert_eq!(plan.windows_from, total);
        let of = |plan: &Plan| windows_from(plan, &shape(1000));
        let kept = Plan { keep_sequence: true, ..plan.clone() };
        assert_eq!(of(&kept), total - 64);
        let later = Some(Continues { request: 1, rows: total - 9, first_rows: total - 20 });
        assert_eq!(of(&Plan { continues: later, ..kept }), total - 9, "it has no earlier rows' windows itself");
        assert_eq!(of(&Plan { hands_over: true, ..plan.clone() }), 0);
        assert_eq!([windows_from(&plan, &shape(total)), windows_from(&plan, &QWEN3_14B)], [0, 0]);
        let compressed = planned("none:keep-per-chunk=100", 8192, 2048, 4, &shape(1000));
        assert_eq!((compressed.compresses(), compressed.windows_from), (true, 0));
        assert_eq!(planned("ape", 8192, 2048, 4, &shape(1000)).windows_from, 0, "chunks stand at the same positions");
    }

    #[test]
    fn a_window_keeps_its_rows_of_the_prompt_and_of_the_answer() {
        let (shape, kv) = (shape(1000), QWEN3_14B.layer_kv_bytes());
        let plan = Plan { max_tokens: 5000, ..planned("full", 8192, 2048, 4, &shape) };
        let rows = plan.total_rows() as u64;
        let bytes = |plan: &Plan| running_bytes(plan, 4, &shape)[plan.owner];
        assert_eq!(bytes(&plan), (10 * (rows + 5000) + 30 * (999 + 1000 + 512)) * kv);
        let kept = Plan { keep_sequence: true, windows_from: 1, ..plan.clone() };
        assert_eq!(bytes(&kept), (10 * rows + 30 * (999 + 64) + 40 * 5000) * kv, "its whole answer");
        assert_eq!(bytes(&Plan { windows_from: 0, ..plan }), 40 * (rows + 5000) * kv);
        // Of a warm chunk's values only those of layers without a window are the chunk cache's.
        let none = Plan { max_tokens: 2, ..planned("none", 8192, 2048, 4, &shape) };
        let cached = warm(none.clone());
        assert_eq!(bytes(&none) - bytes(&cached), 10 * 2048 * kv / 2);
    }

    /// The numbers in docs/methods.md.
    #[test]
    fn decoding_of_named_models_takes_what_the_docs_say() {
        for (name, with_windows, without) in [("gpt-oss-20b", 0.82, 1.62), ("gemma-3-27b", 3.25, 16.8)] {
            let shape = ModelShape::named(name).expect("a known model");
            let plan = Plan { max_tokens: 256, ..planned("full", 32_768, 2048, 1, &shape) };
            let gigabytes = |plan: &Plan| running_bytes(plan, 1, &shape)[0] as f64 / 1e9;
            let all = gigabytes(&Plan { windows_from: 0, ..plan.clone() });
            assert!((all / without - 1.0).abs() < 0.02, "{name}: {all} GB without windows");
            assert!((gigabytes(&plan) / with_windows - 1.0).abs() < 0.02, "{name}: {} GB", gigabytes(&plan));
        }
    }
}
