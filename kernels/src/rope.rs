//! Rotary position embedding: frequencies as the model's config asks for them, scaled variants
//! included.
//!
//! A rotation is applied when a key is used, never when it is cached, so the tables are indexed by
//! [`Positions`](crate::Positions). YaRN's attention factor is not baked into the tables: it scales
//! the softmax and is the caller's to apply.
//!
//! A row of a picture stands at a place on three axes, of which each turns some of a head's pairs
//! (M-RoPE: Wang et al. 2024, "Qwen2-VL", section 2.1). Such a place is one more row of the tables,
//! after those of the plain positions ([`Rope::composed`]), so that kernels know one number a row.

use std::f64::consts::PI;
use std::sync::Arc;

use candle_core::{Device, Tensor};

use crate::error::{Error, Result, expect};
use crate::{Positions, cuda};

/// Which two dimensions of a head turn together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// Dimensions `i` and `i + rotary_dims/2` (Hugging Face's Llama, Mistral, Qwen).
    Half,
    /// Dimensions `2i` and `2i + 1` (GLM-4).
    Interleaved,
}

/// Change of the frequencies θ^(−2i/rotary_dims) for contexts beyond the model's first training
/// length. The formulas are those of Hugging Face's `modeling_rope_utils`.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Unchanged frequencies.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// Factor of the context's length.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, a smooth passage between.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `original_max_position / low_freq_factor` are scaled in full.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of the first training, in tokens.
        original_max_position: usize,
    },
    /// YaRN: scaled by how often a dimension turns within the original context, with a temperature
    /// on the softmax.
    Yarn {
        /// Factor of the context's length.
        factor: f64,
        /// Context length of the first training, in tokens.
        original_max_position: usize,
        /// Dimensions that turn more often than this are kept (32 where the config is silent).
        beta_fast: f64,
        /// Dimensions that turn less often than this are scaled in full (1 where the config is
        /// silent).
        beta_slow: f64,
        /// The attention factor f; 0.1·ln(factor) + 1 where the config is silent.
        attention_factor: Option<f64>,
        /// Whether the bounds of the passage are rounded to whole dimensions (true where the config
        /// is silent).
        truncate: bool,
    },
    /// Every frequency divided by a number of its own, as a GGUF file states them.
    Divided {
        /// The numbers, `[rotary_dims / 2]`.
        divisors: Vec<f64>,
    },
}

/// The rotary embedding of a model.
#[derive(Debug, Clone, Copy)]
pub struct RopeConfig<'a> {
    /// Width of a head.
    pub head_dim: usize,
    /// Dims of a head that rotate, the first ones.
    pub rotary_dims: usize,
    /// Base of the frequencies.
    pub theta: f64,
    /// Scaling of the frequencies.
    pub scaling: &'a RopeScaling,
    /// Which dims form a rotating pair.
    pub pairing: Pairing,
}

/// Growth of queries with their position p: a factor of 1 + β·ln(1 + ⌊p / original⌋), so that
/// attention over many more keys than in training stays as sharp. (Llama 4's and Ministral 3's;
/// after Nakanishi 2025, "Scalable-Softmax Is Superior for Attention".)
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryGrowth {
    /// β.
    pub beta: f64,
    /// Number of positions in training, before which the factor is 1.
    pub original: usize,
}

impl QueryGrowth {
    /// The factor at a position.
    pub fn factor(self, position: u32) -> f32 {
        (1.0 + self.beta * (1.0 + f64::from(position / self.original as u32)).ln()) as f32
    }
}

/// Rotations of every position up to a bound, and of the places composed after them. Cheap to
/// clone.
#[derive(Debug, Clone)]
pub struct Rope {
    growth: Option<QueryGrowth>,
    /// The axis whose position turns each pair, if places have three, `[rotary_dims/2]`.
    axes: Option<Arc<[u8]>>,
    head_dim: usize,
    pairing: Pairing,
    attention_factor: f32,
    frequencies: Arc<[f64]>,
    tables: Arc<Tables>,
}

/// `[rows, rotary_dims/2]`, computed in f64 and stored in f32.
#[derive(Debug)]
struct Tables {
    /// Number of the first rows, which are those of the positions `0..plain`.
    plain: usize,
    /// Number of all rows.
    rows: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
    on_devices: cuda::RopeTables,
}

impl Rope {
    /// Tables for positions `0..positions`. Dimensions that do not turn pass through.
    ///
    /// # Errors
    /// Returns an error if `rotary_dims` is odd, zero or above `head_dim`, or if a scaling's
    /// numbers are impossible.
    pub fn new(config: &RopeConfig<'_>, positions: usize) -> Result<Self> {
        let &RopeConfig { head_dim, rotary_dims, theta, scaling, pairing } = config;
        if rotary_dims == 0 || !rotary_dims.is_multiple_of(2) || rotary_dims > head_dim {
            let expected = format!("an even number in 2..={head_dim}");
            return Err(Error::Shape { op: "rope", what: "rotary_dims", expected, found: rotary_dims.to_string() });
        }
        let frequencies: Arc<[f64]> = frequencies(rotary_dims, theta, scaling)?.into();
        let attention_factor = match scaling {
            RopeScaling::Yarn { factor, attention_factor, .. } => {
                attention_factor.unwrap_or(if *factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 })
            }
            _ => 1.0,
        };
        let tables = Arc::new(Tables::new(&frequencies, positions));
        let attention_factor = attention_factor as f32;
        Ok(Self { growth: None, axes: None, head_dim, pairing, attention_factor, frequencies, tables })
    }

    /// Tables of the given angles alone, `[rows, rotary_dims/2]` in radians, for heads of
    /// `head_dim` whose dims `i` and `i + rotary_dims/2` turn together. There are no plain
    /// positions: a row's number is its place in the list.
    ///
    /// # Errors
    /// Returns an error if there is no row, if rows differ in length, or if they are empty or
    /// longer than half a head.
    pub fn of_angles(head_dim: usize, rows: &[Vec<f64>]) -> Result<Self> {
        let pairs = rows.first().map_or(0, Vec::len);
        if pairs == 0 || 2 * pairs > head_dim {
            let expected = format!("rows of 1 to {} angles", head_dim / 2);
            let found = format!("{} rows of {pairs}", rows.len());
            return Err(Error::Shape { op: "rope", what: "angles", expected, found });
        }
        let mut tables = Tables::with_room(rows.len() * pairs);
        for row in rows {
            expect("rope", "angles of a row", pairs, row.len())?;
            tables.push(row.iter().copied());
        }
        let (frequencies, tables) = (vec![0.0; pairs].into(), Arc::new(tables));
        let (pairing, attention_factor) = (Pairing::Half, 1.0);
        Ok(Self { growth: None, axes: None, head_dim, pairing, attention_factor, frequencies, tables })
    }

    /// The same for places on three axes: pair `i` turns by the position on axis `axes[i]`.
    ///
    /// # Errors
    /// Returns an error if there is not one axis a pair, if an axis is above 2, or if queries grow
    /// with their position, which is one number.
    pub fn with_axes(self, axes: Arc<[u8]>) -> Result<Self> {
        expect("rope", "axes of pairs", self.frequencies.len(), axes.len())?;
        if let Some(axis) = axes.iter().find(|&&axis| axis > 2) {
            let (expected, found) = ("0, 1 or 2".to_owned(), axis.to_string());
            return Err(Error::Shape { op: "rope", what: "axis", expected, found });
        }
        if self.growth.is_some() {
            let (expected, found) = ("queries that do not grow".to_owned(), "a growth".to_owned());
            return Err(Error::Shape { op: "rope", what: "places on three axes", expected, found });
        }
        Ok(Self { axes: Some(axes), ..self })
    }

    /// The same with one more row for each of `places`, after the rows that are there: cos\[i\] =
    /// cos(place\[axis(i)\] · frequency_i). Earlier rows keep their numbers. The tables must cover
    /// every plain position first: they do not grow after this.
    ///
    /// # Errors
    /// Returns an error if the pairs have no axes ([`with_axes`](Self::with_axes)).
    pub fn composed(&self, places: &[[u32; 3]]) -> Result<Self> {
        let Some(axes) = &self.axes else {
            let (expected, found) = ("an axis a pair".to_owned(), "none".to_owned());
            return Err(Error::Shape { op: "rope", what: "axes of pairs", expected, found });
        };
        if places.is_empty() {
            return Ok(self.clone());
        }
        let mut tables = self.tables.copy(places.len() * axes.len());
        for place in places {
            let of_pair = |(&axis, frequency): (&u8, &f64)| f64::from(place[usize::from(axis)]) * frequency;
            tables.push(axes.iter().zip(&*self.frequencies).map(of_pair));
        }
        Ok(Self { tables: Arc::new(tables), ..self.clone() })
    }

    /// The same for a model whose queries grow with their position, if they do.
    #[must_use]
    pub fn growing(self, growth: Option<QueryGrowth>) -> Self {
        Self { growth, ..self }
    }

    /// Queries `[rows, heads, head_dim]`, before RoPE or after it, with the growth of their
    /// positions; as they are where none grows. Every query passes here once before it meets keys.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn grown(&self, q: &Tensor, at: &Positions) -> Result<Tensor> {
        let Some(growth) = self.growth else { return Ok(q.clone()) };
        let factors: Vec<f32> = at.rope().iter().map(|&position| growth.factor(position)).collect();
        if factors.iter().all(|&factor| factor == 1.0) {
            return Ok(q.clone());
        }
        // In the type of the queries, as Hugging Face has it.
        let factors = Tensor::from_vec(factors, (q.dim(0)?, 1, 1), &Device::Cpu)?.to_dtype(q.dtype())?;
        Ok(q.broadcast_mul(&factors.to_device(q.device())?)?)
    }

    /// The same rotations, with tables for at least `positions` plain positions.
    ///
    /// # Errors
    /// Returns an error if other rows follow the plain ones: their numbers would change.
    pub fn covering(&self, positions: usize) -> Result<Self> {
        if positions <= self.tables.plain {
            return Ok(self.clone());
        }
        if self.tables.rows > self.tables.plain {
            let (expected, found) = (format!("at most {}", self.tables.plain), positions.to_string());
            return Err(Error::Shape { op: "rope", what: "plain positions before other places", expected, found });
        }
        let tables = Arc::new(Tables::new(&self.frequencies, positions));
        Ok(Self { tables, ..self.clone() })
    }

    /// Number of rows in the tables: plain positions, and the places composed after them.
    pub fn positions(&self) -> usize {
        self.tables.rows
    }

    /// Number of plain positions in the tables, whose rows come first.
    pub fn plain_positions(&self) -> usize {
        self.tables.plain
    }

    /// Number of dimensions of a head that turn.
    pub fn rotary_dims(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Which dimensions turn together.
    pub fn pairing(&self) -> Pairing {
        self.pairing
    }

    /// YaRN's attention factor f, 1 for every other scaling. The caller multiplies the softmax
    /// scale by f²; keys and queries are rotated without it, so that a cached key never carries it.
    pub fn attention_factor(&self) -> f32 {
        self.attention_factor
    }

    /// Cosines and sines of one row, `rotary_dims/2` each. The row must be within the tables.
    pub(crate) fn row(&self, position: u32) -> (&[f32], &[f32]) {
        let half = self.frequencies.len();
        let from = position as usize * half;
        (&self.tables.cos[from..from + half], &self.tables.sin[from..from + half])
    }

    /// Cosines and sines of all rows, `[positions, rotary_dims/2]` each.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code))]
    pub(crate) fn tables(&self) -> (&[f32], &[f32]) {
        (&self.tables.cos, &self.tables.sin)
    }

    /// Copies of the tables on devices.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code))]
    pub(crate) fn on_devices(&self) -> &cuda::RopeTables {
        &self.tables.on_devices
    }

    /// Checks that every position is within the tables.
    pub(crate) fn check(&self, head_dim: usize, positions: impl Iterator<Item = u32>) -> Result<()> {
        expect("rope", "head_dim", self.head_dim, head_dim)?;
        match positions.max() {
            Some(largest) if largest as usize >= self.positions() => Err(Error::Shape {
                op: "rope",
                what: "position",
                expected: format!("below {}", self.positions()),
                found: largest.to_string(),
            }),
            _ => Ok(()),
        }
    }
}

impl Tables {
    fn new(frequencies: &[f64], positions: usize) -> Self {
        let mut tables = Self::with_room(positions * frequencies.len());
        for position in 0..positions {
            tables.push(frequencies.iter().map(|frequency| position as f64 * frequency));
        }
        Self { plain: positions, ..tables }
    }

    /// No rows, with memory for `numbers` cosines.
    fn with_room(numbers: usize) -> Self {
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        cos.reserve_exact(numbers);
        sin.reserve_exact(numbers);
        Self { plain: 0, rows: 0, cos, sin, on_devices: cuda::RopeTables::default() }
    }

    /// A copy with memory for `numbers` more cosines.
    fn copy(&self, numbers: usize) -> Self {
        let mut tables = Self::with_room(self.cos.len() + numbers);
        tables.cos.extend_from_slice(&self.cos);
        tables.sin.extend_from_slice(&self.sin);
        Self { plain: self.plain, rows: self.rows, ..tables }
    }

    /// Adds a row of these angles.
    fn push(&mut self, angles: impl Iterator<Item = f64>) {
        for angle in angles {
            let (s, c) = angle.sin_cos();
            self.cos.push(c as f32);
            self.sin.push(s as f32);
        }
        self.rows += 1;
    }
}

/// The angle by which each pair turns from one position to the next, `[rotary_dims/2]`.
fn frequencies(rotary_dims: usize, theta: f64, scaling: &RopeScaling) -> Result<Vec<f64>> {
    let plain = |i: usize| theta.powf(-(2.0 * i as f64) / rotary_dims as f64);
    let half = rotary_dims / 2;
    check_scaling(theta, scaling)?;
    let list = match *scaling {
        RopeScaling::None => (0..half).map(plain).collect(),
        RopeScaling::Linear { factor } => (0..half).map(|i| plain(i) / factor).collect(),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
            let original = original_max_position as f64;
            let scale = |frequency: f64| {
                let turns = original * frequency / (2.0 * PI);
                let keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                keep * frequency + (1.0 - keep) * frequency / factor
            };
            (0..half).map(|i| scale(plain(i))).collect()
        }
        RopeScaling::Yarn { factor, original_max_position, beta_fast, beta_slow, truncate, .. } => {
            let original = original_max_position as f64;
            // The dimension that turns `turns` times within the original context.
            let dimension = |turns: f64| rotary_dims as f64 * (original / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
            let (mut low, mut high) = (dimension(beta_fast), dimension(beta_slow));
            if truncate {
                (low, high) = (low.floor(), high.ceil());
            }
            let (low, mut high) = (low.max(0.0), high.min(rotary_dims as f64 - 1.0));
            if low == high {
                high += 0.001; // a step instead of a division by zero
            }
            let scale = |i: usize| {
                let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                plain(i) * (1.0 - ramp) + plain(i) / factor * ramp
            };
            (0..half).map(scale).collect()
        }
        RopeScaling::Divided { ref divisors } => {
            expect("rope", "divisors", half, divisors.len())?;
            divisors.iter().enumerate().map(|(i, divisor)| plain(i) / divisor).collect()
        }
    };
    Ok(list)
}

fn check_scaling(theta: f64, scaling: &RopeScaling) -> Result<()> {
    let positive = |name: &str, value: f64| {
        if value.is_finite() && value > 0.0 {
            return Ok(());
        }
        Err(Error::RopeScaling(format!("{name} must be a positive number, found {value}")))
    };
    positive("theta", theta)?;
    match *scaling {
        RopeScaling::None => Ok(()),
        RopeScaling::Linear { factor } => positive("factor", factor),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
            positive("factor", factor)?;
            positive("original_max_position", original_max_position as f64)?;
            positive("low_freq_factor", low_freq_factor)?;
            if high_freq_factor > low_freq_factor {
                return Ok(());
            }
            let found = format!("high_freq_factor {high_freq_factor}, low_freq_factor {low_freq_factor}");
            Err(Error::RopeScaling(format!("high_freq_factor must be above low_freq_factor, found {found}")))
        }
        RopeScaling::Yarn { factor, original_max_position, beta_fast, beta_slow, .. } => {
            positive("factor", factor)?;
            positive("original_max_position", original_max_position as f64)?;
            positive("beta_fast", beta_fast)?;
            positive("beta_slow", beta_slow)
        }
        RopeScaling::Divided { ref divisors } => divisors.iter().try_for_each(|&divisor| positive("divisor", divisor)),
    }
}
