//! Time that passes wait for chunks that are read from a store meanwhile: layer by layer, the first
//! layers of all chunks first.

/// Layers that a pass goes through one after the other, each reading the chunks' rows of its layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pass {
    /// Number of layers, from the first on.
    pub layers: usize,
    /// Seconds of the pass by itself.
    pub seconds: f64,
    /// Whether all its layers must be there before the first: anchors are chosen by the last one.
    pub at_once: bool,
}

/// Seconds that each of these passes waits. Reading all of `layers` layers takes `read_s` from the
/// beginning of the first pass on, and layers arrive evenly.
pub fn waits(passes: &[Pass], layers: usize, read_s: f64) -> Vec<f64> {
    let arrives = |layer: usize| read_s * (layer + 1) as f64 / layers.max(1) as f64;
    let mut now = 0.0;
    let mut wait_in = |pass: &Pass| {
        let (begun, layer_s) = (now, pass.seconds / pass.layers.max(1) as f64);
        if let (true, Some(last)) = (pass.at_once, pass.layers.min(layers).checked_sub(1)) {
            now = f64::max(now, arrives(last));
        }
        for layer in 0..pass.layers.min(layers) {
            now = f64::max(now, arrives(layer)) + layer_s;
        }
        f64::max(now - begun - pass.seconds, 0.0)
    };
    passes.iter().map(&mut wait_in).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(passes: &[(usize, f64)], read_s: f64) -> Vec<f64> {
        let passes: Vec<Pass> =
            passes.iter().map(|&(layers, seconds)| Pass { layers, seconds, at_once: false }).collect();
        waits(&passes, 8, read_s).into_iter().map(|wait| (1000.0 * wait).round() / 1000.0).collect()
    }

    #[test]
    fn what_is_read_faster_than_it_is_used_costs_its_first_layer() {
        assert_eq!(rounded(&[(4, 4.0), (8, 8.0)], 0.8), [0.1, 0.0]);
        assert_eq!(rounded(&[(8, 8.0)], 0.0), [0.0]);
        assert_eq!(rounded(&[], 3.0), Vec::<f64>::new());
    }

    #[test]
    fn what_is_read_slowly_is_waited_for_where_it_is_needed() {
        // A short probe waits for its layers, the long pass after it for the remaining ones.
        assert_eq!(rounded(&[(4, 0.4), (8, 0.8)], 8.0), [3.7, 3.2]);
        // A pass that needs all its layers at once waits for the last of them.
        let at_once = Pass { layers: 4, seconds: 0.4, at_once: true };
        let waits = waits(&[at_once, Pass { layers: 8, seconds: 0.8, at_once: false }], 8, 8.0);
        assert!((waits[0] - 4.0).abs() < 1e-9 && (waits[1] - 2.9).abs() < 1e-9, "{waits:?}");
        // Reading under the work of a long pass is not waited for.
        assert_eq!(rounded(&[(8, 8.0)], 8.0), [1.0]);
    }
}
