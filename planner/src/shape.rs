//! The planner's view of a model: its shape, and facts that follow from it.

/// The shape of a decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelShape {
    /// Decoder layers.
    pub layers: usize,
    /// Width of a row.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the feed-forward part.
    pub intermediate: usize,
    /// Number of token ids.
    pub vocab: usize,
    /// Whether input and output embeddings are one.
    pub tied_embeddings: bool,
    /// Positions that the model was made for.
    pub max_positions: usize,
    /// Bytes of the weights in memory.
    pub weight_bytes: u64,
    /// Bytes of one number in the cache and between ranks.
    pub dtype_bytes: usize,
}

/// Shapes that are known by name, bf16: name, layers, hidden, heads, KV heads, head dim,
/// intermediate, vocabulary, positions. From the models' published configs.
const NAMED: [(&str, [usize; 8]); 3] = [
    ("llama-3.1-405b", [126, 16_384, 128, 8, 128, 53_248, 128_256, 131_072]),
    ("llama-3.1-8b", [32, 4096, 32, 8, 128, 14_336, 128_256, 131_072]),
    ("qwen3-14b", [40, 5120, 40, 8, 128, 17_408, 151_936, 40_960]),
];

impl ModelShape {
    /// A shape that is known by name.
    pub fn named(name: &str) -> Option<Self> {
        let (_, sizes) = NAMED.iter().find(|(known, _)| *known == name)?;
        let [layers, hidden, heads, kv_heads, head_dim, intermediate, vocab, max_positions] = *sizes;
        let mut shape = Self {
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim,
            intermediate,
            vocab,
            tied_embeddings: false,
            max_positions,
            weight_bytes: 0,
            dtype_bytes: 2,
        };
        shape.weight_bytes = shape.parameters() * shape.dtype_bytes as u64;
        Some(shape)
    }

    /// The names that [`named`](Self::named) knows.
    pub fn names() -> Vec<&'static str> {
        NAMED.iter().map(|(name, _)| *name).collect()
    }

    /// Numbers in the queries of one row.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Numbers in the keys, or in the values, of one row.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Numbers in the matrices of one layer.
    pub fn layer_matrix_parameters(&self) -> u64 {
        let attention = 2 * self.hidden * (self.query_width() + self.kv_width());
        (attention + 3 * self.hidden * self.intermediate) as u64
    }

    /// FLOPs of a row's keys and values in one layer.
    pub fn layer_kv_flops(&self) -> f64 {
        4.0 * (self.hidden * self.kv_width()) as f64
    }

    /// FLOPs of a row's query in one layer.
    pub fn layer_query_flops(&self) -> f64 {
        2.0 * (self.hidden * self.query_width()) as f64
    }

    /// FLOPs in the matrices that a row passes after its attention in one layer.
    pub fn layer_finish_flops(&self) -> f64 {
        2.0 * (self.hidden * (self.query_width() + 3 * self.intermediate)) as f64
    }

    /// Numbers that a row reads and writes in one layer in addition to its products and its
    /// attention: two norms (in and out), two sums (two in, one out), the rotation of query and key
    /// (in and out), the gate's activation (two in, one out).
    pub fn layer_elementwise(&self) -> f64 {
        (10 * self.hidden + 2 * (self.query_width() + self.kv_width()) + 3 * self.intermediate) as f64
    }

    /// FLOPs of one row's logits.
    pub fn logits_flops(&self) -> f64 {
        2.0 * (self.vocab * self.hidden) as f64
    }

    /// Numbers in the model: matrices, norms and embeddings; biases and the norms of heads left
    /// out.
    pub fn parameters(&self) -> u64 {
        let norms = (2 * self.layers + 1) * self.hidden;
        let embeddings = if self.tied_embeddings { 1 } else { 2 } * self.vocab * self.hidden;
        self.layers as u64 * self.layer_matrix_parameters() + (norms + embeddings) as u64
    }

    /// FLOPs of a row in the matrices of all layers.
    pub fn row_flops(&self) -> f64 {
        2.0 * self.layers as f64 * self.layer_matrix_parameters() as f64
    }

    /// FLOPs of one query row for each key it sees: scores and weighted values, all layers and
    /// heads.
    pub fn pair_flops(&self) -> f64 {
        4.0 * (self.layers * self.heads * self.head_dim) as f64
    }

    /// Bytes of one token's keys and values in one layer.
    pub fn layer_kv_bytes(&self) -> u64 {
        (2 * self.kv_heads * self.head_dim * self.dtype_bytes) as u64
    }

    /// Bytes of one token's keys and values in all layers.
    pub fn kv_bytes(&self) -> u64 {
        self.layers as u64 * self.layer_kv_bytes()
    }

    /// Bytes of a cached chunk: its keys and values, and the numbers of their rows if it was
    /// compressed.
    pub fn chunk_bytes(&self, chunk: &tributary_protocol::Chunk) -> u64 {
        let numbers = if chunk.compress.is_some() { 4 * self.layers * self.kv_heads } else { 0 };
        chunk.held_rows() as u64 * (self.kv_bytes() + numbers as u64)
    }

    /// FLOPs of a prefill of `rows` rows after `before` rows: every row sees those, the rows before
    /// it, and itself.
    pub fn prefill_flops(&self, rows: usize, before: usize) -> f64 {
        let (rows, before) = (rows as f64, before as f64);
        rows * self.row_flops() + self.pair_flops() * rows * (before + (rows + 1.0) / 2.0)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const QWEN3_14B: ModelShape = ModelShape {
        layers: 40,
        hidden: 5120,
        heads: 40,
        kv_heads: 8,
        head_dim: 128,
        intermediate: 17408,
        vocab: 151_936,
        tied_embeddings: false,
        max_positions: 40_960,
        weight_bytes: 29_536_614_400,
        dtype_bytes: 2,
    };

    pub(crate) const DEMO: ModelShape = ModelShape {
        layers: 5,
        hidden: 128,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        intermediate: 256,
        vocab: 378,
        tied_embeddings: false,
        max_positions: 4096,
        weight_bytes: 3_341_824,
        dtype_bytes: 4,
    };

    /// examples/models/dummy-25m.
    pub(crate) const DUMMY_25M: ModelShape = ModelShape {
        layers: 8,
        hidden: 512,
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
        intermediate: 1408,
        vocab: 4096,
        tied_embeddings: true,
        max_positions: 131_072,
        weight_bytes: 98_600_960,
        dtype_bytes: 4,
    };

    #[test]
    fn parameters_are_those_of_the_models() {
        // Qwen3-14B has 14 768 307 200 numbers, 10 240 of them norms of heads.
        assert_eq!(QWEN3_14B.parameters(), 14_768_307_200 - 40 * 2 * 128);
        // The demo model's weight file holds 3 341 824 bytes of f32.
        assert_eq!(DEMO.parameters() * 4, DEMO.weight_bytes);
        assert_eq!(DUMMY_25M.parameters() * 4, DUMMY_25M.weight_bytes);
    }

    #[test]
    fn named_shapes_are_those_of_the_models() {
        let qwen = ModelShape::named("qwen3-14b").unwrap();
        assert_eq!(qwen, ModelShape { weight_bytes: qwen.weight_bytes, ..QWEN3_14B });
        // Norms of heads are left out.
        assert!(QWEN3_14B.weight_bytes - qwen.weight_bytes < 40 * 1024);
        // Llama-3.1-8B has 8 030 261 248 numbers.
        assert_eq!(ModelShape::named("llama-3.1-8b").unwrap().parameters(), 8_030_261_248);
        assert_eq!(ModelShape::named("llama"), None);
        assert!(ModelShape::names().iter().all(|name| ModelShape::named(name).is_some()));
    }

    #[test]
    fn costs_follow_from_the_shape() {
        assert_eq!(QWEN3_14B.kv_bytes(), 40 * 4096);
        // Two FLOPs a matrix number, embeddings not counted.
        let matrices = QWEN3_14B.parameters() as f64 - 2.0 * 151_936.0 * 5120.0;
        assert!((QWEN3_14B.row_flops() / (2.0 * matrices) - 1.0).abs() < 1e-3);
        let two_halves = DEMO.prefill_flops(10, 0) + DEMO.prefill_flops(10, 10);
        assert!((DEMO.prefill_flops(20, 0) / two_halves - 1.0).abs() < 1e-12);
    }
}
