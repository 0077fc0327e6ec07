//! How far the first token's logits are from those of full prefill.

use super::schema::Accuracy;

impl Accuracy {
    /// The accuracy of logits beside those of full prefill, one a word of the vocabulary.
    pub fn between(logits: &[f32], reference: &[f32]) -> Self {
        assert_eq!(logits.len(), reference.len(), "logits, and those of full prefill");
        assert!(!logits.is_empty(), "logits were asked for, and none came");
        Self {
            max_logit_difference: max_difference(logits, reference),
            kl_nats: kl(reference, logits),
            top1_agrees: argmax(logits) == argmax(reference),
        }
    }
}

fn max_difference(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max)
}

/// KL(p ‖ q) of the softmaxes of two logit vectors, in nats.
fn kl(p: &[f32], q: &[f32]) -> f64 {
    let log_softmax = |logits: &[f32]| -> Vec<f64> {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let shifted: Vec<f64> = logits.iter().map(|&logit| f64::from(logit - largest)).collect();
        let log_total = shifted.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        shifted.into_iter().map(|logit| logit - log_total).collect()
    };
    let (p, q) = (log_softmax(p), log_softmax(q));
    p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>().max(0.0)
}

/// The first of the largest.
fn argmax(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_of_known_distributions() {
        let logs = |p: [f32; 2]| p.map(f32::ln);
        let expected = 0.5 * (0.5f64 / 0.9).ln() + 0.5 * (0.5f64 / 0.1).ln();
        assert!((kl(&logs([0.5, 0.5]), &logs([0.9, 0.1])) - expected).abs() < 1e-6);
        assert!(kl(&[1.0, 2.0, 3.0], &[11.0, 12.0, 13.0]) < 1e-12);
    }

    #[test]
    fn differences_and_the_first_place() {
        let found = Accuracy::between(&[1.0, 4.0, 3.0], &[1.5, 4.0, 5.0]);
        assert!((found.max_logit_difference - 2.0).abs() < 1e-12 && !found.top1_agrees, "{found:?}");
        assert!(Accuracy::between(&[1.0, 4.0, 4.0], &[0.0, 9.0, 1.0]).top1_agrees, "ties go to the first");
    }
}
