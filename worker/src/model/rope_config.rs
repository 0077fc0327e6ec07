//! The `rope_scaling` object of a config.json (or `rope_parameters` of newer ones).

use serde_json::Value;
use tributary_kernels::RopeScaling;

/// The scaling that `rope` asks for; `max_positions` stands in for a missing original length.
///
/// # Errors
/// A scaling this program does not have. Dynamic NTK is refused by name: its frequencies change with the length of the
/// sequence, so that no chunk could be reused.
pub(super) fn scaling(rope: &Value, max_positions: usize) -> Result<RopeScaling, String> {
    let kind = rope["rope_type"].as_str().or_else(|| rope["type"].as_str()).unwrap_or("default");
    let number = |key: &str| rope[key].as_f64().ok_or_else(|| format!("rope_scaling `{kind}` lacks `{key}`"));
    let original = rope["original_max_position_embeddings"].as_u64().map_or(max_positions, |value| value as usize);
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: number("factor")? }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: number("factor")?,
            low_freq_factor: number("low_freq_factor")?,
            high_freq_factor: number("high_freq_factor")?,
            original_max_position: original,
        }),
        "yarn" => Ok(RopeScaling::Yarn {
            factor: number("factor")?,
            original_max_position: original,
            beta_fast: rope["beta_fast"].as_f64().unwrap_or(32.0),
            beta_slow: rope["beta_slow"].as_f64().unwrap_or(1.0),
            attention_factor: yarn_attention_factor(rope)?,
            truncate: rope["truncate"].as_bool().unwrap_or(true),
        }),
        "dynamic" => {
            Err("rope_scaling `dynamic` changes frequencies with the sequence's length, so that no chunk can be \
                          reused; supported are default, linear, llama3, yarn"
                .to_owned())
        }
        other => Err(format!("rope_scaling `{other}` is not supported; supported are default, linear, llama3, yarn")),
    }
}

/// Positions that the scaling makes a model good for: YaRN stretches the original context by its factor, which configs
/// that switch it on by hand (Qwen's recipe for long contexts) do not write into `max_position_embeddings`.
pub(super) fn positions(scaling: &RopeScaling, stated: usize) -> usize {
    match scaling {
        RopeScaling::Yarn { factor, original_max_position, .. } => {
            stated.max((factor * *original_max_position as f64) as usize)
        }
        _ => stated,
    }
}

/// The factor as the config states it: directly, or through `mscale` and `mscale_all_dim` (YaRN, section 3.4, as
/// DeepSeek's configs write it); `None` leaves the default 0.1·ln(factor) + 1.
fn yarn_attention_factor(rope: &Value) -> Result<Option<f64>, String> {
    if let Some(factor) = rope["attention_factor"].as_f64() {
        return Ok(Some(factor));
    }
    let stated = |key: &str| rope[key].as_f64().filter(|&scale| scale != 0.0); // Hugging Face takes 0 as silence
    let (mscale, all) = (stated("mscale"), stated("mscale_all_dim"));
    let (Some(mscale), Some(all)) = (mscale, all) else {
        return Ok(None);
    };
    let factor = rope["factor"].as_f64().ok_or("rope_scaling `yarn` lacks `factor`")?;
    let magnitude = |scale: f64| {
        if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
    };
    Ok(Some(magnitude(mscale) / magnitude(all)))
}
