//! Configs of models of text and pictures: both ways of writing them, published sizes, and what is
//! refused.

use std::path::Path;

use serde_json::{Value, json};

use super::{TowerConfig, axes};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::picture_kit::{RECORDED, folder, json as recorded_json};

fn parse(config: &Value) -> Result<Config> {
    Config::parse(&config.to_string(), Path::new("config.json"))
}

/// The config of a recorded model written in the other way: text fields nested or on top.
fn written_otherwise(mut config: Value) -> Value {
    const OF_WHOLE: [&str; 7] = [
        "architectures",
        "model_type",
        "vision_config",
        "image_token_id",
        "video_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
    ];
    let fields = config.as_object_mut().expect("an object");
    if let Some(mut text) = fields.remove("text_config") {
        let text = text.as_object_mut().expect("an object");
        text.remove("model_type");
        fields.append(text);
        return config;
    }
    let names: Vec<String> = fields.keys().filter(|name| !OF_WHOLE.contains(&name.as_str())).cloned().collect();
    let mut text: serde_json::Map<String, Value> =
        names.into_iter().map(|name| (name.clone(), fields.remove(&name).expect("there"))).collect();
    // Newer writers give the rotary settings one object.
    let mut rope = text.remove("rope_scaling").expect("rotary settings");
    rope["rope_type"] = rope["type"].take();
    rope.as_object_mut().expect("an object").remove("type");
    rope["rope_theta"] = text.remove("rope_theta").expect("a base");
    text.insert("rope_parameters".to_owned(), rope);
    fields.insert("text_config".to_owned(), text.into());
    config
}

#[test]
fn both_ways_of_writing_a_config_say_the_same() {
    for name in RECORDED {
        let config = recorded_json(name, "config.json");
        let found = parse(&config).expect("a config");
        assert!(found.vision.is_some() && found.rope_axes.is_some(), "{name}");
        assert_eq!(parse(&written_otherwise(config.clone())).expect("a config"), found, "{name}");
        assert_eq!(config["architectures"][0], found.architecture, "{name}");
    }
    let [third, second] = RECORDED.map(|name| parse(&recorded_json(name, "config.json")).expect("a config"));
    assert!(third.qk_norm && !third.qkv_bias && second.qkv_bias && !second.qk_norm);
    assert_eq!(third.rope_axes.as_deref(), Some(&[0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 0, 0][..]));
    assert_eq!(second.rope_axes.as_deref(), Some(&[0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2][..]));
    let marks = third.vision.expect("a tower").marks;
    assert_eq!((marks.picture, marks.start, marks.end, marks.video), (261, 259, 260, Some(262)));
    let tower = second.vision.expect("a tower").tower;
    assert_eq!(tower, TowerConfig::Qwen25 { window: 2, sees_whole: vec![false, true, false, true] });
}

/// The sections of published models.
#[test]
fn axes_of_published_models() {
    let interleaved = axes([24, 20, 20], 64, true).expect("Qwen3-VL's");
    let time: Vec<usize> = (0..64).filter(|&pair| interleaved[pair] == 0).collect();
    assert_eq!(time, (0..60).step_by(3).chain(60..64).collect::<Vec<_>>());
    assert_eq!(interleaved[..6], [0, 1, 2, 0, 1, 2]);
    assert_eq!(interleaved.iter().filter(|&&axis| axis == 2).count(), 20);
    let runs = axes([16, 24, 24], 64, false).expect("Qwen2.5-VL's");
    assert_eq!([0, 15, 16, 39, 40, 63].map(|pair| runs[pair]), [0, 0, 1, 1, 2, 2]);
    assert!(axes([16, 24, 23], 64, false).expect_err("63 of 64").contains("must sum to the 64 pairs"));
    assert!(axes([usize::MAX, 2, 1], 2, false).is_err());
    assert!(axes([4, 8, 4], 16, true).expect_err("8 of 16").contains("a third at most"));
}

#[test]
fn tied_embeddings_may_be_stated_for_the_whole() {
    for name in RECORDED {
        let mut config = recorded_json(name, "config.json");
        config["tie_word_embeddings"] = json!(true);
        assert!(parse(&config).expect("a config").tied_embeddings, "{name}");
        let mut nested = if config["text_config"].is_null() { written_otherwise(config) } else { config };
        nested["tie_word_embeddings"] = json!(true);
        nested["text_config"]["tie_word_embeddings"] = json!(false);
        assert!(parse(&nested).expect("a config").tied_embeddings, "{name}: the whole decides");
    }
}

/// YaRN stretches a decoder of pictures as any other.
#[test]
fn other_types_of_rotary_scaling_keep_their_sections() {
    let mut config = recorded_json("qwen25vl-tiny", "config.json");
    config["rope_scaling"] = json!({ "type": "yarn", "mrope_section": [4, 6, 6], "factor": 4.0 });
    let found = parse(&config).expect("YaRN");
    assert!(found.rope_axes.is_some() && found.max_positions == 4 * 4096);
    config["rope_scaling"] = json!({ "type": "default", "rope_type": "default", "mrope_section": [4, 6, 6] });
    assert_eq!(parse(&config).expect("as transformers 4 writes it").rope_axes, found.rope_axes);
}

#[test]
fn configs_that_cannot_run_say_why() {
    let changed = |name: &str, path: &[&str], value: Value| {
        let mut config = recorded_json(name, "config.json");
        let (last, before) = path.split_last().expect("a field");
        let object = before.iter().fold(&mut config, |config, key| &mut config[*key]);
        object[*last] = value;
        parse(&config)
    };
    let third = |path: &[&str], value: Value| changed("qwen3vl-tiny", path, value);
    let second = |path: &[&str], value: Value| changed("qwen25vl-tiny", path, value);
    let vision = |key: &'static str| ["vision_config", key];
    let rope = |key: &'static str| ["text_config", "rope_scaling", key];
    let table = [
        (third(&rope("mrope_section"), Value::Null), "lacks `mrope_section`"),
        (third(&rope("mrope_section"), json!([8, 4])), "must be three numbers"),
        (third(&rope("mrope_section"), json!([8, 4, -4])), "must be three numbers"),
        (third(&rope("mrope_section"), json!([8, 4, 5])), "must sum to the 16 pairs"),
        (third(&rope("mrope_interleaved"), json!(false)), "mrope_interleaved false"),
        (second(&["rope_scaling", "mrope_interleaved"], json!(true)), "mrope_interleaved true"),
        (third(&["vision_config"], Value::Null), "vision_config: invalid type: null"),
        (third(&vision("depth"), Value::Null), "vision_config: invalid type: null"),
        (third(&vision("patch_size"), json!(0)), "a size is 0"),
        (third(&vision("intermediate_size"), json!(1u64 << 40)), "the maximum is 65536"),
        (third(&vision("patch_size"), json!(257)), "a size is 257; the maximum is 256"),
        (third(&vision("temporal_patch_size"), json!(17)), "a size is 17; the maximum is 16"),
        (third(&vision("num_heads"), json!(3)), "hidden_size 32 is not a multiple of 4 times num_heads 3"),
        (third(&vision("out_hidden_size"), json!(32)), "out_hidden_size 32 and the text's hidden_size 64"),
        (third(&vision("in_channels"), json!(1)), "1 channels are not supported"),
        (second(&vision("in_chans"), json!(4)), "4 channels are not supported"),
        (third(&vision("hidden_act"), json!("gelu")), "hidden_act `gelu` is not supported; `gelu_pytorch_tanh` is"),
        (second(&vision("hidden_act"), json!("gelu")), "hidden_act `gelu` is not supported; `silu` is"),
        (third(&vision("num_position_embeddings"), json!(60)), "num_position_embeddings 60: must be a square"),
        (third(&vision("num_position_embeddings"), Value::Null), "lacks `num_position_embeddings`"),
        (third(&vision("deepstack_visual_indexes"), json!([0, 2, 5])), "must rise below depth 5"),
        (third(&vision("deepstack_visual_indexes"), json!([2, 0])), "must rise"),
        (third(&vision("deepstack_visual_indexes"), Value::Null), "lacks `deepstack_visual_indexes`"),
        (second(&vision("window_size"), json!(27)), "window_size 27: must be from 28 pixels"),
        (second(&vision("window_size"), Value::Null), "lacks `window_size`"),
        (second(&vision("fullatt_block_indexes"), json!([4])), "fullatt_block_indexes 4: must be below depth 4"),
        (second(&vision("fullatt_block_indexes"), Value::Null), "lacks `fullatt_block_indexes`"),
        (third(&["image_token_id"], Value::Null), "`image_token_id` is missing"),
        (third(&["image_token_id"], json!(272)), "image_token_id 272: must be a token of 272"),
        (third(&["vision_end_token_id"], json!(259)), "token 259 stands for two marks"),
        (third(&["text_config", "hidden_act"], json!("gelu")), "hidden_act `gelu`"),
    ];
    for (found, message) in table {
        let error = found.expect_err(message);
        assert!(error.to_string().contains(message), "{error} for {message}");
        assert!(error.to_string().contains("config.json"), "{error} names no file");
        assert_eq!(error.exit_code(), 64, "{error}");
    }
    let mut windows = recorded_json("qwen25vl-tiny", "config.json");
    (windows["use_sliding_window"], windows["max_window_layers"]) = (json!(true), json!(1));
    let error = parse(&windows).expect_err("windows").to_string();
    assert!(error.contains("sliding windows in a decoder of pictures"), "{error}");
}

/// A copy of the files beside the weights of a recorded model, with other files.
fn with_files(name: &str, files: &[(&str, Option<Value>)]) -> Result<Config> {
    let copy = tempfile::tempdir().expect("a folder");
    for file in ["config.json", "preprocessor_config.json"] {
        std::fs::copy(folder(name).join(file), copy.path().join(file)).expect("copied");
    }
    for (file, value) in files {
        let path = copy.path().join(file);
        match value {
            Some(value) => std::fs::write(path, value.to_string()).expect("written"),
            None => std::fs::remove_file(path).expect("removed"),
        }
    }
    Config::read(copy.path())
}

#[test]
fn pictures_become_numbers_as_the_files_beside_a_config_say() {
    const FILE: &str = "preprocessor_config.json";
    let of = |found: Result<Config>| found.expect("a config").vision.expect("a tower").preprocessing;
    for name in RECORDED {
        let stated = recorded_json(name, FILE);
        let found = of(with_files(name, &[]));
        assert_eq!(json!(found.mean), stated["image_mean"], "{name}");
        assert_eq!(json!(found.std), stated["image_std"], "{name}");
        let least = if stated["size"].is_null() { &stated["min_pixels"] } else { &stated["size"]["shortest_edge"] };
        assert_eq!(json!(found.least_pixels), *least, "{name}");
        // Newer writers have one file for all processors.
        let newer = json!({ "processor_class": "Processor", "image_processor": stated });
        assert_eq!(of(with_files(name, &[(FILE, None), ("processor_config.json", Some(newer.clone()))])), found);
        assert_eq!(of(with_files(name, &[("processor_config.json", Some(newer.clone()))])), found);
        let mut other = newer;
        other["image_processor"]["image_mean"] = json!([0.1, 0.2, 0.3]);
        let error = with_files(name, &[("processor_config.json", Some(other))]).expect_err("two means").to_string();
        assert!(error.contains("processor_config.json") && error.contains("contradict"), "{error}");
        let of_text = with_files(name, &[("processor_config.json", Some(json!({ "chat_template": "" })))]);
        assert_eq!(of(of_text), found);
    }
    let published = of(with_files("qwen3vl-tiny", &[(FILE, None)]));
    assert_eq!((published.least_pixels, published.most_pixels, published.mean), (65536, 16_777_216, [0.5; 3]));
    assert_eq!(of(with_files("qwen25vl-tiny", &[(FILE, None)])).mean[0], 0.48145466);
}

#[test]
fn other_ways_of_reading_pictures_are_refused() {
    for (key, value, message) in [
        ("patch_size", json!(14), "patch_size 14 and 16 in config.json contradict each other"),
        ("merge_size", json!(3), "merge_size 3 and 2"),
        ("temporal_patch_size", json!(1), "temporal_patch_size 1 and 2"),
        ("image_mean", json!([0.5]), "image_mean [0.5]: must be three numbers"),
        ("image_std", json!([0.5, 0.0, 0.5]), "image_std [0.5,0.0,0.5]: must be three numbers"),
        ("min_pixels", json!(5000), "min_pixels 5000 and size.shortest_edge 4096 contradict each other"),
        ("size", json!({ "shortest_edge": "x" }), "must be a number of pixels"),
        ("size", json!({ "shortest_edge": 9, "longest_edge": 8 }), "min_pixels 9 is above max_pixels 8"),
        ("do_normalize", json!(false), "do_normalize false is not supported"),
        ("do_resize", json!(false), "do_resize false is not supported"),
        ("rescale_factor", json!(1), "rescale_factor 1 is not supported; 1/255 is"),
        ("resample", json!(2), "resample 2 is not supported; 3, bicubic, is"),
        ("image_processor_type", json!("CLIPImageProcessor"), "`CLIPImageProcessor` is not supported"),
    ] {
        let mut stated = recorded_json("qwen3vl-tiny", "preprocessor_config.json");
        stated[key] = value;
        let found = with_files("qwen3vl-tiny", &[("preprocessor_config.json", Some(stated))]);
        let error = found.expect_err(message);
        assert!(matches!(error, Error::Config { .. }) && error.exit_code() == 64, "{error}");
        assert!(error.to_string().contains(message), "{error} for {message}");
        assert!(error.to_string().contains("preprocessor_config.json"), "{error}");
    }
    let mut published = recorded_json("qwen3vl-tiny", "preprocessor_config.json");
    (published["rescale_factor"], published["resample"]) = (json!(0.003_921_568_627_450_98), json!(3));
    assert!(with_files("qwen3vl-tiny", &[("preprocessor_config.json", Some(published))]).is_ok());
}
