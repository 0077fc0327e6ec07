//! One decoder for Llama, Mistral, Qwen, GLM, Gemma and gpt-oss: the families differ in switches of
//! the [`Config`], not in code.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Tensor};
use tributary_kernels::{
    Partial, Rope, RopeConfig, RopeScaling, Weight, add, add_linear, cast, cuda, gated, gated_linear, join, linear,
    linear_f32, linear_onto, rms_norm, scale, with_sinks,
};

use super::expert_layer::ExpertLayer;
use super::low_rank::{Adapted, Added, Linear};
use super::tower::Tower;
use super::weights::Weights;
use super::{Config, LayerAttention, Model, OutputNorms, Qkv, Rows, families};
use crate::error::{Error, Result};

/// Rows that pass through a layer's products and its MLP at a time on a CPU, so that their
/// activations take little memory.
const SLICE_ROWS: usize = 2048;

/// The same on a device, whose matrix units need larger products.
const DEVICE_SLICE_ROWS: usize = 8192;

/// Step in positions by which rotary tables grow. They are kept for the next request.
const ROPE_STEP: usize = 4096;

/// Source of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadFormat {
    /// The folder's safetensors files.
    Safetensors,
    /// Random numbers from a seed; the folder needs only a config.json.
    Dummy {
        /// The seed.
        seed: u64,
    },
}

/// Loads the model of a Hugging Face folder onto a device, its weights in `dtype`.
///
/// # Errors
/// Returns an error if the folder is incomplete, damaged or not supported: see [`Error`].
pub fn load(folder: &Path, format: LoadFormat, dtype: DType, device: &Device) -> Result<Arc<dyn Model>> {
    let config = Config::read(folder)?;
    let mut weights = match format {
        LoadFormat::Safetensors => Weights::open(folder, dtype, device)?,
        LoadFormat::Dummy { seed } => Weights::dummy(seed, dtype, device),
    }
    .quantised_as(config.quantisation);
    if with_pictures(&config) {
        if config.vision.is_none() {
            tracing::warn!(model = config.architecture, "its text part is loaded; what reads pictures is not");
        }
        weights = weights.of_text_part()?;
    }
    let decoder = Decoder::new(config, &weights)?;
    weights.check_all_read(decoder.config.layers)?;
    if decoder.tower.is_some() {
        weights.check_tower_read()?;
    }
    Ok(Arc::new(decoder))
}

/// Whether it is a model of text and pictures.
fn with_pictures(config: &Config) -> bool {
    config.vision.is_some() || families::WITH_PICTURES.contains(&&*config.architecture)
}

struct Projection {
    weight: Weight, // [out, in]
    bias: Option<Tensor>,
}

impl Projection {
    fn new(weights: &Weights, name: &str, out: usize, input: usize, bias: bool) -> Result<Self> {
        let weight = weights.matrix(&format!("{name}.weight"), [out, input])?;
        let bias = if bias { Some(weights.get_f32(&format!("{name}.bias"), &[out])?) } else { None };
        Ok(Self { weight, bias })
    }

    /// The projection of `x`, with an adapter's product added.
    fn apply(&self, x: &Tensor, added: Option<Added<'_>>) -> Result<Tensor> {
        with(linear(x, &self.weight, self.bias.as_ref())?, x, added)
    }

    /// Adds the projection of `x` to the residual stream in place, and returns whether it did. It
    /// does so only on a GPU, and only without bias and norm.
    fn add_in_place(&self, residual: &Tensor, x: &Tensor, norm: Norm<'_>) -> Result<bool> {
        Ok(self.bias.is_none() && norm.weight.is_none() && add_linear(residual, x, &self.weight)?)
    }

    /// The residual stream with the projection of `x` added, normalised first if the family does
    /// so.
    fn add_to(&self, residual: &Tensor, x: &Tensor, added: Option<Added<'_>>, norm: Norm<'_>) -> Result<Tensor> {
        match norm.weight {
            None => with(linear_onto(residual, x, &self.weight, self.bias.as_ref())?, x, added),
            Some(_) => norm.add_to(residual, self.apply(x, added)?),
        }
    }
}

/// The norm after a projection, if the family has one.
#[derive(Clone, Copy)]
struct Norm<'a> {
    weight: Option<&'a Tensor>,
    eps: f64,
}

impl Norm<'_> {
    /// The residual stream with `x` added, normalised first if the family does so.
    fn add_to(&self, residual: &Tensor, x: Tensor) -> Result<Tensor> {
        let x = match self.weight {
            None => x,
            Some(weight) => rms_norm(&x, weight, self.eps)?,
        };
        Ok(add(residual, &x)?)
    }
}

/// A product with an adapter's product for the rows of `x` added; unchanged without an adapter.
fn with(product: Tensor, x: &Tensor, added: Option<Added<'_>>) -> Result<Tensor> {
    match added {
        None => Ok(product),
        Some(added) => added.onto(&product, x),
    }
}

struct Layer {
    input_norm: Tensor,
    q: Projection,
    k: Projection,
    v: Projection,
    q_norm: Option<Tensor>,
    k_norm: Option<Tensor>,
    sinks: Option<Arc<[f32]>>, // [heads]
    output: Projection,
    attention_norm: Option<Tensor>,
    mlp_norm: Tensor,
    mlp: Mlp,
    output_norm: Option<Tensor>,
}

/// The part of a layer after its attention.
enum Mlp {
    Dense { gate: Projection, up: Projection, down: Projection },
    Experts(ExpertLayer),
}

/// The decoder.
pub struct Decoder {
    config: Config,
    /// The dtype of weights and of the cache.
    dtype: DType,
    device: Device,
    /// The dtype of the residual stream and of everything computed from it: f32 on a CPU (f64 with
    /// weights in f64), the weights' on a device.
    activations: DType,
    slice_rows: usize,
    embedding: Weight, // [vocab, hidden]
    layers: Vec<Layer>,
    norm: Tensor,
    head: Weight,                  // [vocab, hidden]
    query_factors: Option<Tensor>, // [head_dim]
    /// The factor of the embedding's rows.
    embedding_factor: f32,
    /// Tables for the positions seen so far, shared by all ranks of a process: of layers without a
    /// window, and of those with one if theirs are others.
    ropes: Mutex<Vec<Rope>>,
    /// The vision tower, if the model reads pictures.
    tower: Option<Tower>,
}

impl Decoder {
    pub(super) fn new(config: Config, weights: &Weights) -> Result<Self> {
        let (vocab, hidden) = (config.vocab, config.hidden);
        let embedding = weights.matrix("model.embed_tokens.weight", [vocab, hidden])?;
        // Where a config of text and pictures calls them tied, a head that is there counts.
        let tied = config.tied_embeddings && !(with_pictures(&config) && weights.has("lm_head.weight"));
        let head = match tied {
            true => embedding.clone(),
            false => weights.matrix("lm_head.weight", [vocab, hidden])?,
        };
        let layers = (0..config.layers).map(|index| Layer::new(&config, weights, index)).collect::<Result<_>>()?;
        let norm = norm_weight(&config, weights, "model.norm.weight", hidden)?;
        let rope = |theta: f64, scaling: &RopeScaling| -> Result<Rope> {
            let Config { head_dim, rotary_dims, pairing, query_growth, .. } = config;
            let settings = RopeConfig { head_dim, rotary_dims, theta, scaling, pairing };
            let rope = Rope::new(&settings, config.max_positions.min(ROPE_STEP))?.growing(query_growth);
            match &config.rope_axes {
                Some(axes) => Ok(rope.with_axes(Arc::clone(axes))?),
                None => Ok(rope),
            }
        };
        let mut ropes = vec![rope(config.rope_theta, &config.rope_scaling)?];
        if let Some(theta) = config.window_rope_theta {
            ropes.push(rope(theta, &RopeScaling::None)?);
        }
        let attention_factor = ropes[0].attention_factor();
        let query_factors = query_factors(&config, attention_factor, &weights.device)?;
        let activations = weights.activations();
        let slice_rows = if weights.device.is_cpu() { SLICE_ROWS } else { DEVICE_SLICE_ROWS };
        let tower = config.vision.as_ref().map(|vision| Tower::new(vision, weights, slice_rows)).transpose()?;
        let (dtype, ropes) = (weights.dtype, Mutex::new(ropes));
        let embedding_factor = embedding_factor(&config, dtype)?;
        Ok(Self {
            config,
            dtype,
            device: weights.device.clone(),
            activations,
            slice_rows,
            embedding,
            layers,
            norm,
            head,
            query_factors,
            embedding_factor,
            ropes,
            tower,
        })
    }

    /// Queries `[rows, heads, head_dim]` of rows `x` after the layer's norm.
    fn query_of(&self, index: usize, x: &Tensor, adapted: Option<&Adapted>) -> Result<Tensor> {
        let (layer, Config { heads, head_dim, .. }) = (&self.layers[index], &self.config);
        let added = adapted.and_then(|adapted| adapted.at(index, Linear::Query));
        let q = layer.q.apply(x, added)?.reshape((x.dim(0)?, *heads, *head_dim))?;
        let q = self.normed(q, layer.q_norm.as_ref())?;
        match &self.query_factors {
            Some(factors) => Ok(q.to_dtype(DType::F32)?.broadcast_mul(factors)?.to_dtype(self.activations)?),
            None => Ok(q),
        }
    }

    /// Queries or keys with the family's norm over each head, if there is one.
    fn normed(&self, x: Tensor, weight: Option<&Tensor>) -> Result<Tensor> {
        match weight {
            Some(weight) => Ok(rms_norm(&x, weight, self.config.norm_eps)?),
            None => Ok(x),
        }
    }

    /// The residual stream `hidden` with the output of the MLP added. With `in_place` it may be
    /// overwritten; if the device can, it is, and nothing is returned.
    fn mlp(&self, index: usize, hidden: &Tensor, adapted: Option<&Adapted>, in_place: bool) -> Result<Option<Tensor>> {
        let (layer, eps) = (&self.layers[index], self.config.norm_eps);
        let added = |linear| adapted.and_then(|adapted| adapted.at(index, linear));
        let x = rms_norm(hidden, &layer.mlp_norm, eps)?;
        let norm = Norm { weight: layer.output_norm.as_ref(), eps };
        match &layer.mlp {
            Mlp::Dense { gate, up, down } => {
                let by = self.config.gate;
                let gated = match [added(Linear::Gate), added(Linear::Up)] {
                    [None, None] => {
                        let biases = [gate.bias.as_ref(), up.bias.as_ref()];
                        gated_linear(&x, [(&gate.weight).into(), (&up.weight).into()], biases, by)?
                    }
                    [of_gate, of_up] => gated(&gate.apply(&x, of_gate)?, &up.apply(&x, of_up)?, by)?,
                };
                if in_place && down.add_in_place(hidden, &gated, norm)? {
                    return Ok(None);
                }
                down.add_to(hidden, &gated, added(Linear::Down), norm).map(Some)
            }
            Mlp::Experts(experts) => norm.add_to(hidden, cast(&experts.apply(&x)?, hidden.dtype())?).map(Some),
        }
    }
}

/// A norm's weight in f32: what its input is multiplied by.
fn norm_weight(config: &Config, weights: &Weights, name: &str, dim: usize) -> Result<Tensor> {
    let weight = weights.get_f32(name, &[dim])?;
    match config.output_norms {
        // On the host: what is loaded once needs no kernel of a device. Drawn ones are near 1
        // already.
        Some(OutputNorms::Gemma) if !weights.are_drawn() => {
            Ok((cuda::download(&weight)? + 1.0)?.to_device(&weights.device)?)
        }
        _ => Ok(weight),
    }
}

/// The factor of the embedding's rows; √hidden is rounded to the model's dtype, as in Hugging
/// Face's Gemma.
fn embedding_factor(config: &Config, dtype: DType) -> Result<f32> {
    if !config.scaled_embedding {
        return Ok(1.0);
    }
    let root = Tensor::new((config.hidden as f32).sqrt(), &Device::Cpu)?;
    Ok(root.to_dtype(dtype)?.to_dtype(DType::F32)?.to_scalar()?)
}

/// The factors of queries before RoPE, for YaRN's attention factor f and a head that rotates in
/// part. f² belongs on the dot products of the rotating dims only (Hugging Face scales cosine and
/// sine), so it cannot be part of the softmax scale. On the query, never on a cached key.
fn query_factors(config: &Config, attention_factor: f32, device: &Device) -> Result<Option<Tensor>> {
    if attention_factor == 1.0 || config.rotary_dims == config.head_dim {
        return Ok(None);
    }
    let factor = |dim: usize| if dim < config.rotary_dims { attention_factor * attention_factor } else { 1.0 };
    let factors: Vec<f32> = (0..config.head_dim).map(factor).collect();
    Ok(Some(Tensor::from_vec(factors, config.head_dim, device)?))
}

/// The sinks of a layer's heads.
fn sinks(weights: &Weights, prefix: &str, heads: usize) -> Result<Arc<[f32]>> {
    let sinks = cuda::download(&weights.get_f32(&format!("{prefix}.self_attn.sinks"), &[heads])?)?;
    Ok(sinks.to_dtype(DType::F32)?.to_vec1::<f32>()?.into())
}

impl Layer {
    fn new(config: &Config, weights: &Weights, index: usize) -> Result<Self> {
        let Config { hidden, intermediate, heads, kv_heads, head_dim, .. } = *config;
        let prefix = format!("model.layers.{index}");
        let norm = |name: &str, dim: usize| norm_weight(config, weights, &format!("{prefix}.{name}.weight"), dim);
        let optional = |name: Option<&str>, dim: usize| name.map(|name| norm(name, dim)).transpose();
        let of_head = |name: &'static str| config.qk_norm.then_some(name);
        // After attention, before the MLP, after it.
        let (attention_norm, mlp_norm, output_norm) = match config.output_norms {
            None => (None, "post_attention_layernorm", None),
            Some(OutputNorms::Glm) => {
                (Some("post_self_attn_layernorm"), "post_attention_layernorm", Some("post_mlp_layernorm"))
            }
            Some(OutputNorms::Gemma) => {
                (Some("post_attention_layernorm"), "pre_feedforward_layernorm", Some("post_feedforward_layernorm"))
            }
        };
        let projection = |name: &str, out: usize, input: usize, bias: bool| {
            Projection::new(weights, &format!("{prefix}.{name}"), out, input, bias)
        };
        let (q_dim, kv_dim) = (heads * head_dim, kv_heads * head_dim);
        let dense = || -> Result<Mlp> {
            let wide = |name: &str| projection(name, intermediate, hidden, config.mlp_bias);
            let (gate, up) = if config.fused_gate_up {
                let fused = weights.matrix(&format!("{prefix}.mlp.gate_up_proj.weight"), [2 * intermediate, hidden])?;
                let half = |from: usize| -> Result<Projection> {
                    Ok(Projection { weight: fused.narrow(from, intermediate)?, bias: None })
                };
                (half(0)?, half(intermediate)?)
            } else {
                (wide("mlp.gate_proj")?, wide("mlp.up_proj")?)
            };
            Ok(Mlp::Dense { gate, up, down: projection("mlp.down_proj", hidden, intermediate, config.mlp_bias)? })
        };
        let mlp = match &config.experts {
            Some(experts) if experts.in_layer[index] => {
                Mlp::Experts(ExpertLayer::new(experts, weights, &format!("{prefix}.mlp"), (hidden, config.gate))?)
            }
            _ => dense()?,
        };
        Ok(Self {
            input_norm: norm("input_layernorm", hidden)?,
            q: projection("self_attn.q_proj", q_dim, hidden, config.qkv_bias)?,
            k: projection("self_attn.k_proj", kv_dim, hidden, config.qkv_bias)?,
            v: projection("self_attn.v_proj", kv_dim, hidden, config.qkv_bias)?,
            q_norm: optional(of_head("self_attn.q_norm"), head_dim)?,
            k_norm: optional(of_head("self_attn.k_norm"), head_dim)?,
            sinks: if config.sinks { Some(sinks(weights, &prefix, heads)?) } else { None },
            output: projection("self_attn.o_proj", hidden, q_dim, config.output_bias)?,
            attention_norm: optional(attention_norm, hidden)?,
            mlp_norm: norm(mlp_norm, hidden)?,
            mlp,
            output_norm: optional(output_norm, hidden)?,
        })
    }
}

impl Model for Decoder {
    fn config(&self) -> &Config {
        &self.config
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn layer_attention(&self, positions: usize) -> Result<Arc<[LayerAttention]>> {
        let mut ropes = self.ropes.lock().unwrap_or_else(PoisonError::into_inner);
        for rope in ropes.iter_mut() {
            *rope = rope.covering(positions.next_multiple_of(ROPE_STEP))?;
        }
        let of = |(index, layer): (usize, &Layer)| {
            let windows = self.config.windows.as_ref().filter(|windows| windows.in_layer[index]);
            let rope = &ropes[if windows.is_some() { ropes.len() - 1 } else { 0 }];
            LayerAttention {
                scale: self.config.scale(rope.attention_factor()),
                rope: rope.clone(),
                window: windows.map(|windows| windows.tokens as u32),
                sinks: layer.sinks.clone(),
                dtype: self.dtype,
            }
        };
        Ok(self.layers.iter().enumerate().map(of).collect())
    }

    fn embed(&self, ids: &[u32]) -> Result<Rows> {
        if let Some(id) = ids.iter().find(|&&id| id as usize >= self.config.vocab) {
            return Err(Error::Input(format!("token id {id} is outside the vocabulary of {}", self.config.vocab)));
        }
        let rows = self.embedding.rows(ids, self.activations)?;
        let is_plain = self.embedding_factor == 1.0;
        Ok(Rows::fresh(if is_plain { rows } else { scale(&rows, self.embedding_factor)? }))
    }

    fn tower(&self) -> Option<&Tower> {
        self.tower.as_ref()
    }

    fn slice_rows(&self) -> usize {
        self.slice_rows
    }

    fn qkv_of_last(&self, index: usize, rows: &Rows, queries: usize) -> Result<Qkv> {
        let (layer, count) = (&self.layers[index], rows.len());
        let Config { kv_heads, head_dim, norm_eps, .. } = self.config;
        let x = rms_norm(&rows.hidden, &layer.input_norm, norm_eps)?;
        let from = count.saturating_sub(queries);
        let asked = rows.adapted.as_ref().and_then(|adapted| adapted.within(from, queries));
        let q = self.query_of(index, &x.narrow(0, from, queries)?, asked.as_ref())?;
        let added = |linear| rows.adapted.as_ref().and_then(|adapted| adapted.at(index, linear));
        let k = layer.k.apply(&x, added(Linear::Key))?.reshape((count, kv_heads, head_dim))?;
        let k = self.normed(k, layer.k_norm.as_ref())?;
        let v = layer.v.apply(&x, added(Linear::Value))?.reshape((count, kv_heads, head_dim))?;
        Ok(Qkv { q, k: cast(&k, self.dtype)?, v: cast(&v, self.dtype)? })
    }

    fn queries(&self, index: usize, rows: &Rows) -> Result<Tensor> {
        let x = rms_norm(&rows.hidden, &self.layers[index].input_norm, self.config.norm_eps)?;
        self.query_of(index, &x, rows.adapted.as_ref())
    }

    fn finish(&self, index: usize, rows: Rows, attended: Partial) -> Result<Rows> {
        let (layer, count) = (&self.layers[index], rows.len());
        let attended = match &layer.sinks {
            Some(sinks) => with_sinks(&attended, sinks)?.out,
            None => attended.out,
        };
        let flat = attended.reshape((count, self.config.heads * self.config.head_dim))?;
        let norm = Norm { weight: layer.attention_norm.as_ref(), eps: self.config.norm_eps };
        let adapted = rows.adapted.as_ref();
        let added = adapted.and_then(|adapted| adapted.at(index, Linear::Output));
        let hidden = match rows.are_own() && added.is_none() && layer.output.add_in_place(&rows.hidden, &flat, norm)? {
            true => rows.hidden.clone(),
            false => layer.output.add_to(&rows.hidden, &flat, added, norm)?,
        };
        // An adapter is active on some rows, and perhaps only on some tiles: either all tiles are
        // written in place, or none.
        let starts = (0..count).step_by(self.slice_rows);
        let tiles = starts.map(|from| {
            let tile_rows = self.slice_rows.min(count - from);
            let within = adapted.and_then(|adapted| adapted.within(from, tile_rows));
            let in_place = adapted.is_none();
            self.mlp(index, &hidden.narrow(0, from, tile_rows)?, within.as_ref(), in_place)
        });
        let tiles = tiles.collect::<Result<Vec<_>>>()?;
        let apart: Vec<&Tensor> = tiles.iter().flatten().collect();
        let hidden = if apart.is_empty() { hidden } else { join(&apart, 0)? };
        // The one place where levels are added, so that no pass leaves them out.
        let hidden = match &rows.visual {
            Some(visual) => visual.add(index, hidden)?,
            None => hidden,
        };
        Ok(rows.computed(hidden))
    }

    fn logits(&self, rows: &Rows) -> Result<Tensor> {
        let x = rms_norm(&rows.hidden, &self.norm, self.config.norm_eps)?;
        Ok(linear_f32(&x, &self.head)?)
    }
}
