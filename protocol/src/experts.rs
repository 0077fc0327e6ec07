//! Sizes of experts (a sparsely gated mixture of experts: Shazeer et al. 2017, "Outrageously Large
//! Neural Networks", section 2). Planner and ranks count a row's work with them.

/// Experts in place of a dense MLP, in some layers of a decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertSizes {
    /// Number of routed experts of a layer.
    pub count: usize,
    /// Number of them that a row passes.
    pub active: usize,
    /// Width of one of them.
    pub width: usize,
    /// Width of the expert that every row passes; 0 without one.
    pub shared_width: usize,
    /// Number of layers with experts; the others have a dense MLP.
    pub layers: usize,
}

impl ExpertSizes {
    /// Width of the dense MLP in which a row would meet as many matrix numbers as here, on average
    /// over `layers` layers of which those without experts have an MLP of width `dense`. The
    /// router, one number a row of the residual stream and expert, counts.
    pub fn mean_width(self, layers: usize, dense: usize) -> usize {
        let of_experts = self.active * self.width + self.shared_width + self.count / 3;
        (self.layers * of_experts + (layers - self.layers) * dense) / layers
    }

    /// Matrix numbers of the MLPs of `layers` layers, for a residual stream of width `hidden`: all
    /// that are kept.
    pub fn numbers(self, layers: usize, dense: usize, hidden: usize) -> usize {
        let of_experts = 3 * (self.count * self.width + self.shared_width) + self.count;
        hidden * (self.layers * of_experts + 3 * (layers - self.layers) * dense)
    }

    /// Numbers in one matrix of each routed expert of a layer, for a residual stream of width
    /// `hidden`.
    pub fn matrix_numbers(self, hidden: usize) -> usize {
        self.count * self.width * hidden
    }

    /// Numbers in the three matrices of every routed expert.
    pub fn routed_numbers(self, hidden: usize) -> usize {
        3 * self.layers * self.matrix_numbers(hidden)
    }

    /// Number of a layer's experts that `rows` rows pass, if each row's experts are drawn evenly.
    pub fn met_by(self, rows: usize) -> f64 {
        let missed = (1.0 - self.active as f64 / self.count as f64).powf(rows as f64);
        self.count as f64 * (1.0 - missed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Qwen3-30B-A3B: 48 layers of 128 experts, 8 of them active, hidden 2048.
    const QWEN3_30B: ExpertSizes = ExpertSizes { count: 128, active: 8, width: 768, shared_width: 0, layers: 48 };

    #[test]
    fn a_row_passes_few_of_the_numbers() {
        assert_eq!(QWEN3_30B.numbers(48, 6144, 2048), 48 * 2048 * (3 * 128 * 768 + 128));
        assert_eq!(QWEN3_30B.mean_width(48, 6144), 8 * 768 + 42);
        let half = ExpertSizes { layers: 24, shared_width: 100, ..QWEN3_30B };
        assert_eq!(half.mean_width(48, 6144), (8 * 768 + 100 + 42 + 6144) / 2);
    }

    #[test]
    fn many_rows_meet_all_experts() {
        assert!((QWEN3_30B.met_by(1) - 8.0).abs() < 1e-9);
        assert!((15.0..16.0).contains(&QWEN3_30B.met_by(2)));
        assert!(QWEN3_30B.met_by(1000) > 127.99);
    }
}
