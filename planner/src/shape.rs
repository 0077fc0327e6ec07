//! The planner's view of a model: its shape, and facts that follow from it.

use crate::vision::VisionShape;
use tributary_methods::{LayerSet, ModelFacts};
use tributary_protocol::ExpertSizes;

/// Sliding windows of a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowShape {
    /// Keys that a row sees at most.
    pub tokens: usize,
    /// The layers with a window.
    pub layers: LayerSet,
}

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
    /// Width of the feed-forward part, of layers without experts.
    pub intermediate: usize,
    /// Experts in place of the feed-forward part, if some layers have them.
    pub experts: Option<ExpertSizes>,
    /// Whether queries grow with their position: attention has a copy of them.
    pub queries_grow: bool,
    /// Sliding windows, if some layers have one.
    pub windows: Option<WindowShape>,
    /// Number of token ids.
    pub vocab: usize,
    /// Whether input and output embeddings are one.
    pub tied_embeddings: bool,
    /// Positions that the model was made for.
    pub max_positions: usize,
    /// Bytes of the weights in memory.
    pub weight_bytes: u64,
    /// Bytes of one number between ranks, and in the cache unless that is in 8 bits.
    pub dtype_bytes: usize,
    /// Whether keys and values are in 8 bits, with a byte of scale for each head.
    pub kv_in_eight_bits: bool,
    /// Its vision tower, if it reads pictures.
    pub vision: Option<VisionShape>,
}

/// A shape without experts: layers, hidden, heads, KV heads, head dim, intermediate, vocabulary,
/// positions.
type Sizes = [usize; 8];

/// Experts of a shape: how many, active ones, width, shared width, layers.
type Experts = Option<[usize; 5]>;

/// Windows of a shape: keys, and every how many layers one sees all.
type Windows = Option<[usize; 2]>;

/// Shapes that are known by name. From the models' published configs.
const NAMED: [(&str, Sizes, Experts, Windows); 15] = [
    ("gemma-3-27b", [62, 5376, 32, 16, 128, 21_504, 262_208, 131_072], None, Some([1024, 6])),
    ("glm-4.5", [92, 5120, 96, 8, 128, 12_288, 151_552, 131_072], Some([160, 8, 1536, 1536, 89]), None),
    ("glm-4.5-air", [46, 4096, 96, 8, 128, 10_944, 151_552, 131_072], Some([128, 8, 1408, 1408, 45]), None),
    ("gpt-oss-120b", [36, 2880, 64, 8, 64, 2880, 201_088, 131_072], Some([128, 4, 2880, 0, 36]), Some([128, 2])),
    ("gpt-oss-20b", [24, 2880, 64, 8, 64, 2880, 201_088, 131_072], Some([32, 4, 2880, 0, 24]), Some([128, 2])),
    ("llama-3.1-405b", [126, 16_384, 128, 8, 128, 53_248, 128_256, 131_072], None, None),
    ("llama-3.1-8b", [32, 4096, 32, 8, 128, 14_336, 128_256, 131_072], None, None),
    ("llama-3.3-70b", [80, 8192, 64, 8, 128, 28_672, 128_256, 131_072], None, None),
    ("qwen2.5-vl-7b", [28, 3584, 28, 4, 128, 18_944, 152_064, 128_000], None, None),
    ("qwen3-14b", [40, 5120, 40, 8, 128, 17_408, 151_936, 40_960], None, None),
    ("qwen3-235b-a22b", [94, 4096, 64, 4, 128, 12_288, 151_936, 40_960], Some([128, 8, 1536, 0, 94]), None),
    ("qwen3-30b-a3b", [48, 2048, 32, 4, 128, 6144, 151_936, 40_960], Some([128, 8, 768, 0, 48]), None),
    ("qwen3-vl-2b", [28, 2048, 16, 8, 128, 6144, 151_936, 262_144], None, None),
    ("qwen3-vl-4b", [36, 2560, 32, 8, 128, 9728, 151_936, 262_144], None, None),
    ("qwen3-vl-8b", [36, 4096, 32, 8, 128, 12_288, 151_936, 262_144], None, None),
];

/// Those whose experts are published in MXFP4, 32 numbers in 17 bytes.
const EXPERTS_IN_MXFP4: [&str; 2] = ["gpt-oss-120b", "gpt-oss-20b"];

impl ModelShape {
    /// A shape that is known by name, its weights as they are published, in bf16 where they are not
    /// packed.
    pub fn named(name: &str) -> Option<Self> {
        Self::named_in(name, 2)
    }

    /// The same with numbers of `dtype_bytes` bytes where they are not packed.
    pub fn named_in(name: &str, dtype_bytes: usize) -> Option<Self> {
        let (_, sizes, experts, windows) = NAMED.iter().find(|(known, ..)| *known == name)?;
        let [layers, hidden, heads, kv_heads, head_dim, intermediate, vocab, max_positions] = *sizes;
        let of_experts = |[count, active, width, shared_width, layers]: [usize; 5]| ExpertSizes {
            count,
            active,
            width,
            shared_width,
            layers,
        };
        let mut shape = Self {
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim,
            intermediate,
            experts: experts.map(of_experts),
            queries_grow: false,
            windows: windows.map(|[tokens, pattern]| WindowShape {
                tokens,
                layers: (0..layers).filter(|layer| !(layer + 1).is_multiple_of(pattern)).collect(),
            }),
            vocab,
            tied_embeddings: ["gemma-3-27b", "qwen3-vl-2b", "qwen3-vl-4b"].contains(&name),
            max_positions,
            weight_bytes: 0,
            dtype_bytes,
            kv_in_eight_bits: false,
            vision: VisionShape::named(name, hidden),
        };
        let packed = shape.experts.filter(|_| EXPERTS_IN_MXFP4.contains(&name));
        let packed = packed.map_or(0, |experts| experts.routed_numbers(hidden)) as u64;
        shape.weight_bytes = (shape.all_parameters() - packed) * dtype_bytes as u64 + packed / 32 * 17;
        Some(shape)
    }

    /// The names that [`named`](Self::named) knows.
    pub fn names() -> Vec<&'static str> {
        NAMED.iter().map(|(name, ..)| *name).collect()
    }

    /// What methods read of it.
    pub fn facts(&self) -> ModelFacts {
        let windowed = self.windows.map_or(LayerSet::EMPTY, |windows| windows.layers);
        ModelFacts { layers: self.layers, kv_heads: self.kv_heads, windowed }
    }

    /// Numbers in the queries of one row.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Numbers in the keys, or in the values, of one row.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Width of the MLP in which a row meets as many matrix numbers as in a layer on average.
    pub fn mlp_width(&self) -> usize {
        self.experts.map_or(self.intermediate, |experts| experts.mean_width(self.layers, self.intermediate))
    }

    /// Numbers in the matrices that a row meets in one layer, on average.
    pub fn layer_matrix_parameters(&self) -> u64 {
        let attention = 2 * self.hidden * (self.query_width() + self.kv_width());
        (attention + 3 * self.hidden * self.mlp_width()) as u64
    }

    /// Numbers in the matrices that a product of `rows` rows reads in one layer, on average: of
    /// experts those that some row passes, if rows pass each as often.
    pub fn layer_numbers_read(&self, rows: usize) -> f64 {
        let further = self.experts.map_or(0.0, |experts| {
            let further =
                (experts.met_by(rows.max(1)) - experts.active as f64) * (experts.width * experts.layers) as f64;
            3.0 * self.hidden as f64 * further / self.layers as f64
        });
        self.layer_matrix_parameters() as f64 + further
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
        2.0 * (self.hidden * (self.query_width() + 3 * self.mlp_width())) as f64
    }

    /// Numbers that a row reads and writes in one layer in addition to its products and its
    /// attention: two norms (in and out), two sums (two in, one out), the rotation of query and key
    /// (in and out), the gate's activation (two in, one out); for each of its experts a copy of the
    /// row, and a sum.
    pub fn layer_elementwise(&self) -> f64 {
        let moved = self.experts.map_or(0, |experts| 5 * self.hidden * experts.active * experts.layers / self.layers);
        (10 * self.hidden + 2 * (self.query_width() + self.kv_width()) + 3 * self.mlp_width() + moved) as f64
    }

    /// FLOPs of one row's logits.
    pub fn logits_flops(&self) -> f64 {
        2.0 * (self.vocab * self.hidden) as f64
    }

    /// Numbers in the model: matrices, norms and embeddings; biases and the norms of heads left
    /// out.
    pub fn parameters(&self) -> u64 {
        let attention = self.layers * 2 * self.hidden * (self.query_width() + self.kv_width());
        let mlps = match self.experts {
            Some(experts) => experts.numbers(self.layers, self.intermediate, self.hidden),
            None => self.layers * 3 * self.hidden * self.intermediate,
        };
        (attention + mlps + self.other_numbers()) as u64
    }

    /// The same with the vision tower's.
    pub fn all_parameters(&self) -> u64 {
        self.parameters() + self.vision.map_or(0, |vision| vision.parameters() as u64)
    }

    /// Those of the decoder that a row meets.
    pub fn active_parameters(&self) -> u64 {
        self.layers as u64 * self.layer_matrix_parameters() + self.other_numbers() as u64
    }

    /// Bytes that take as long to read as `numbers` numbers of its matrices. Packed ones are fewer
    /// bytes, but a CPU unpacks them no faster than it reads 16-bit numbers.
    pub fn read_bytes(&self, numbers: f64) -> f64 {
        const UNPACKED: f64 = 2.0;
        let plain = self.dtype_bytes as f64;
        let is_packed = (self.weight_bytes as f64) < 0.9 * self.parameters() as f64 * plain;
        numbers * if is_packed { plain.min(UNPACKED) } else { plain }
    }

    /// The numbers of parameters and the bytes of weights, in words.
    pub fn in_words(&self) -> String {
        let billions = |numbers: u64| format!("{:.1} B", numbers as f64 / 1e9);
        let active = match self.experts {
            Some(_) => format!(", of which a token meets {}", billions(self.active_parameters())),
            None => String::new(),
        };
        let weights = self.weight_bytes as f64 / 1e9;
        let tower = match self.vision {
            Some(vision) => format!(", {} of them of its vision tower", billions(vision.parameters() as u64)),
            None => String::new(),
        };
        format!("{} parameters{active}{tower}, {weights:.1} GB of weights a rank", billions(self.all_parameters()))
    }

    /// Norms and embeddings.
    fn other_numbers(&self) -> usize {
        (2 * self.layers + 1) * self.hidden + if self.tied_embeddings { 1 } else { 2 } * self.vocab * self.hidden
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
        match self.kv_in_eight_bits {
            true => (2 * self.kv_heads * (self.head_dim + 1)) as u64,
            false => self.read_layer_kv_bytes(),
        }
    }

    /// The same as another program reads them, never in 8 bits.
    pub fn read_layer_kv_bytes(&self) -> u64 {
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
        let keys = before + (rows + 1.0) / 2.0;
        rows * self.row_flops() + self.pair_flops() * rows * keys * self.share_of_many_rows(keys)
    }

    /// The share of pairs of a row and a key that windows leave, the mean over layers, if a row
    /// sees `keys` keys where there is no window.
    pub fn share_of_row(&self, keys: f64) -> f64 {
        self.share(|window| (window / keys).min(1.0))
    }

    /// The same of rows that see ever more keys, from none to twice `keys`: those of a prefill.
    pub fn share_of_many_rows(&self, keys: f64) -> f64 {
        self.share(|window| if window < 2.0 * keys { (window - window * window / (4.0 * keys)) / keys } else { 1.0 })
    }

    fn share(&self, within: impl Fn(f64) -> f64) -> f64 {
        let Some(WindowShape { tokens, layers }) = self.windows else { return 1.0 };
        let windowed = layers.len() as f64 / self.layers.max(1) as f64;
        1.0 - windowed + windowed * within(tokens as f64)
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
        experts: None,
        queries_grow: false,
        windows: None,
        vocab: 151_936,
        tied_embeddings: false,
        max_positions: 40_960,
        weight_bytes: 29_536_614_400,
        dtype_bytes: 2,
        kv_in_eight_bits: false,
        vision: None,
    };

    pub(crate) const DEMO: ModelShape = ModelShape {
        layers: 5,
        hidden: 128,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        intermediate: 256,
        experts: None,
        queries_grow: false,
        windows: None,
        vocab: 378,
        tied_embeddings: false,
        max_positions: 4096,
        weight_bytes: 3_341_824,
        dtype_bytes: 4,
        kv_in_eight_bits: false,
        vision: None,
    };

    /// The published number of 8B's parameters, and towers that take the decoder's width.
    #[test]
    fn shapes_that_read_pictures_have_their_towers() {
        let named = |name: &str| ModelShape::named(name).expect(name);
        let all = named("qwen3-vl-8b").all_parameters() as f64;
        assert!((all / 8.77e9 - 1.0).abs() < 0.005, "{all:e}");
        let names = ["qwen2.5-vl-7b", "qwen3-vl-2b", "qwen3-vl-4b", "qwen3-vl-8b"];
        for (name, billions) in names.into_iter().zip([8.3, 2.1, 4.4, 8.77]) {
            let shape = named(name);
            let tower = shape.vision.expect(name);
            assert_eq!((tower.out, shape.weight_bytes), (shape.hidden, 2 * shape.all_parameters()), "{name}");
            let all = shape.all_parameters() as f64 / 1e9;
            assert!((all / billions - 1.0).abs() < 0.03, "{name}: {all} B");
        }
        assert!(ModelShape::names().into_iter().all(|name| names.contains(&name) == named(name).vision.is_some()));
    }

    /// examples/models/dummy-25m.
    pub(crate) const DUMMY_25M: ModelShape = ModelShape {
        layers: 8,
        hidden: 512,
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
        intermediate: 1408,
        experts: None,
        queries_grow: false,
        windows: None,
        vocab: 4096,
        tied_embeddings: true,
        max_positions: 131_072,
        weight_bytes: 98_600_960,
        dtype_bytes: 4,
        kv_in_eight_bits: false,
        vision: None,
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
        let words = ModelShape::named("qwen3-30b-a3b").unwrap().in_words();
        assert_eq!(words, "30.5 B parameters, of which a token meets 3.4 B, 61.1 GB of weights a rank");
        // In billions: all, and those that a row meets, embeddings among them.
        for (name, all, active) in [
            ("qwen3-30b-a3b", 30.53, 3.35),
            ("qwen3-235b-a22b", 235.09, 22.19),
            ("glm-4.5", 352.8, 33.6),
            ("glm-4.5-air", 106.85, 13.42),
            ("llama-3.3-70b", 70.55, 70.55),
            ("gemma-3-27b", 27.01, 27.01),
            ("gpt-oss-20b", 20.91, 4.19),
            ("gpt-oss-120b", 116.83, 5.71),
        ] {
            let shape = ModelShape::named(name).unwrap();
            let found = [shape.parameters(), shape.active_parameters()].map(|numbers| numbers as f64 / 1e9);
            assert!(
                (found[0] / all - 1.0).abs() < 0.002 && (found[1] / active - 1.0).abs() < 0.01,
                "{name}: {found:?}"
            );
        }
        // The published files have 13.8 and 65.2 GB.
        let gigabytes = |name: &str| ModelShape::named(name).unwrap().weight_bytes as f64 / 1e9;
        assert!((gigabytes("gpt-oss-20b") - 13.8).abs() < 0.1 && (gigabytes("gpt-oss-120b") - 65.2).abs() < 0.2);
        let layers = |name: &str| ModelShape::named(name).unwrap().windows.unwrap().layers.len();
        assert_eq!(["gemma-3-27b", "gpt-oss-20b", "gpt-oss-120b"].map(layers), [52, 12, 18]);
        assert!(ModelShape::names().iter().all(|name| ModelShape::named(name).is_some()));
    }

    #[test]
    fn costs_follow_from_the_shape() {
        assert_eq!(QWEN3_14B.kv_bytes(), 40 * 4096);
        // Two FLOPs a matrix number, embeddings not counted.
        let matrices = QWEN3_14B.parameters() as f64 - 2.0 * 151_936.0 * 5120.0;
        assert!((QWEN3_14B.row_flops() / (2.0 * matrices) - 1.0).abs() < 1e-3);
        assert_eq!(QWEN3_14B.layer_numbers_read(9), QWEN3_14B.layer_matrix_parameters() as f64, "no experts");
        let two_halves = DEMO.prefill_flops(10, 0) + DEMO.prefill_flops(10, 10);
        assert!((DEMO.prefill_flops(20, 0) / two_halves - 1.0).abs() < 1e-12);
    }

    /// A window of 8 keys in half of the layers, and 16 rows.
    #[test]
    fn windows_leave_the_pairs_that_they_let_through() {
        let shape = ModelShape {
            windows: Some(WindowShape { tokens: 8, layers: [0, 2].into_iter().collect() }),
            layers: 4,
            ..DEMO
        };
        let (all, seen): (usize, usize) =
            (1..=16usize).fold((0, 0), |(all, seen), keys| (all + keys, seen + keys.min(8)));
        let share = (all + seen) as f64 / (2 * all) as f64;
        assert!((shape.share_of_many_rows(8.5) / share - 1.0).abs() < 0.02, "{share}");
        assert_eq!((shape.share_of_row(16.0), shape.share_of_row(8.0), shape.share_of_row(0.0)), (0.75, 1.0, 1.0));
        assert_eq!((DEMO.share_of_row(16.0), DEMO.share_of_many_rows(16.0)), (1.0, 1.0));
    }

    /// A row meets 8 of 128 experts in each of 48 layers, many rows meet all of them.
    #[test]
    fn experts_are_read_by_those_that_meet_them() {
        let shape = ModelShape::named("qwen3-30b-a3b").unwrap();
        assert_eq!(shape.layer_numbers_read(1), shape.layer_matrix_parameters() as f64);
        let kept = shape.parameters() - shape.other_numbers() as u64;
        // Of the router's numbers a third are counted as those of a wider MLP, rounded down.
        assert!((48.0 * shape.layer_numbers_read(4096) / kept as f64 - 1.0).abs() < 1e-3);
        let dense = ModelShape { experts: None, intermediate: shape.mlp_width(), ..shape };
        assert_eq!(shape.layer_elementwise() - dense.layer_elementwise(), (5 * 2048 * 8) as f64);
    }
}
