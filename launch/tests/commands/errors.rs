//! Bad input: one line with the error and its remedy, the exit code of its kind, no output and no
//! files.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use crate::kit::{copy_of_demo, demo, request, root, tributary};
use candle_core::{Device, Tensor, safetensors};
use tempfile::TempDir;

/// Runs `prefill` with its required options unless given, and checks the refusal.
fn refused(arguments: &[&str], exit_code: i32, says: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let dump = folder.path().join("dump").display().to_string();
    let mut all = vec!["prefill", "--dump", &dump];
    all.extend(arguments);
    let output = tributary(&all);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(exit_code), "{arguments:?}: {errors}");
    assert_eq!(errors.lines().count(), 1, "{arguments:?}: {errors}");
    for part in says {
        assert!(errors.contains(part), "{arguments:?}: `{part}` is not in: {errors}");
    }
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert!(!Path::new(&dump).exists(), "{arguments:?}: something was written");
}

fn refused_request(changes: &[&str], exit_code: i32, says: &[&str]) {
    let (demo, request) = (demo(), request("hop2-0"));
    let mut all = vec!["--model", &demo, "--request", &request];
    all.extend(changes);
    refused(&all, exit_code, says);
}

fn refused_model(folder: &TempDir, exit_code: i32, says: &[&str]) {
    let (path, request) = (folder.path().display().to_string(), request("hop2-0"));
    refused(&["--model", &path, "--request", &request], exit_code, says);
}

fn change_weights(folder: &TempDir, change: impl FnOnce(&mut HashMap<String, Tensor>)) {
    let path = folder.path().join("model.safetensors");
    let mut tensors = safetensors::load(&path, &Device::Cpu).expect("the demo's weights");
    change(&mut tensors);
    safetensors::save(&tensors, &path).expect("changed weights");
}

fn change_config(folder: &TempDir, change: impl FnOnce(&mut serde_json::Value)) {
    let path = folder.path().join("config.json");
    let text = std::fs::read_to_string(&path).expect("the demo's config");
    let mut config = serde_json::from_str(&text).expect("JSON");
    change(&mut config);
    std::fs::write(path, config.to_string()).expect("a changed config");
}

#[test]
fn a_model_folder_that_is_none() {
    let request = request("hop2-0");
    refused(&["--model", "/no/such/model", "--request", &request], 64, &["/no/such/model", "No such file"]);
    let file = root().join("LICENSE-MIT").display().to_string();
    refused(&["--model", &file, "--request", &request], 64, &["LICENSE-MIT", "config.json"]);
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        let folder = copy_of_demo();
        std::fs::remove_file(folder.path().join(name)).expect("it was there");
        refused_model(&folder, 64, &[name, "No such file"]);
    }
}

#[test]
fn a_config_that_cannot_run() {
    let folder = copy_of_demo();
    change_config(&folder, |config| config["architectures"] = serde_json::json!(["MambaForCausalLM"]));
    refused_model(&folder, 64, &["MambaForCausalLM", "LlamaForCausalLM", "Qwen3ForCausalLM", "Glm4ForCausalLM"]);
    let folder = copy_of_demo();
    change_config(&folder, |config| {
        config["rope_scaling"] = serde_json::json!({"rope_type": "dynamic", "factor": 2.0})
    });
    refused_model(&folder, 64, &["dynamic", "yarn"]);
    let folder = copy_of_demo();
    std::fs::write(folder.path().join("config.json"), "{ \"hidden_size\": 1,").expect("written");
    refused_model(&folder, 64, &["config.json"]);
}

#[test]
fn weights_that_are_damaged() {
    let folder = copy_of_demo();
    change_weights(&folder, |tensors| {
        tensors.remove("model.layers.3.mlp.up_proj.weight");
    });
    refused_model(&folder, 65, &["model.layers.3.mlp.up_proj.weight", "[256, 128]"]);

    let folder = copy_of_demo();
    change_weights(&folder, |tensors| {
        let short = tensors["lm_head.weight"].narrow(0, 0, 377).and_then(|head| head.contiguous()).expect("a part");
        tensors.insert("lm_head.weight".to_owned(), short);
    });
    refused_model(&folder, 65, &["lm_head.weight", "[378, 128]", "[377, 128]"]);

    for bytes in [0, 5, 100, 4000, 3_000_000] {
        let folder = copy_of_demo();
        let path = folder.path().join("model.safetensors");
        let whole = std::fs::read(&path).expect("the demo's weights");
        std::fs::write(&path, &whole[..bytes]).expect("a truncated file");
        refused_model(&folder, 65, &["model.safetensors"]);
    }

    let folder = copy_of_demo();
    std::fs::write(folder.path().join("model.safetensors"), u64::MAX.to_le_bytes()).expect("an absurd header");
    refused_model(&folder, 65, &["model.safetensors", "header"]);
}

#[test]
fn weights_that_give_no_numbers() {
    let folder = copy_of_demo();
    change_weights(&folder, |tensors| {
        let nan = (tensors["model.norm.weight"].clone() * f64::NAN).expect("not a number");
        tensors.insert("model.norm.weight".to_owned(), nan);
    });
    refused_model(&folder, 65, &["logits", "NaN"]);
    let (path, request) = (folder.path().display().to_string(), request("hop2-0"));
    refused(&["--model", &path, "--request", &request, "--world", "3", "--method", "ring"], 65, &["NaN", "rank 0"]);
}

#[test]
fn a_request_that_is_none() {
    let demo = demo();
    refused(&["--model", &demo], 64, &["no documents", "--documents"]);
    refused_request(&["--query", " "], 64, &["query"]);
    refused(&["--model", &demo, "--request", "/no/such.json"], 64, &["/no/such.json"]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let broken = file("broken.json", "{\"documents\": [\n\"a cat\", }");
    refused(&["--model", &demo, "--request", &broken], 64, &["broken.json", "line 2"]);
    let none = file("none.json", "{\"documents\": [], \"query\": \"a cat\"}");
    refused(&["--model", &demo, "--request", &none], 64, &["document"]);
    let empty = file("empty.json", "{\"documents\": [\"  \", \"  \"], \"query\": \"a cat\"}");
    refused(&["--model", &demo, "--request", &empty], 64, &["document 1 of 2 is empty"]);
    let text = file("text.txt", "a cat walks .");
    refused(&["--model", &demo, "--documents", &text], 64, &["query"]);
    refused(&["--model", &demo, "--documents", "/no/text", "--query", "a cat"], 64, &["/no/text"]);
    let long = file("long.txt", &"a cat walks . ".repeat(2000));
    refused(&["--model", &demo, "--documents", &long, "--query", "a cat"], 64, &["8003", "4096"]);
}

#[test]
fn settings_that_cannot_be() {
    refused_request(&["--ratio", "1.5"], 64, &["1.5", "0 to 1"]);
    refused_request(&["--ratio=-0.1"], 64, &["-0.1", "0 to 1"]);
    refused_request(&["--ratio", "-0.1"], 64, &["-0.1", "0 to 1"]);
    refused_request(&["--temperature", "-1"], 64, &["-1", "0 or more"]);
    refused_request(&["--ratio", "nan"], 64, &["0 to 1"]);
    refused_request(&["--world", "0"], 64, &["--world", "at least 1"]);
    refused_request(&["--threads", "0"], 64, &["--threads", "at least 1"]);
    refused_request(&["--max-tokens", "0"], 64, &["--max-tokens", "at least 1"]);
    refused_request(&["--method", "magic"], 64, &["magic", "full", "ring", "infoflow", "relay"]);
    refused_request(&["--method", "infoflow:layers=3..9"], 64, &["3..9", "5 layers"]);
    refused_request(&["--method", "infoflow:layers=3"], 64, &["FIRST..END"]);
    refused_request(&["--method", "infoflow:score=max"], 64, &["max", "norm", "mass"]);
    refused_request(&["--method", "infoflow:layout=flat"], 64, &["flat", "hl-tp"]);
    refused_request(&["--method", "infoflow:exchange=fast"], 64, &["fast", "pass-q"]);
    refused_request(&["--backend", "pigeon"], 64, &["pigeon", "local"]);
    refused_request(&["--chunk", "5:5"], 64, &["5"]);
    refused_request(&["--chunk", "0"], 64, &["0"]);
    refused_request(&["--image-tiles", "9"], 64, &["--image-tiles", "9", "8"]);
    refused_request(&["--tile-order", "columns"], 64, &["--tile-order", "columns", "raster"]);
    refused_request(&["--method", "epic", "--reorder"], 64, &["--reorder", "infoflow"]);
    refused_request(&["--method", "all-gather:heads=3"], 64, &["2 KV heads"]);
    refused_request(&["--synthetic", "2x2"], 64, &["--synthetic"]);
    refused_request(&["--colour", "red"], 64, &["--colour"]);
}

#[test]
fn sizes_beyond_all_measure() {
    let most = u64::MAX.to_string();
    refused_request(&["--world", &most], 64, &["--world", "at most 4096"]);
    refused_request(&["--threads", &most], 64, &["--threads", "at most 4096"]);
    refused_request(&["--world", "64", "--threads", "65"], 64, &["4160 threads", "at most 4096"]);
    refused_request(&["--max-tokens", &most], 64, &[&most, "4096"]);
    for option in ["--collective-timeout", "--start-timeout"] {
        for seconds in [most.as_str(), "2592001"] {
            refused_request(&[option, seconds], 64, &[option, seconds, "1..=2592000"]);
        }
    }
    for option in ["--chunk-cache", "--device-memory"] {
        refused_request(&[option, "17179869183GiB"], 64, &[option, "17179869183GiB", "at most 1073741824 GiB"]);
        refused_request(&[option, "99999999999TiB"], 64, &[option, "units are B, kB"]);
    }
    refused_request(&["--max-message-bytes", &most], 64, &["--max-message-bytes", "2147483647"]);
    let demo = demo();
    for shape in ["1000000000x1000000000", "1x18446744073709551615+18446744073709551615", "1x1+5000"] {
        refused(&["--model", &demo, "--synthetic", shape], 64, &[shape, "4096 positions"]);
    }
}

#[test]
fn random_tokens_are_not_cut() {
    let demo = demo();
    for [option, value] in [["--chunk", "5"], ["--image-tiles", "2"], ["--prefix", "none"], ["--template", "none"]] {
        refused(&["--model", &demo, "--synthetic", "2x9", option, value], 64, &["--synthetic", option]);
    }
}

#[test]
fn more_memory_than_there_is() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(
        folder.path().join("config.json"),
        serde_json::json!({
            "architectures": ["LlamaForCausalLM"], "vocab_size": 128_256, "hidden_size": 16_384,
            "intermediate_size": 53_248, "num_hidden_layers": 1260, "num_attention_heads": 128,
            "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 131_072,
        })
        .to_string(),
    )
    .expect("a config");
    let path = folder.path().display().to_string();
    let arguments = ["--model", &path, "--load-format", "dummy", "--synthetic", "4x512"];
    refused(&arguments, 71, &["memory", "GiB"]);
}

#[test]
fn a_gpu_that_is_not_there() {
    // With CUDA built in, the driver must show no device.
    let says = match tributary_kernels::cuda::count() {
        Err(tributary_kernels::Error::NotBuilt) => "this program was built without CUDA: build with `--features cuda`",
        _ => "--device cuda: ",
    };
    let arguments = ["prefill", "--model", &demo(), "--request", &request("hop2-0"), "--device", "cuda"];
    let output = Command::new(env!("CARGO_BIN_EXE_tributary")).args(arguments).env("CUDA_VISIBLE_DEVICES", "").output();
    let output = output.expect("the command starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{errors}");
    assert!(errors.lines().count() == 1 && errors.contains(says), "{errors}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_dump_that_cannot_be_written() {
    let (demo, request) = (demo(), request("hop2-0"));
    let output = tributary(&["prefill", "--model", &demo, "--request", &request, "--dump", &request]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{errors}");
    assert!(errors.contains("--dump") && errors.contains("folder"), "{errors}");
    assert!(output.stdout.is_empty());
}

#[test]
fn compare_refuses_in_the_same_way() {
    let (demo, request) = (demo(), request("hop2-0"));
    let base = ["compare", "--model", &demo, "--request", &request, "--methods"];
    let cases = [
        ("magic", "known are full"),
        ("infoflow:ratio=2", "0 to 1"),
        ("infoflow:colour=red", "unknown option"),
        ("ring:world=0", "at least 1"),
        ("epic:reorder", "makes no difference to this method"),
        ("infoflow:rato=0.1", "(`ratio`?); infoflow takes ratio, reorder"),
        ("infoflow:reorder=no", "takes no value"),
    ];
    for (method, says) in cases {
        let arguments: Vec<&str> = base.iter().copied().chain([method]).collect();
        let output = tributary(&arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{method}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{method}: {errors}");
        assert!(errors.contains(says), "{method}: {errors}");
    }
}

/// Flags and keys that were a method's own: one line says what to write instead.
#[test]
fn what_was_a_flag_of_a_method_is_told_as_its_option() {
    let instead = "it is an option of the method, which is written samkv:theta=SHARE";
    refused_request(&["--samkv-theta", "0.5"], 64, &["--samkv-theta", instead]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("options.toml");
    for text in ["samkv-theta = 0.5\n", "[prefill]\nsamkv-theta = 0.5\n"] {
        std::fs::write(&file, text).expect("written");
        refused_request(&["--config", &file.display().to_string()], 64, &["`samkv-theta`", instead, "line"]);
    }
}

#[test]
fn chunks_that_cannot_keep_what_is_asked() {
    for method in ["full", "ring", "star", "cacheblend", "kvshare", "ideal", "trace", "samkv", "ape"] {
        let spec = format!("{method}:keep-per-chunk=50%");
        refused_request(&["--method", &spec], 64, &[method, "keep-per-chunk", "makes no difference to this method"]);
    }
    let both = ["--method", "none:keep-per-chunk=50%:evict=snapkv:keep=32"];
    refused_request(&both, 64, &["keep-per-chunk", "50%", "does not go with"]);
    for (value, says) in [
        ("0", "must be at least 1 token"),
        ("0%", "must be above 0%"),
        ("120%", "at most 100%"),
        ("half", "no percentage"),
        ("[50%:laq]", "`laq` compresses no chunk; known are snapkv"),
    ] {
        let (demo, request, spec) = (demo(), request("hop2-0"), format!("none:keep-per-chunk={value}"));
        let output = tributary(&["prefill", "--model", &demo, "--request", &request, "--method", &spec]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), errors.lines().count()), (Some(64), 1), "{value}: {errors}");
        assert!(errors.contains(says), "{value}: {errors}");
    }
}

#[test]
fn budgets_that_cannot_be_kept() {
    let table: [(&[&str], &[&str]); 9] = [
        (&["--keep", "64"], &["--keep 64", "needs --evict METHOD, one of snapkv, pyramidkv"]),
        (&["--evict", "snapkv"], &["--evict snapkv", "needs --keep N or N%"]),
        (&["--evict", "tova", "--keep", "0"], &["--keep 0", "at least 1 row"]),
        (&["--evict", "tova", "--keep", "0%"], &["--keep 0%", "above 0%"]),
        (&["--evict", "h2o", "--keep", "100000"], &["--keep 100000", "the prompt has"]),
        (&["--evict", "h2o", "--keep", "101%"], &["--keep 101%", "at most 100%"]),
        (&["--method", "infoflow:evict=[snapkv:window=16]:keep=16"], &["window", "16", "less than the 16 rows"]),
        (&["--evict", "lookahead", "--keep", "16"], &["--evict lookahead", "needs --adapter DIR"]),
        (&["--evict", "speckv", "--keep", "16"], &["--evict speckv", "needs --draft-model DIR"]),
    ];
    for (options, says) in table {
        refused_request(options, 64, says);
    }
    for (options, says) in
        [(["--keep", "many"], "no percentage, such as 30%"), (["--evict", "snapkw"], "known are snapkv")]
    {
        let (demo, request) = (demo(), request("hop2-0"));
        let output = tributary(&[&["prefill", "--model", &demo, "--request", &request], &options[..]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{options:?}: {errors}");
        assert!(errors.contains(says) && output.stdout.is_empty(), "{options:?}: {errors}");
    }
}

#[test]
fn a_text_far_beyond_the_positions_is_not_read_to_its_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("long.txt").display().to_string();
    std::fs::write(&path, "a cat ".repeat(100_000)).expect("a text");
    let demo = demo();
    refused(&["--model", &demo, "--documents", &path, "--query", "a cat"], 64, &["more than 65536 tokens", "shorten"]);
}

#[test]
fn a_tokenizer_that_ends_the_process_that_reads_it() {
    // A table of characters that says to have 4 GiB: the library's own reading of it cannot be
    // caught.
    let folder = copy_of_demo();
    let path = folder.path().join("tokenizer.json");
    let text = std::fs::read_to_string(&path).expect("the demo's tokenizer");
    let mut tokenizer: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    tokenizer["normalizer"] = serde_json::json!({"type": "Precompiled", "precompiled_charsmap": "/////w=="});
    std::fs::write(path, tokenizer.to_string()).expect("a changed tokenizer");
    refused_model(&folder, 64, &["tokenizer.json: reading it ended a process that may take 1 GiB and 45 s"]);
}

#[test]
fn marks_that_are_no_tokens() {
    let write = |template: &str| {
        let folder = copy_of_demo();
        std::fs::write(folder.path().join("chat_template.jinja"), template).expect("a template");
        folder
    };
    let spoken = write("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}");
    refused_model(&spoken, 64, &["its chat template writes `<|im_start|>`", "no token of its tokenizer"]);
    // In a branch that is not taken it is harmless, and a note reports it.
    let branch = write("{% if tools %}<|tools|>{% endif %}{% for m in messages %}{{ m.content }}\n{% endfor %}");
    let (path, request) = (branch.path().display().to_string(), request("hop2-0"));
    let output = tributary(&["prefill", "--model", &path, "--request", &request, "--max-tokens", "1"]);
    let (answer, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(answer.contains("may write `<|tools|>`, which is no token"), "{answer} {errors}");
}

#[test]
fn what_is_not_written_to_standard_output_is_told() {
    let (demo, request) = (demo(), request("hop2-0"));
    let prefill = format!("prefill --model '{demo}' --request '{request}' --max-tokens 1");
    for words in ["methods", "methods --json", "--version", "--help", "completions bash", &prefill] {
        for (redirection, exit_code, says) in [
            (">/dev/null", 0, ""),
            (">&-", 74, "standard output: it is closed; not all of it was written"),
            (">/dev/full", 74, "standard output: No space left on device"),
        ] {
            let line = format!("exec '{}' {words} {redirection}", env!("CARGO_BIN_EXE_tributary"));
            let output = Command::new("sh").args(["-c", &line]).output().expect("sh starts");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(exit_code), "{line}: {errors}");
            assert!(errors.contains(says), "{line}: {errors}");
        }
    }
}
