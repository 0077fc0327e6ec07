//! The `rope_scaling` object of a config.json (or `rope_parameters` of newer ones).

use serde_json::Value;
use tributary_kernels::{QueryGrowth, RopeScaling};

/// The type of [`RopeScaling::Divided`], in configs that describe GGUF files.
pub(super) const DIVIDED: &str = "divided";

/// The fields of both objects; as in transformers, those of `rope_scaling` take precedence.
pub(super) fn merged(scaling: &Value, parameters: &Value) -> Value {
    let mut merged = serde_json::Map::new();
    for object in [parameters, scaling] {
        merged.extend(object.as_object().into_iter().flatten().map(|(key, value)| (renamed(key), value.clone())));
    }
    Value::Object(merged)
}

/// The newer name of a field.
fn renamed(key: &str) -> String {
    if key == "type" { "rope_type".to_owned() } else { key.to_owned() }
}

/// Rejects a config with contradictory values for rotary embeddings, in any of its places.
///
/// # Errors
/// Returns both places with both values.
pub(super) fn agrees(config: &Value) -> Result<(), String> {
    let mut said: Vec<(String, String, &Value)> = Vec::new();
    for key in ["rope_theta", "partial_rotary_factor"] {
        said.push((key.to_owned(), key.to_owned(), &config[key]));
    }
    for place in ["rope_scaling", "rope_parameters"] {
        let fields = config[place].as_object().into_iter().flatten();
        said.extend(fields.map(|(key, value)| (renamed(key), format!("{place}.{key}"), value)));
    }
    said.retain(|(_, _, value)| !value.is_null());
    for (index, (key, place, value)) in said.iter().enumerate() {
        let other = said[..index].iter().find(|(other, _, found)| other == key && !same(found, value));
        if let Some((_, before, found)) = other {
            return Err(format!("{before} {found} and {place} {value} contradict each other"));
        }
    }
    Ok(())
}

/// Gives the rotary settings of a decoder of pictures the type of plain ones: what `mrope` adds is
/// in `mrope_section`.
pub(super) fn without_mrope(config: &mut Value) {
    for place in ["rope_scaling", "rope_parameters"] {
        for key in ["type", "rope_type"] {
            if config[place][key] == "mrope" {
                config[place][key] = "default".into();
            }
        }
    }
}

/// The pairs of a decoder of pictures that turn by time, height and width: `mrope_section` of
/// `rope`. Only where `interleaved` the axes take turns.
///
/// # Errors
/// Returns the field that is missing, or contradicts the family.
pub(super) fn sections(rope: &Value, interleaved: bool) -> Result<[usize; 3], String> {
    let stated = &rope["mrope_section"];
    if stated.is_null() {
        return Err("rope_scaling lacks `mrope_section`: the pairs that turn by time, height and width".to_owned());
    }
    let numbers: Vec<usize> =
        stated.as_array().into_iter().flatten().filter_map(Value::as_u64).map(|n| n as usize).collect();
    let of_three = <[usize; 3]>::try_from(numbers).ok().filter(|_| stated.as_array().is_some_and(|all| all.len() == 3));
    let sections = of_three.ok_or_else(|| format!("mrope_section {stated}: must be three numbers of pairs"))?;
    match rope["mrope_interleaved"].as_bool() {
        Some(stated) if stated != interleaved => {
            Err(format!("mrope_interleaved {stated}: this family's sections have {interleaved}"))
        }
        _ => Ok(sections),
    }
}

/// Whether two values mean the same: 10000 is 10000.0.
fn same(one: &Value, other: &Value) -> bool {
    one == other || one.as_f64().is_some_and(|number| other.as_f64() == Some(number))
}

/// Rejects numbers that give no valid frequencies.
///
/// # Errors
/// Returns the invalid number with its name.
pub(super) fn check(theta: f64, scaling: &RopeScaling) -> Result<(), String> {
    let positive = |name: &str, value: f64| match value.is_finite() && value > 0.0 {
        true => Ok(()),
        false => Err(format!("rope {name} {value}: must be a positive number")),
    };
    positive("theta", theta)?;
    let stretched = |factor: f64, original: usize| {
        positive("factor", factor)?;
        match original > 0 && factor * (original as f64) < 1e12 {
            true => Ok(()),
            false => Err(format!("rope factor {factor} of {original} positions: too many, or none")),
        }
    };
    match *scaling {
        RopeScaling::None => Ok(()),
        RopeScaling::Linear { factor } => positive("factor", factor),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
            stretched(factor, original_max_position)?;
            positive("low_freq_factor", low_freq_factor)?;
            match high_freq_factor.is_finite() && high_freq_factor > low_freq_factor {
                true => Ok(()),
                false => Err(format!("rope high_freq_factor {high_freq_factor}: must be above {low_freq_factor}")),
            }
        }
        RopeScaling::Yarn { factor, original_max_position, beta_fast, beta_slow, attention_factor, .. } => {
            stretched(factor, original_max_position)?;
            positive("beta_fast", beta_fast)?;
            positive("beta_slow", beta_slow)?;
            if theta == 1.0 {
                return Err("rope theta 1: YaRN needs frequencies that differ".to_owned());
            }
            attention_factor.map_or(Ok(()), |factor| positive("attention_factor", factor))
        }
        RopeScaling::Divided { ref divisors } => divisors.iter().try_for_each(|&divisor| positive("divisor", divisor)),
    }
}

/// The scaling that `rope` asks for; `max_positions` stands in for a missing original length.
///
/// # Errors
/// Returns a message if the scaling is not supported. Dynamic NTK is rejected by name: its
/// frequencies change with the length of the sequence, so that no chunk could be reused.
pub(super) fn scaling(rope: &Value, max_positions: usize) -> Result<RopeScaling, String> {
    let kind = rope["rope_type"].as_str().or_else(|| rope["type"].as_str()).unwrap_or("default");
    let number = |key: &str| rope[key].as_f64().ok_or_else(|| format!("rope_scaling `{kind}` lacks `{key}`"));
    let original = original(rope)?.unwrap_or(max_positions);
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
        DIVIDED => {
            let divisors = rope["divisors"].as_array().map(|all| all.iter().filter_map(Value::as_f64).collect());
            let divisors = divisors.ok_or_else(|| format!("rope_scaling `{kind}` lacks `divisors`"))?;
            Ok(RopeScaling::Divided { divisors })
        }
        "dynamic" => {
            Err("rope_scaling `dynamic` changes frequencies with the sequence's length, so that no chunk can be \
                          reused; supported are default, linear, llama3, yarn"
                .to_owned())
        }
        other => Err(format!("rope_scaling `{other}` is not supported; supported are default, linear, llama3, yarn")),
    }
}

/// The number of positions in the first training, if it is stated; 8192.0 is 8192.
fn original(rope: &Value) -> Result<Option<usize>, String> {
    match &rope["original_max_position_embeddings"] {
        Value::Null => Ok(None),
        value => match value.as_f64().filter(|number| number.fract() == 0.0 && (0.0..1e15).contains(number)) {
            Some(number) => Ok(Some(number as usize)),
            None => Err(format!("rope original_max_position_embeddings {value}: must be a number of positions")),
        },
    }
}

/// The growth of queries that `rope` asks for; `max_positions` stands in for a missing original
/// length.
///
/// # Errors
/// Returns the number that gives no growth.
pub(super) fn query_growth(rope: &Value, max_positions: usize) -> Result<Option<QueryGrowth>, String> {
    if rope["rope_type"].is_null() {
        return Err("rope_parameters are missing: the growth of queries and the scaling of this family".to_owned());
    }
    let Some(beta) = rope["llama_4_scaling_beta"].as_f64() else { return Ok(None) };
    let original = original(rope)?.unwrap_or(max_positions);
    if !(beta.is_finite() && beta >= 0.0) || original == 0 || original > u32::MAX as usize {
        return Err(format!(
            "rope llama_4_scaling_beta {beta} after {original} positions: must be from 0 on, after some"
        ));
    }
    Ok(Some(QueryGrowth { beta, original }))
}

/// Number of positions that a model supports with the scaling. YaRN stretches the original context
/// by its factor. Configs that switch it on by hand (Qwen's recipe for long contexts) leave
/// `max_position_embeddings` unchanged.
pub(super) fn positions(scaling: &RopeScaling, stated: usize) -> usize {
    match scaling {
        RopeScaling::Yarn { factor, original_max_position, .. } => {
            stated.max((factor * *original_max_position as f64) as usize)
        }
        _ => stated,
    }
}

/// The factor in the config: directly, or through `mscale` and `mscale_all_dim` (YaRN, section 3.4,
/// as DeepSeek's configs write it); `None` leaves the default 0.1·ln(factor) + 1.
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
