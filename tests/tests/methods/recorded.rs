//! What was recorded of two tiny models that read pictures, and plans of the recorded requests.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use tributary_model::{LoadFormat, Model, load};
use tributary_protocol::tile::{Tile, TileOrder, areas};
use tributary_protocol::{Exchange, Picture, Pixels, Plan, Prefill};
use tributary_tests::root;
use tributary_tests::samples::Case;

/// Folders of models with records.
pub const RECORDED: [&str; 2] = ["qwen3vl-tiny", "qwen25vl-tiny"];
/// All exchanges.
pub const EXCHANGES: [Exchange; 3] = [Exchange::PassQ, Exchange::Replicate, Exchange::Selected];

/// Recorded tensors of a model that reads pictures, and the model.
#[derive(Clone)]
pub struct Recorded {
    pub model: Arc<dyn Model>,
    pub tensors: HashMap<String, Tensor>,
    pub prefix: Vec<u32>,
    pub chunks: Vec<(Vec<u32>, Vec<Picture>)>,
    pub query: Vec<u32>,
}

impl Recorded {
    /// A request with three pictures among texts: prefix, five chunks and query.
    pub fn new(name: &str) -> Self {
        let (model, tensors, images) = read(name, "selective.safetensors");
        let lengths = whole(&tensors["chunk_lengths"]);
        let ids = whole(&tensors["ids"]);
        let context: u32 = lengths.iter().sum();
        // The selective file has prefix, chunks and query one after the other; the query has what
        // the recorded counts leave.
        let prefix = 25;
        let (mut next, mut chunks) = (prefix, Vec::new());
        let mut left = ["a", "b", "d"].into_iter().map(|name| picture(&images[&format!("{name}.resized")], &*model));
        let mark = model.config().vision.as_ref().expect("a tower").marks.picture;
        for length in lengths {
            let ids = ids[next..next + length as usize].to_vec();
            let mut pictures = Vec::new();
            if let Some(first) = ids.iter().position(|&id| id == mark) {
                let picture = left.next().expect("a picture for each run of marks");
                pictures.push(Picture { first: first as u32, ..picture });
            }
            next += length as usize;
            chunks.push((ids, pictures));
        }
        assert_eq!(next, prefix + context as usize);
        let (prefix, query) = (ids[..prefix].to_vec(), ids[next..].to_vec());
        Self { model, tensors, prefix, chunks, query }
    }

    /// A request with one picture in 2 x 2 tiles, each a chunk.
    pub fn tiles(name: &str, order: TileOrder) -> Self {
        let (model, tensors, images) = read(name, "selective-tiles.safetensors");
        let (ids, lengths) = (whole(&tensors["ids"]), whole(&tensors["chunk_lengths"]));
        let mark = model.config().vision.as_ref().expect("a tower").marks.picture;
        let prefix = ids.iter().position(|&id| id == mark).expect("a picture");
        let picture = picture(&images["c.resized"], &*model);
        let (mut chunks, mut next) = (Vec::new(), prefix);
        for (number, length) in (0..).zip(lengths) {
            let tile = Tile { grid: 2, number, before: 0, order };
            chunks.push((vec![mark; length as usize], vec![Picture { tile: Some(tile), ..picture.clone() }]));
            next += length as usize;
        }
        let numbers: Vec<u32> = chunks.iter().flat_map(|(_, pictures)| pictures[0].numbers()).collect();
        assert_eq!(numbers, whole(&tensors["image_places"]), "rows of the picture");
        let (prefix, query) = (ids[..prefix].to_vec(), ids[next..].to_vec());
        Self { model, tensors, prefix, chunks, query }
    }

    /// The same with pictures in `grid` x `grid` tiles, each a chunk; texts around a picture are in
    /// the chunks of its first and its last tile.
    pub fn cut(&self, grid: u8) -> Self {
        let mut chunks = Vec::new();
        for (ids, pictures) in &self.chunks {
            let Some(picture) = pictures.first() else {
                chunks.push((ids.clone(), Vec::new()));
                continue;
            };
            let tiles = areas(picture.lines, picture.columns, grid).len();
            for number in 0..tiles {
                let tile = Tile { grid, number: number as u8, before: picture.first, order: TileOrder::Raster };
                let mut of_chunk = if number == 0 { ids[..picture.first as usize].to_vec() } else { Vec::new() };
                let placed = Picture { first: of_chunk.len() as u32, tile: Some(tile), ..picture.clone() };
                of_chunk.resize(placed.range().end, ids[picture.first as usize]);
                of_chunk.extend(if number + 1 == tiles { &ids[picture.range().end..] } else { &[] });
                chunks.push((of_chunk, vec![placed]));
            }
        }
        Self { chunks, ..self.clone() }
    }

    pub fn case<'a>(&self, lengths: &'a [usize], world: usize, exchange: Exchange) -> Case<'a> {
        let (prefix, query) = (self.prefix.len(), self.query.len());
        Case { prefix, lead: &[], chunks: lengths, query, world, exchange, ratio: 0.15 }
    }

    pub fn lengths(&self) -> Vec<usize> {
        self.chunks.iter().map(|(ids, _)| ids.len()).collect()
    }

    /// A plan with the recorded ids and pictures in the place of drawn ids.
    pub fn told(&self, mut plan: Plan) -> Plan {
        (plan.prefix, plan.query) = (self.prefix.clone(), self.query.clone());
        for (chunk, (ids, pictures)) in plan.chunks.iter_mut().zip(&self.chunks) {
            (chunk.ids, chunk.pictures) = (ids.clone(), pictures.clone());
        }
        plan
    }

    pub fn plan(&self, spec: &str, world: usize, exchange: Exchange) -> Plan {
        let lengths = self.lengths();
        self.told(self.case(&lengths, world, exchange).planned(spec, &*self.model).expect("a plan"))
    }

    pub fn recorded(&self, name: &str) -> Vec<f32> {
        self.tensors[name].to_vec1().expect("numbers")
    }
}

/// A model, records of it, and resized pictures.
fn read(name: &str, records: &str) -> (Arc<dyn Model>, HashMap<String, Tensor>, HashMap<String, Tensor>) {
    let folder = root().join("tests/golden").join(name);
    let model = load(&folder, LoadFormat::Safetensors, DType::F32, &Device::Cpu).expect("the model loads");
    let read = |file: &str| candle_core::safetensors::load(folder.join(file), &Device::Cpu).expect("recorded");
    (model, read(records), read("images.safetensors"))
}

/// Whole numbers of a record.
pub fn whole(tensor: &Tensor) -> Vec<u32> {
    tensor.to_dtype(DType::U32).and_then(|list| list.to_vec1()).expect("numbers")
}

/// A picture of these pixels `[height, width, 3]`.
fn picture(pixels: &Tensor, model: &dyn Model) -> Picture {
    let (height, width, _) = pixels.dims3().expect("pixels");
    let vision = model.config().vision.as_ref().expect("a tower");
    let side = vision.patch * vision.merge;
    let bytes: Vec<u8> = pixels.flatten_all().and_then(|pixels| pixels.to_vec1()).expect("bytes");
    let mut hash = [0; 32];
    bytes.iter().enumerate().for_each(|(index, byte)| hash[index % 32] = byte.wrapping_add(hash[index % 32] << 1));
    let (lines, columns) = ((height / side) as u32, (width / side) as u32);
    Picture { first: 0, lines, columns, hash, tile: None, pixels: Pixels(bytes.into()) }
}

/// Whether a method reads pictures, as the planner says it.
pub fn reads_pictures(plan: &Plan) -> bool {
    let is_text_alone = plan.method.reuses_prefix() || !plan.auxiliary.is_empty();
    let is_in_blocks = matches!(plan.method.prefill, Prefill::Anchored { .. });
    !is_text_alone && plan.chunks.iter().all(|chunk| chunk.around.is_none()) && !is_in_blocks
}
