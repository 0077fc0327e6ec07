//! Prompts with pictures against logits that transformers recorded (`tests/golden`): positions,
//! layers, logits and answers; what a pass may do with rows of pictures.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use tributary_kernels::{Kernels, Keys, Partial, Positions, Rope};
use tributary_protocol::place::{Place, PlaceNumbers, Stretch, places};

use super::with_pictures;
use crate::error::Result;
use crate::picture_kit::{Causal, RECORDED, error, integers, json, model, pictures, recorded, vision};
use crate::visual::{PictureRow, Visual};
use crate::{Attention, Features, LayerAttention, Model, Progress, Qkv, Rows};

/// Bound of the error of logits, in units of the largest.
const TOLERANCE: f64 = 1e-4;

/// The recorded prompts.
const PROMPTS: [&str; 7] = ["text", "one", "several", "first", "last", "pages", "tiles"];

/// A recorded prompt of a model.
struct Prompt {
    ids: Vec<u32>,
    /// Its parts.
    stretches: Vec<Stretch>,
    /// Rows of pictures.
    rows: Vec<PictureRow>,
    features: Features,
}

impl Prompt {
    fn new(name: &str, prompt: &str, of: &dyn Model) -> Self {
        let (config, recorded) = (vision(name), recorded(name, prompt));
        let ids = integers(&recorded["input_ids"]);
        let names = json(name, "cases.json")["cases"][prompt]["images"].clone();
        let names: Vec<&str> =
            names.as_array().expect("names").iter().map(|name| name.as_str().expect("a name")).collect();
        let tower = of.tower().expect("a tower");
        let pictures = match names.is_empty() {
            true => crate::Pictures {
                patches: Tensor::zeros((0, config.patch_numbers()), DType::F32, &Device::Cpu).expect("none"),
                grids: Vec::new(),
            },
            false => pictures(name, &names),
        };
        let features = tower.features(&pictures, &Progress::default()).expect("features");
        let is_picture = |id: &u32| *id == config.marks.picture;
        let (mut stretches, mut grids, mut at) = (Vec::new(), pictures.grids.iter(), 0);
        while at < ids.len() {
            let tokens = ids[at..].iter().take_while(|id| !is_picture(id)).count();
            stretches.push(Stretch::Tokens(tokens as u32));
            at += tokens;
            if at < ids.len() {
                let (grid, merge) = (grids.next().expect("a grid a picture"), config.merge as u32);
                let picture = Stretch::Picture { rows: grid.rows / merge, columns: grid.columns / merge };
                at += picture.rows();
                stretches.push(picture);
            }
        }
        assert!(grids.next().is_none() && at == ids.len(), "{name}: {prompt}");
        let marks = (0..ids.len()).filter(|&place| is_picture(&ids[place]));
        let row = |(feature, place): (usize, usize)| PictureRow { place: place as u32, feature: feature as u32 };
        let rows: Vec<PictureRow> = marks.enumerate().map(row).collect();
        Self { ids, stretches, rows, features }
    }

    /// Rows of the prompt and of the tokens that follow it.
    fn rows(&self, of: &dyn Model, generated: &[u32]) -> Rows {
        let ids = [&self.ids[..], generated].concat();
        with_pictures(of, of.embed(&ids).expect("rows"), &self.features, &self.rows).expect("rows")
    }

    /// Every row sees those before it; the rows stand at `places`.
    fn attention(of: &dyn Model, places: &[Place]) -> Causal {
        let layers = of.layer_attention(places.len()).expect("tables");
        let mut numbers = PlaceNumbers::after(layers[0].rope.plain_positions() as u32);
        let rope: Vec<u32> = places.iter().map(|&place| numbers.number(place)).collect();
        let layers = LayerAttention::composed(&layers, numbers.composed()).expect("tables");
        let order: Vec<u32> = (0..places.len() as u32).collect();
        Causal { layers, at: Positions::in_sequence(rope, order), progress: Progress::default() }
    }

    /// Places of the prompt's rows and of `generated` more.
    fn places(&self, generated: u32) -> Vec<Place> {
        places(&[&self.stretches[..], &[Stretch::Tokens(generated)]].concat(), 0).0
    }

    /// Logits of all rows.
    fn logits(&self, of: &dyn Model, generated: &[u32]) -> Tensor {
        self.logits_by(of, generated, Self::attention(of, &self.places(generated.len() as u32)))
    }

    fn logits_by(&self, of: &dyn Model, generated: &[u32], mut attention: Causal) -> Tensor {
        let layers = of.config().layers;
        let rows = of.layers(0..layers, self.rows(of, generated), &mut attention).expect("a pass");
        of.logits(&rows).expect("logits")
    }

    /// The error if pairs turn by the axes of the other family.
    fn error_with_axes(&self, of: &dyn Model, expected: &Tensor) -> f64 {
        let mut attention = Self::attention(of, &self.places(0));
        let other: &[u8] = match of.config().architecture.starts_with("Qwen3") {
            true => &[0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2],
            false => &[0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 0, 0],
        };
        let places: Vec<[u32; 3]> = self.places(0).into_iter().map(Place::axes).collect();
        let plain = &of.layer_attention(places.len()).expect("tables")[0];
        let rope = plain.rope.clone().with_axes(other.into()).and_then(|rope| rope.composed(&places)).expect("tables");
        attention.layers =
            attention.layers.iter().map(|layer| LayerAttention { rope: rope.clone(), ..layer.clone() }).collect();
        let order: Vec<u32> = (0..places.len() as u32).collect();
        let rows: Vec<u32> = order.iter().map(|row| plain.rope.plain_positions() as u32 + row).collect();
        attention.at = Positions::in_sequence(rows, order);
        error(&self.logits_by(of, &[], attention), expected)
    }
}

#[test]
fn positions_of_all_prompts() {
    for name in RECORDED {
        let model = model(name);
        for prompt in PROMPTS {
            let recorded = recorded(name, prompt);
            let given = Prompt::new(name, prompt, &*model);
            let (found, end) = places(&given.stretches, 0);
            let axis = |axis: usize| found.iter().map(move |place| place.axes()[axis]);
            let found: Vec<u32> = (0..3).flat_map(axis).collect();
            assert_eq!(found, integers(&recorded["position_ids"]), "{name}: {prompt}");
            let delta = json(name, "cases.json")["cases"][prompt]["position_delta"].as_i64();
            assert_eq!(Some(i64::from(end) - given.ids.len() as i64), delta, "{name}: {prompt}");
        }
    }
}

#[test]
fn logits_of_all_prompts() {
    for name in RECORDED {
        let model = model(name);
        for prompt in PROMPTS {
            let found = Prompt::new(name, prompt, &*model).logits(&*model, &[]);
            let error = error(&found, &recorded(name, prompt)["logits"]);
            println!("{name}: {prompt}: {error:.1e}");
            assert!(error < TOLERANCE, "{name}: {prompt}: {error:e}");
        }
    }
}

/// A layer in parts of its rows, and a last layer of a few rows, keep the levels of their rows.
#[test]
fn logits_of_passes_in_parts() {
    for name in RECORDED {
        let model = model(name);
        for prompt in ["several", "last"] {
            let (given, expected) = (Prompt::new(name, prompt, &*model), recorded(name, prompt)["logits"].clone());
            let mut attention = Prompt::attention(&*model, &given.places(0));
            attention.progress = Progress::default().sliced(3);
            let error_in_parts = error(&given.logits_by(&*model, &[], attention), &expected);
            println!("{name}: {prompt}: in parts: {error_in_parts:.1e}");
            assert!(error_in_parts < TOLERANCE, "{name}: {prompt}: in parts: {error_in_parts:e}");
            let mut attention = LastRows { causal: Prompt::attention(&*model, &given.places(0)), asked: 5 };
            let rows = model.prompt(given.rows(&*model, &[]), &mut attention).expect("a prompt");
            let last = expected.narrow(0, expected.dims()[0] - 5, 5).expect("rows");
            let error = error(&model.logits(&rows).expect("logits"), &last);
            println!("{name}: {prompt}: the last rows: {error:.1e}");
            assert!(error < TOLERANCE, "{name}: {prompt}: the last rows: {error:e}");
        }
    }
}

/// Asks for the last rows of the last layer alone.
struct LastRows {
    causal: Causal,
    asked: usize,
}

impl Attention for LastRows {
    type Error = crate::Error;

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let (all, asking) = (self.causal.at.clone(), qkv.q.dim(0)?);
        let last: Vec<u32> = ((all.len() - asking) as u32..all.len() as u32).collect();
        let keys = [Keys { k: qkv.k, v: qkv.v, at: all.clone() }];
        self.causal.layers[layer].attend(Kernels::Auto, &qkv.q, &all.select(&last), &keys)
    }

    fn progress(&self) -> &Progress {
        &self.causal.progress
    }

    fn last_layer(&mut self, _rows: usize) -> usize {
        self.asked
    }
}

#[test]
fn answers_of_all_prompts() {
    for name in RECORDED {
        let model = model(name);
        for prompt in PROMPTS {
            let expected = integers(&recorded(name, prompt)["generated"]);
            let given = Prompt::new(name, prompt, &*model);
            let mut generated = Vec::new();
            while generated.len() < expected.len() {
                let logits = given.logits(&*model, &generated);
                let last = logits.get(logits.dims()[0] - 1).and_then(|row| row.argmax(0)?.to_scalar::<u32>());
                generated.push(last.expect("a token"));
            }
            assert_eq!(generated, expected, "{name}: {prompt}");
        }
    }
}

/// Recorded is the output of each layer before its level is added.
#[test]
fn layers_of_a_prompt() {
    for name in RECORDED {
        let (model, recorded) = (model(name), recorded(name, "one"));
        let given = Prompt::new(name, "one", &*model);
        let mut attention = Prompt::attention(&*model, &given.places(0));
        let mut rows = given.rows(&*model, &[]);
        for layer in 0..model.config().layers {
            rows = model.layer(layer, rows, &mut attention).expect("a layer");
            let before = recorded[&format!("layer.{layer}")].clone();
            let expected = Visual::new(given.rows.clone(), given.features.levels.clone()).add(layer, before.clone());
            let error = error(&rows.hidden, &expected.expect("a sum"));
            println!("{name}: layer {layer}: {error:.1e}");
            assert!(error < TOLERANCE, "{name}: layer {layer}: {error:e}");
        }
    }
}

/// A pass that forgets the levels, or gives rows of pictures one position, must show.
#[test]
fn passes_that_differ_in_one_thing_show() {
    for name in RECORDED {
        let model = model(name);
        let expected = recorded(name, "one")["logits"].clone();
        let mut given = Prompt::new(name, "one", &*model);
        let levels = std::mem::take(&mut given.features.levels);
        if !levels.is_empty() {
            let error = error(&given.logits(&*model, &[]), &expected);
            println!("{name}: without levels: {error:.1e}");
            assert!(error > 100.0 * TOLERANCE, "{name}: without levels: {error:e}");
        }
        given.features.levels = levels;
        let error_of_axes = given.error_with_axes(&*model, &expected);
        println!("{name}: the axes of the other family: {error_of_axes:.1e}");
        assert!(error_of_axes > 100.0 * TOLERANCE, "{name}: the axes of the other family: {error_of_axes:e}");
        given.stretches = vec![Stretch::Tokens(given.ids.len() as u32)];
        let error = error(&given.logits(&*model, &[]), &expected);
        println!("{name}: one position a row: {error:.1e}");
        assert!(error > 100.0 * TOLERANCE, "{name}: one position a row: {error:e}");
    }
}

/// Rows that are selected, cut out or computed in slices get the levels of their own features.
#[test]
fn levels_stay_with_their_rows() {
    let model = model("qwen3vl-tiny");
    let given = Prompt::new("qwen3vl-tiny", "last", &*model);
    let rows = given.rows(&*model, &[]);
    // The second half of a layer, whose attention is the rows' own values.
    let finished = |rows: &Rows| -> Tensor {
        let qkv = model.qkv(1, rows).expect("products");
        let own = qkv.v.unsqueeze(2).and_then(|v| v.broadcast_as((rows.len(), 2, 2, 32))?.reshape((rows.len(), 4, 32)));
        let attended = Partial::of_output(own.expect("values")).expect("an output");
        model.finish(1, rows.clone(), attended).expect("a layer").hidden
    };
    let whole = finished(&rows);
    assert!(error(&finished(&Rows::new(rows.hidden.clone())), &whole) > 1e-2, "levels matter here");
    let count = rows.len() as u32;
    let pick =
        |places: &[u32]| whole.index_select(&Tensor::new(places, &Device::Cpu).expect("a list"), 0).expect("rows");
    for places in [vec![20, 3, 20, 11, 27], vec![0, 1], (10..count).rev().collect(), vec![15]] {
        let found = finished(&rows.select(&places).expect("rows"));
        assert!(error(&found, &pick(&places)) < 1e-6, "{places:?}");
        let twice = rows.select(&(5..count).collect::<Vec<_>>()).and_then(|rows| {
            rows.select(&places.iter().filter(|&&place| place >= 5).map(|place| place - 5).collect::<Vec<_>>())
        });
        let kept: Vec<u32> = places.iter().copied().filter(|&place| place >= 5).collect();
        if !kept.is_empty() {
            assert!(error(&finished(&twice.expect("rows")), &pick(&kept)) < 1e-6, "{kept:?} of some");
        }
    }
    for (from, length) in [(0, 12), (9, 7), (14, 1), (20, 8), (27, 1)] {
        let places: Vec<u32> = (from..from + length).collect();
        let run = rows.run(from as usize, length as usize).expect("rows");
        assert!(error(&finished(&run), &pick(&places)) < 1e-6, "{length} from {from} on");
    }
    let last = rows.last(4).expect("rows");
    assert!(error(&finished(&last), &pick(&[count - 4, count - 3, count - 2, count - 1])) < 1e-6);
}

#[test]
fn rows_of_pictures_that_do_not_exist_are_refused() {
    let model = model("qwen3vl-tiny");
    let zeros = |width: usize| Tensor::zeros((2, width), DType::F32, &Device::Cpu).expect("zeros");
    let tokens = || model.embed(&[1, 2, 3]).expect("rows");
    let refused = |width: usize, rows: &[(u32, u32)]| -> String {
        let rows: Vec<PictureRow> = rows.iter().map(|&(place, feature)| PictureRow { place, feature }).collect();
        let features = Features { features: zeros(width), levels: Vec::new() };
        let error = with_pictures(&*model, tokens(), &features, &rows).expect_err("no such row");
        assert_eq!(error.exit_code(), 64);
        error.to_string()
    };
    assert!(refused(64, &[(3, 0)]).contains("row 3 of 3"));
    assert!(refused(64, &[(0, 0), (1, 2)]).contains("feature 2 of 2"));
    assert!(refused(64, &[(1, 0), (0, 1)]).contains("do not rise"));
    assert!(refused(63, &[(0, 0)]).contains("width 63; the model's rows have 64"));
    let plain = with_pictures(&*model, tokens(), &Features { features: zeros(64), levels: vec![] }, &[]);
    assert_eq!(error(&plain.expect("rows").hidden, &tokens().hidden), 0.0);
}

/// Text has the rotations of a model of text: bit for bit those of plain tables.
#[test]
fn a_prompt_of_text_needs_no_places() {
    let model = model("qwen3vl-tiny");
    let layers: Arc<[LayerAttention]> = model.layer_attention(100).expect("tables");
    let rope: &Rope = &layers[0].rope;
    assert_eq!(rope.positions(), rope.plain_positions());
    let composed = LayerAttention::composed(&layers, &[[9; 3]]).expect("tables");
    assert_eq!(composed.len(), model.config().layers);
    assert_eq!(composed[5].rope.positions(), rope.positions() + 1);
}
