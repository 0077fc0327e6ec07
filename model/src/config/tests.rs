//! Configs: real ones from outside the repository, the switches of each family, and invalid ones.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tributary_kernels::{Pairing, RopeScaling};

use super::Config;
use crate::error::{Error, Result};
use crate::kit;

fn parse(changes: &[(&str, Value)]) -> Result<Config> {
    let mut config = kit::config();
    for (key, value) in changes {
        config[key] = value.clone();
    }
    Config::parse(&config.to_string(), Path::new("config.json"))
}

fn family(name: &str, changes: &[(&str, Value)]) -> Config {
    let mut all = vec![("architectures", json!([name]))];
    all.extend_from_slice(changes);
    parse(&all).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn real_configs_parse() {
    let Some(all) = kit::real_inputs("configs") else { return };
    let entries = std::fs::read_dir(all).expect("a folder");
    let folders: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    assert!(!folders.is_empty(), "a folder of configs without any");
    for folder in folders {
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(folder.join("config.json")).expect("a config");
        let raw: Value = serde_json::from_str(&text).expect("JSON");
        match (raw["architectures"][0].as_str(), Config::read(&folder)) {
            (Some("ChatGLMModel"), Err(error @ Error::Architecture { .. })) => {
                assert!(error.to_string().contains("`ChatGLMModel` is not supported; supported are Llama"), "{error}");
                assert_eq!(error.exit_code(), 64);
            }
            (Some("ChatGLMModel"), other) => panic!("{name}: {other:?}"),
            (architecture, found) => {
                let config = found.unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(Some(config.architecture.as_str()), architecture, "{name}");
                check_real(&name, &raw, &config);
            }
        }
    }
}

fn check_real(name: &str, raw: &Value, config: &Config) {
    let of = |key: &str| raw[key].as_u64().map(|value| value as usize);
    assert_eq!(of("hidden_size"), Some(config.hidden), "{name}");
    assert_eq!(of("num_hidden_layers"), Some(config.layers), "{name}");
    assert_eq!(of("num_key_value_heads"), Some(config.kv_heads), "{name}");
    assert_eq!(of("head_dim").unwrap_or(config.hidden / config.heads), config.head_dim, "{name}");
    assert_eq!(config.windows, None, "{name} has none that is switched on");
    assert!(!config.eos.is_empty(), "{name} says where an answer ends");
    assert_eq!(config.qkv_bias, name.starts_with("Qwen2.5") || name.starts_with("glm"), "{name}");
    assert_eq!(config.qk_norm, name.starts_with("Qwen3"), "{name}");
    // The size in the name, if there is one: parameters by the shapes, within a tenth. A tied
    // embedding counts once.
    let size = name.split('-').find_map(|part| {
        let (number, unit) =
            part.to_lowercase().split_at_checked(part.len() - 1).map(|(n, u)| (n.to_owned(), u.to_owned()))?;
        let unit = match unit.as_str() {
            "b" => 1e9,
            "m" => 1e6,
            _ => return None,
        };
        Some(number.trim_start_matches("qwen").parse::<f64>().ok()? * unit)
    });
    let size = size.unwrap_or_else(|| panic!("{name} names no size"));
    let ratio = config.parameters() as f64 / size;
    assert!((0.9..1.3).contains(&ratio), "{name}: {} parameters", config.parameters());
}

#[test]
fn every_family_has_the_biases_of_its_own_code() {
    let bias = [("attention_bias", json!(true)), ("mlp_bias", json!(true))];
    let table = [
        // name, without the switches: q/k/v; with: q/k/v, output, MLP
        ("LlamaForCausalLM", false, [true, true, true]),
        ("MistralForCausalLM", false, [false, false, false]),
        ("Qwen2ForCausalLM", true, [true, false, false]),
        ("Qwen3ForCausalLM", false, [true, true, false]),
        ("GlmForCausalLM", false, [true, false, false]),
        ("Glm4ForCausalLM", false, [true, false, false]),
        ("Ministral3ForCausalLM", false, [false, false, false]),
        ("Qwen3MoeForCausalLM", false, [true, true, false]),
        ("Glm4MoeForCausalLM", false, [true, false, false]),
    ];
    let experts = [
        ("num_local_experts", json!(8)),
        ("num_experts_per_tok", json!(2)),
        ("moe_intermediate_size", json!(16)),
        ("rope_parameters", json!({"rope_type": "default"})),
    ];
    let family = |name: &str, changes: &[(&str, Value)]| family(name, &[&experts, changes].concat());
    for (name, silent, spoken) in table {
        let config = family(name, &[]);
        assert_eq!([config.qkv_bias, config.output_bias, config.mlp_bias], [silent, false, false], "{name}, silent");
        let config = family(name, &bias);
        assert_eq!([config.qkv_bias, config.output_bias, config.mlp_bias], spoken, "{name}");
        let glm = ["GlmForCausalLM", "Glm4ForCausalLM"].contains(&name);
        let half = glm || name == "Glm4MoeForCausalLM";
        assert_eq!(config.fused_gate_up, glm, "{name}");
        assert_eq!(config.output_norms.is_some(), name == "Glm4ForCausalLM", "{name}");
        assert_eq!(config.pairing, if glm { Pairing::Interleaved } else { Pairing::Half }, "{name}");
        let wide = glm || ["Qwen3ForCausalLM", "Ministral3ForCausalLM"].contains(&name);
        assert_eq!(config.head_dim, if wide { 128 } else { 8 }, "{name}, silent");
        assert_eq!(config.rotary_dims, if half { config.head_dim / 2 } else { config.head_dim }, "{name}");
        assert_eq!(config.experts.is_some(), name.contains("Moe"), "{name}");
        assert_eq!(config.qk_norm, name.starts_with("Qwen3"), "{name}");
    }
}

#[test]
fn a_sliding_window_counts_where_it_is_active() {
    let windows = |name: &str, changes: &[(&str, Value)]| family(name, changes).windows;
    let window = |name: &str, changes: &[(&str, Value)]| windows(name, changes).map(|windows| windows.tokens);
    let (on, size) = (("use_sliding_window", json!(true)), ("sliding_window", json!(64)));
    let sized = std::slice::from_ref(&size);
    assert_eq!(window("MistralForCausalLM", sized), Some(64));
    assert_eq!(window("MistralForCausalLM", &[("sliding_window", Value::Null)]), None);
    assert_eq!(window("MistralForCausalLM", &[]), Some(4096), "Hugging Face's default");
    for wrong in [json!("unstated"), json!(0), json!(false)] {
        let changes = [("architectures", json!(["MistralForCausalLM"])), ("sliding_window", wrong.clone())];
        let error = parse(&changes).expect_err("no number of tokens").to_string();
        assert!(error.contains(&format!("sliding_window {wrong} is not a number of tokens")), "{error}");
    }
    assert_eq!(window("LlamaForCausalLM", &[size.clone(), on.clone()]), None, "Llama has none");
    let rope = ("rope_parameters", json!({"rope_type": "default"}));
    assert_eq!(window("Ministral3ForCausalLM", &[size.clone(), rope.clone()]), Some(64));
    assert_eq!(window("Ministral3ForCausalLM", &[rope]), None, "no default");
    for qwen in ["Qwen2ForCausalLM", "Qwen3ForCausalLM"] {
        assert_eq!(window(qwen, sized), None, "not switched on");
        assert_eq!(window(qwen, &[size.clone(), on.clone()]), None, "from layer 28 on");
        let from = |layer: usize| ("max_window_layers", json!(layer));
        assert_eq!(window(qwen, &[size.clone(), on.clone(), from(2)]), Some(64), "the third layer slides");
        assert_eq!(window(qwen, &[size.clone(), on.clone(), from(3)]), None, "no layer is left to slide");
        let types = |kind: &str| ("layer_types", json!(["full_attention", kind, "full_attention"]));
        assert_eq!(window(qwen, &[size.clone(), on.clone(), types("full_attention")]), None);
        assert_eq!(window(qwen, &[size.clone(), on.clone(), types("sliding_attention")]), Some(64));
    }
}

/// Qwen3-30B-A3B's published numbers.
#[test]
fn experts_are_counted() {
    let config = family(
        "Qwen3MoeForCausalLM",
        &[
            ("hidden_size", json!(2048)),
            ("intermediate_size", json!(6144)),
            ("num_hidden_layers", json!(48)),
            ("num_attention_heads", json!(32)),
            ("num_key_value_heads", json!(4)),
            ("head_dim", json!(128)),
            ("vocab_size", json!(151_936)),
            ("num_experts", json!(128)),
            ("num_experts_per_tok", json!(8)),
            ("moe_intermediate_size", json!(768)),
            ("mlp_only_layers", json!([])),
        ],
    );
    // 30 532 122 624 less the norms of heads.
    assert_eq!(config.parameters(), 30_532_122_624 - 48 * 2 * 128);
    assert_eq!(config.mlp_width(), 8 * 768 + 42);
    let changes = [
        ("architectures", json!(["Qwen3MoeForCausalLM"])),
        ("hidden_size", json!(1 << 20)),
        ("num_experts", json!(4096)),
        ("num_experts_per_tok", json!(8)),
        ("moe_intermediate_size", json!(1 << 20)),
    ];
    let error = parse(&changes).expect_err("10^16 numbers").to_string();
    assert!(error.contains("4096 experts of width 1048576 in 3 layers: too many numbers"), "{error}");
}

#[test]
fn queries_grow_if_a_config_says_so() {
    let rope = |changes: &[(&str, Value)]| {
        let mut rope = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16});
        changes.iter().for_each(|(key, value)| rope[*key] = value.clone());
        rope
    };
    let beta = rope(&[("llama_4_scaling_beta", json!(0.5))]);
    let growth = family("Ministral3ForCausalLM", &[("rope_parameters", beta.clone())]).query_growth.expect("it grows");
    assert_eq!([0, 15, 16, 31, 48].map(|position| growth.factor(position)), {
        let of = |ln: f64| (1.0 + 0.5 * ln.ln()) as f32;
        [1.0, 1.0, of(2.0), of(2.0), of(4.0)]
    });
    assert_eq!(family("Ministral3ForCausalLM", &[("rope_parameters", rope(&[]))]).query_growth, None);
    assert_eq!(family("MistralForCausalLM", &[("rope_parameters", beta)]).query_growth, None, "not this family's");
    let whole = rope(&[("llama_4_scaling_beta", json!(0.5)), ("original_max_position_embeddings", json!(16.0))]);
    let also = family("Ministral3ForCausalLM", &[("rope_parameters", whole)]).query_growth;
    assert_eq!(also, Some(growth), "16.0 is 16");
    for (wrong, said) in [
        (vec![], "rope_parameters are missing"),
        (
            vec![("rope_parameters", rope(&[("original_max_position_embeddings", json!(16.5))]))],
            "16.5: must be a number",
        ),
    ] {
        let changes = [&[("architectures", json!(["Ministral3ForCausalLM"]))][..], &wrong].concat();
        let error = parse(&changes).expect_err("no growth").to_string();
        assert!(error.contains(said), "{error}");
    }
    {
        let wrong = rope(&[("llama_4_scaling_beta", json!(-1.0))]);
        let changes = [("architectures", json!(["Ministral3ForCausalLM"])), ("rope_parameters", wrong)];
        let error = parse(&changes).expect_err("a shrinking query").to_string();
        assert!(error.contains("llama_4_scaling_beta -1"), "{error}");
    }
}

#[test]
fn a_model_of_text_and_pictures_has_a_text_part() {
    let name = ("architectures", json!(["Mistral3ForConditionalGeneration"]));
    let error = parse(std::slice::from_ref(&name)).expect_err("no text part").to_string();
    assert!(error.contains("lacks `text_config`"), "{error}");
    let mut text = kit::config();
    (text["architectures"], text["model_type"]) = (Value::Null, json!("mistral"));
    let whole = [name, ("text_config", text), ("eos_token_id", json!(7)), ("tie_word_embeddings", json!(true))];
    let config = parse(&whole).expect("a text part");
    assert_eq!((&*config.architecture, &*config.eos), ("Mistral3ForConditionalGeneration", &[7][..]));
    assert!(config.tied_embeddings, "stated for the whole");
}

#[test]
fn yarn_stretches_the_positions() {
    let yarn = json!({ "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512 });
    let config = parse(&[("rope_scaling", yarn)]).expect("YaRN");
    assert_eq!(config.max_positions, 2048);
    assert!(matches!(config.rope_scaling, RopeScaling::Yarn { attention_factor: None, .. }));
    let linear = json!({ "rope_type": "linear", "factor": 4.0 });
    assert_eq!(parse(&[("rope_scaling", linear)]).expect("linear").max_positions, 512);
}

#[test]
fn an_answer_ends_at_what_either_config_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = kit::config();
    config["eos_token_id"] = json!([5, 6]);
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    assert_eq!(Config::read(folder.path()).expect("read").eos, [5, 6]);
    let generation = folder.path().join("generation_config.json");
    std::fs::write(&generation, r#"{"eos_token_id": 7}"#).expect("written");
    assert_eq!(Config::read(folder.path()).expect("read").eos, [5, 6, 7]);
    std::fs::write(&generation, "{}").expect("written");
    assert_eq!(Config::read(folder.path()).expect("read").eos, [5, 6]);
    std::fs::write(&generation, "{").expect("written");
    let error = Config::read(folder.path()).expect_err("no JSON");
    assert!(error.to_string().contains("generation_config.json"), "{error}");
    assert_eq!(error.exit_code(), 64);
}

#[test]
fn a_model_is_known_by_its_type_where_no_architecture_is_named() {
    let typed = |kind: Value, architectures: Value| parse(&[("model_type", kind), ("architectures", architectures)]);
    for (kind, name) in [("qwen2", "Qwen2ForCausalLM"), ("glm4", "Glm4ForCausalLM"), ("llama", "LlamaForCausalLM")] {
        for architectures in [Value::Null, json!([])] {
            assert_eq!(typed(json!(kind), architectures).expect("known").architecture, name);
        }
    }
    let error = typed(json!("mamba"), Value::Null).expect_err("another type").to_string();
    assert!(error.contains("`mamba` is not supported; supported are LlamaForCausalLM"), "{error}");
    let error = typed(Value::Null, Value::Null).expect_err("no type").to_string();
    assert!(error.contains("neither `architectures` nor `model_type` is there"), "{error}");
    let error = typed(json!("a\u{1b}[31m"), Value::Null).expect_err("another type").to_string();
    assert!(!error.contains('\u{1b}'), "{error:?}");
}

#[test]
fn two_places_that_say_the_same_agree_or_are_refused_with_both_values() {
    let theta = |config: Result<Config>| config.expect("agreed").rope_theta;
    let linear = json!({ "type": "linear", "factor": 2.0 });
    let parameters = |theta: f64| json!({ "rope_type": "linear", "factor": 2, "rope_theta": theta });
    let both =
        parse(&[("rope_theta", json!(7)), ("rope_scaling", linear.clone()), ("rope_parameters", parameters(7.0))]);
    let both = both.expect("they agree");
    assert_eq!((both.rope_theta, both.rope_scaling), (7.0, RopeScaling::Linear { factor: 2.0 }));
    assert_eq!(theta(parse(&[("rope_theta", Value::Null), ("rope_parameters", parameters(9.0))])), 9.0);
    assert_eq!(theta(parse(&[("rope_theta", json!(8.0)), ("rope_scaling", linear.clone())])), 8.0);
    let refused = [
        (
            vec![("rope_theta", json!(8.0)), ("rope_parameters", parameters(9.0))],
            "rope_theta 8.0 and rope_parameters.rope_theta 9.0",
        ),
        (
            vec![
                ("rope_scaling", json!({ "type": "linear", "factor": 3.0 })),
                ("rope_theta", json!(9.0)),
                ("rope_parameters", parameters(9.0)),
            ],
            "rope_scaling.factor 3.0 and rope_parameters.factor 2",
        ),
        (
            vec![("rope_scaling", linear), ("rope_parameters", json!({ "rope_type": "default" }))],
            "rope_scaling.type \"linear\" and rope_parameters.rope_type \"default\"",
        ),
        (
            vec![("dtype", json!("float32")), ("torch_dtype", json!("bfloat16"))],
            "dtype \"float32\" and torch_dtype \"bfloat16\"",
        ),
    ];
    for (changes, message) in refused {
        let error = parse(&changes).expect_err(message);
        assert!(error.to_string().contains(message) && error.to_string().contains("contradict"), "{error}");
        assert_eq!(error.exit_code(), 64);
    }
}

#[test]
fn only_regular_files_are_read_and_a_byte_order_mark_is_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.json");
    std::fs::write(&path, format!("\u{feff}{}", kit::config())).expect("written");
    Config::read(folder.path()).expect("read");
    let link = |target: &str| {
        std::fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink(target, &path).expect("a link");
        Config::read(folder.path()).map(|_| ()).map_err(|error| error.to_string())
    };
    for device in ["/dev/zero", "/dev/null", "/"] {
        let error = link(device).expect_err("no regular file");
        assert!(error.contains("no regular file"), "{device}: {error}");
    }
    std::fs::write(folder.path().join("blob"), kit::config().to_string()).expect("written");
    link("blob").expect("a link to a regular file");
    std::fs::remove_file(&path).expect("removed");
    std::fs::write(&path, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n").expect("written");
    let error = Config::read(folder.path()).expect_err("a pointer").to_string();
    assert!(error.contains("Git LFS pointer"), "{error}");
}

#[test]
fn configs_that_cannot_run_say_why() {
    let without = |key: &str| {
        let mut config = kit::config();
        config.as_object_mut().expect("an object").remove(key);
        Config::parse(&config.to_string(), Path::new("config.json"))
    };
    let table = [
        (without("rms_norm_eps"), "missing field `rms_norm_eps`"),
        (parse(&[("architectures", json!(["MambaForCausalLM"]))]), "architecture `MambaForCausalLM` is not supported"),
        (parse(&[("hidden_act", json!("gelu"))]), "hidden_act `gelu` is not supported; `silu` is"),
        (parse(&[("num_key_value_heads", json!(3))]), "4 is not a multiple of num_key_value_heads 3"),
        (parse(&[("num_hidden_layers", json!(0))]), "a size is 0"),
        (parse(&[("vocab_size", json!(1u64 << 40))]), "a size is 1099511627776; the maximum is 1048576"),
        (parse(&[("hidden_size", json!("wide"))]), "invalid type: string"),
        (parse(&[("rope_scaling", json!({ "type": "dynamic", "factor": 2.0 }))]), "no chunk can be reused"),
        (parse(&[("rope_scaling", json!({ "rope_type": "longrope" }))]), "rope_scaling `longrope` is not supported"),
        (parse(&[("rope_scaling", json!({ "rope_type": "linear" }))]), "rope_scaling `linear` lacks `factor`"),
        (parse(&[("head_dim", json!(15))]), "head_dim 15: rotary embeddings rotate pairs"),
        (parse(&[("rope_theta", json!(0.0))]), "rope theta 0: must be a positive number"),
        (parse(&[("rope_theta", json!(-5.0))]), "rope theta -5"),
        (parse(&[("rope_scaling", json!({ "rope_type": "linear", "factor": 0.0 }))]), "rope factor 0"),
        (parse(&[("rope_scaling", json!({ "rope_type": "yarn", "factor": 1e300 }))]), "rope factor 1"),
        (parse(&[("rms_norm_eps", json!(-1.0))]), "rms_norm_eps -1: must be from 0 to 1"),
        (parse(&[("max_position_embeddings", json!(0))]), "max_position_embeddings is 0"),
        (parse(&[("partial_rotary_factor", json!(1.5))]), "partial_rotary_factor: "),
        (Config::parse("{", Path::new("config.json")), "EOF while parsing"),
        (Config::read(Path::new("no/such/folder")), "cannot read no/such/folder/config.json"),
    ];
    for (found, message) in table {
        let error = found.expect_err(message);
        assert!(error.to_string().contains(message), "{error} for {message}");
        assert!(error.to_string().contains("config.json"), "{error} names no file");
        assert_eq!(error.exit_code(), 64, "{error}");
    }
}

#[test]
fn layers_take_turns_in_having_a_window() {
    let rope = ("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}));
    let experts = [("num_local_experts", json!(4)), ("num_experts_per_tok", json!(2))];
    let oss = |changes: &[(&str, Value)]| {
        let named = ("architectures", json!(["GptOssForCausalLM"]));
        parse(&[&[named, rope.clone()][..], &experts, changes].concat())
    };
    let gemma = |changes: &[(&str, Value)]| {
        let named = ("architectures", json!(["Gemma3ForCausalLM"]));
        parse(&[&[named][..], changes].concat())
    };
    let of = |config: Result<Config>| {
        let windows = config.expect("a right config").windows.expect("windows");
        (windows.tokens, windows.in_layer)
    };
    let types = |kinds: &[&str]| ("layer_types", json!(kinds));
    let (full, sliding) = ("full_attention", "sliding_attention");
    assert_eq!(of(oss(&[])), (128, vec![true, false, true]), "the family's own");
    assert_eq!(of(gemma(&[])), (4096, vec![true; 3]), "of six layers the last sees all");
    assert_eq!(of(gemma(&[("sliding_window_pattern", json!(2))])), (4096, vec![true, false, true]));
    assert_eq!(
        of(gemma(&[types(&[full, full, sliding]), ("sliding_window", json!(9))])),
        (9, vec![false, false, true])
    );
    assert_eq!(gemma(&[types(&[full; 3])]).expect("a right config").windows, None);
    for (changes, said) in [
        (vec![types(&[full; 2])], "layer_types has 2 entries; num_hidden_layers is 3"),
        (vec![types(&[full, full, "chunked_attention"])], "layer_types `chunked_attention` is not supported"),
        (vec![("sliding_window", Value::Null)], "sliding_window is null, and layer_types has sliding_attention"),
        (vec![("sliding_window_pattern", json!(0))], "sliding_window_pattern is 0"),
        (vec![("sliding_window", json!(-3))], "sliding_window -3 is not a number of tokens"),
    ] {
        for parse in [&oss as &dyn Fn(&[(&str, Value)]) -> Result<Config>, &gemma] {
            let error = parse(&changes).expect_err(said);
            assert!(error.to_string().contains(said), "{error}");
            assert_eq!(error.exit_code(), 64);
        }
    }
}

#[test]
fn layers_with_a_window_have_frequencies_of_their_own() {
    let gemma = |changes: &[(&str, Value)]| family("Gemma3ForCausalLM", changes);
    let silent = gemma(&[]);
    assert_eq!((silent.rope_theta, silent.window_rope_theta), (1e6, Some(1e4)));
    assert_eq!((silent.query_scalar, silent.head_dim, silent.tied_embeddings), (Some(256.0), 256, true));
    let scaled = json!({"rope_type": "linear", "factor": 8.0});
    let old = gemma(&[("rope_scaling", scaled), ("rope_local_base_freq", json!(500.0)), ("rope_theta", json!(2e6))]);
    let new = gemma(&[
        (
            "rope_parameters",
            json!({"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}),
        ),
        ("rope_theta", Value::Null),
    ]);
    for config in [old, new] {
        assert_eq!((config.rope_theta, config.window_rope_theta), (2e6, Some(500.0)));
        assert_eq!(config.rope_scaling, RopeScaling::Linear { factor: 8.0 });
    }
    for (changes, said) in [
        (("final_logit_softcapping", json!(30.0)), "soft-capped logits are not supported"),
        (("use_bidirectional_attention", json!(true)), "use_bidirectional_attention is not supported"),
        (("hidden_activation", json!("gelu")), "hidden_activation `gelu` is not supported"),
        (("query_pre_attn_scalar", json!(0)), "must be a positive number"),
        (("rope_parameters", json!({"sliding_attention": {"rope_type": "linear"}})), "in layers with a window"),
        (("quantization_config", json!({"quant_method": "mxfp4"})), "`mxfp4` is not supported"),
    ] {
        let changes = [("architectures", json!(["Gemma3ForCausalLM"])), changes];
        let error = parse(&changes).expect_err(said);
        assert!(error.to_string().contains(said) && error.exit_code() == 64, "{error}");
    }
}

#[test]
fn quantisations_that_are_not_read_are_refused_by_name() {
    let group =
        |format: &str, bits: u32| json!({"g": {"format": format, "weights": {"num_bits": bits, "type": "int"}}});
    for (said, stated) in [
        ("quantization_config of `` is not supported", json!({"bits": 4})),
        ("quantization_config of `bitsandbytes` is not supported", json!({"quant_method": "bitsandbytes"})),
        ("fp8 of fmt `e5m2`", json!({"quant_method": "fp8", "fmt": "e5m2"})),
        ("weight_block_size [128]: must be two sizes", json!({"quant_method": "fp8", "weight_block_size": [128]})),
        ("weight_block_size [0,128]: must", json!({"quant_method": "fp8", "weight_block_size": [0, 128]})),
        ("\"awq\" of 8 bits is not supported", json!({"quant_method": "awq", "bits": 8})),
        ("awq of version `gemv`", json!({"quant_method": "awq", "bits": 4, "version": "gemv"})),
        ("\"gptq\" of 3 bits is not supported", json!({"quant_method": "gptq", "bits": 3})),
        ("checkpoint_format `marlin`", json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"})),
        (
            "compressed-tensors of format `marlin-24`",
            json!({"quant_method": "compressed-tensors", "config_groups": group("marlin-24", 4)}),
        ),
        (
            "compressed-tensors of 8 bits in format pack-quantized",
            json!({"quant_method": "compressed-tensors", "config_groups": group("pack-quantized", 8)}),
        ),
        ("compressed-tensors without config_groups", json!({"quant_method": "compressed-tensors"})),
        ("`frozen`", json!({"quant_method": "compressed-tensors", "quantization_status": "frozen"})),
        ("transform_config", json!({"quant_method": "compressed-tensors", "transform_config": {"a": {}}})),
        (
            "sparsity_config",
            json!({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}),
        ),
        ("gguf of type `IQ1_S`", json!({"quant_method": "gguf", "type": "IQ1_S"})),
    ] {
        let error = parse(&[("quantization_config", stated)]).expect_err(said);
        assert!(error.to_string().contains(said) && error.exit_code() == 64, "{error}");
    }
}
