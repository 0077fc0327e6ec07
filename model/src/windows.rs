//! Sliding windows: layers whose rows see only the last positions, as a config.json states them.

use serde_json::Value;
use tributary_protocol::LayerSet;

use crate::families::Window;

/// Hugging Face's sliding window if a config has none, in tokens.
const DEFAULT_WINDOW: usize = 4096;

/// Hugging Face's first layer with a window of a Qwen if a config has none.
const FIRST_LAYER: usize = 28;

/// The largest window that is accepted, in tokens.
const MOST_TOKENS: usize = 1 << 30;

/// The sliding windows of a decoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    /// Positions that a row sees at most, its own included.
    pub tokens: usize,
    /// For each layer whether it has a window; else its rows see all before them.
    pub in_layer: Vec<bool>,
}

impl Windows {
    /// The layers with a window.
    pub fn layers(&self) -> LayerSet {
        (0..self.in_layer.len()).filter(|&layer| self.in_layer[layer]).collect()
    }
}

/// The fields of a config.json that tell of windows.
pub(super) struct Stated<'a> {
    /// `sliding_window`: missing, null, or a number.
    pub tokens: Option<&'a Value>,
    /// `use_sliding_window`.
    pub used: Option<bool>,
    /// `max_window_layers`.
    pub first_layer: Option<usize>,
    /// `sliding_window_pattern`: of this number of layers the last sees all.
    pub pattern: Option<usize>,
    /// `layer_types`.
    pub layer_types: Option<&'a [String]>,
    /// `num_hidden_layers`.
    pub layers: usize,
}

impl Stated<'_> {
    /// The windows of a family with this rule, if a layer has one.
    ///
    /// # Errors
    /// Returns the fields that contradict each other, or the number that is no window.
    pub fn windows(&self, rule: Window) -> Result<Option<Windows>, String> {
        let is_on = match rule {
            Window::Always | Window::Stated | Window::Alternating { .. } => true,
            Window::Switched | Window::SwitchedInAll => self.used == Some(true),
            Window::Never => false,
        };
        if !is_on {
            return Ok(None);
        }
        let in_layer = self.in_layer(rule)?;
        if !in_layer.contains(&true) {
            return Ok(None);
        }
        if in_layer.len() > LayerSet::MOST && in_layer.contains(&false) {
            let (layers, most) = (in_layer.len(), LayerSet::MOST);
            return Err(format!("windows in some of {layers} layers: must be at most {most} layers"));
        }
        Ok(self.tokens(rule)?.map(|tokens| Windows { tokens, in_layer }))
    }

    fn in_layer(&self, rule: Window) -> Result<Vec<bool>, String> {
        let layers = self.layers;
        let by_layer = |slides: &dyn Fn(usize) -> bool| Ok((0..layers).map(slides).collect());
        let (Window::Switched | Window::Alternating { .. }, Some(types)) = (rule, self.layer_types) else {
            return match rule {
                Window::Switched => by_layer(&|layer| layer >= self.first_layer.unwrap_or(FIRST_LAYER)),
                Window::Alternating { pattern, .. } => match self.pattern.unwrap_or(pattern) {
                    0 => Err("sliding_window_pattern is 0".to_owned()),
                    pattern => by_layer(&|layer| !(layer + 1).is_multiple_of(pattern)),
                },
                _ => by_layer(&|_| true),
            };
        };
        if types.len() != layers {
            return Err(format!("layer_types has {} entries; num_hidden_layers is {layers}", types.len()));
        }
        let slides = |kind: &String| match kind.as_str() {
            "full_attention" => Ok(false),
            "sliding_attention" => Ok(true),
            other => {
                let other: String = other.chars().filter(|letter| !letter.is_control()).take(40).collect();
                Err(format!("layer_types `{other}` is not supported; full_attention and sliding_attention are"))
            }
        };
        types.iter().map(slides).collect()
    }

    fn tokens(&self, rule: Window) -> Result<Option<usize>, String> {
        match (self.tokens, rule) {
            (None, Window::Stated) => Ok(None),
            (None, Window::Alternating { tokens, .. }) => Ok(Some(tokens)),
            (None, _) => Ok(Some(DEFAULT_WINDOW)),
            (Some(Value::Null), Window::Alternating { .. }) => {
                Err("sliding_window is null, and layer_types has sliding_attention".to_owned())
            }
            (Some(Value::Null), _) => Ok(None),
            (Some(value), _) => match value.as_u64() {
                Some(tokens) if tokens > 0 => Ok(Some(tokens.min(MOST_TOKENS as u64) as usize)),
                _ => Err(format!("sliding_window {value} is not a number of tokens")),
            },
        }
    }
}
