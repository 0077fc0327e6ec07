//! Which tensor of a GGUF file holds a tensor of a Hugging Face folder. (gguf, `constants.py` and
//! `tensor_mapping.py`; llama.cpp, `conversion/`.)

/// Where a tensor comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    /// Its name in the file.
    pub name: String,
    /// The expert, of a tensor that holds all experts of a layer.
    pub expert: Option<usize>,
    /// What is done to it.
    pub change: Change,
}

/// What is done to a file's tensor to make it that of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing.
    None,
    /// The rows of each head are put into another order: the file has both halves of a head in
    /// turn.
    OfHeads,
    /// 1 is subtracted.
    LessOne,
}

/// The source of a folder's tensor in a file of an architecture; `None` if such a file has none.
pub(crate) fn source(name: &str, architecture: &str) -> Option<Source> {
    let whole = |name: &str, change: Change| Some(Source { name: name.to_owned(), expert: None, change });
    let gemma = if architecture == "gemma3" { Change::LessOne } else { Change::None };
    match name {
        "model.embed_tokens.weight" => return whole("token_embd.weight", Change::None),
        "lm_head.weight" => return whole("output.weight", Change::None),
        "model.norm.weight" => return whole("output_norm.weight", gemma),
        _ => {}
    }
    let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let of_layer = |name: &str| format!("blk.{layer}.{name}");
    if let Some(rest) = rest.strip_prefix("mlp.experts.") {
        let (expert, rest) = rest.split_once('.')?;
        let (matrix, kind) = rest.split_once("_proj.")?;
        let name = of_layer(&format!("ffn_{matrix}_exps.{kind}"));
        return Some(Source { name, expert: Some(expert.parse().ok()?), change: Change::None });
    }
    if rest == "mlp.gate.e_score_correction_bias" {
        return whole(&of_layer("exp_probs_b.bias"), Change::None);
    }
    if let Some(kind) = rest.strip_prefix("mlp.router.").or_else(|| rest.strip_prefix("mlp.gate.")) {
        return whole(&of_layer(&format!("ffn_gate_inp.{kind}")), Change::None);
    }
    if rest == "self_attn.sinks" {
        return whole(&of_layer("attn_sinks.weight"), Change::None);
    }
    let (part, kind) = rest.rsplit_once('.')?;
    if let Some(matrix) = part.strip_prefix("mlp.shared_experts.") {
        let name = format!("ffn_{}_shexp.{kind}", matrix.strip_suffix("_proj")?);
        return whole(&of_layer(&name), Change::None);
    }
    let turned = if matches!(architecture, "llama" | "mistral3") { Change::OfHeads } else { Change::None };
    let (part, change) = match part {
        "self_attn.q_proj" => ("attn_q", turned),
        "self_attn.k_proj" => ("attn_k", turned),
        "self_attn.v_proj" => ("attn_v", Change::None),
        "self_attn.o_proj" => ("attn_output", Change::None),
        "self_attn.q_norm" => ("attn_q_norm", gemma),
        "self_attn.k_norm" => ("attn_k_norm", gemma),
        "mlp.gate_proj" => ("ffn_gate", Change::None),
        "mlp.up_proj" => ("ffn_up", Change::None),
        "mlp.down_proj" => ("ffn_down", Change::None),
        "input_layernorm" => ("attn_norm", gemma),
        "post_attention_layernorm" if matches!(architecture, "gemma3" | "gpt-oss" | "glm4moe") => {
            ("post_attention_norm", gemma)
        }
        "post_attention_layernorm" => ("ffn_norm", Change::None),
        "pre_feedforward_layernorm" => ("ffn_norm", gemma),
        // Gate first, then up.
        "mlp.gate_up_proj" => ("ffn_up", Change::None),
        "post_self_attn_layernorm" => ("post_attention_norm", Change::None),
        "post_mlp_layernorm" => ("post_ffw_norm", Change::None),
        "post_feedforward_layernorm" => ("post_ffw_norm", gemma),
        _ => return None,
    };
    whole(&of_layer(&format!("{part}.{kind}")), change)
}
