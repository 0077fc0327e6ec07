//! Distance of the first token's logits from those of full prefill.

use tributary_charts::statistics::kl_nats;

use super::schema::Accuracy;

impl Accuracy {
    /// Accuracy of logits against those of full prefill, one logit a word of the vocabulary.
    pub fn between(logits: &[f32], reference: &[f32]) -> Self {
        assert_eq!(logits.len(), reference.len(), "logits, and those of full prefill");
        assert!(!logits.is_empty(), "logits were asked for, and none came");
        Self {
            max_logit_difference: max_difference(logits, reference),
            kl_nats: kl_nats(reference, logits),
            top1_agrees: argmax(logits) == argmax(reference),
        }
    }
}

fn max_difference(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max)
}

/// The first of the largest.
fn argmax(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_and_the_first_place() {
        let found = Accuracy::between(&[1.0, 4.0, 3.0], &[1.5, 4.0, 5.0]);
        assert!((found.max_logit_difference - 2.0).abs() < 1e-12 && !found.top1_agrees, "{found:?}");
        assert!(Accuracy::between(&[1.0, 4.0, 4.0], &[0.0, 9.0, 1.0]).top1_agrees, "ties go to the first");
    }
}
