//! Reasoning apart from the answer, whole and streamed, of a model that writes given words: each
//! token of it decides the next.

use std::path::Path;

use serde_json::{Value, json};

use crate::kit::server::{Server, streamed};
use crate::kit::{run, tributary};

/// Tokens, by their ids. The first special ones have no text.
const WORDS: [&str; 27] = [
    "<unk>",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|return|>",
    "<think>",
    "</think>",
    "user",
    "assistant",
    "analysis",
    "final",
    "let",
    "me",
    "see",
    "A",
    "crab",
    ".",
    "go",
    "hm",
    "so",
    "Yes",
    "what",
    "is",
    "it",
    "?",
    "end",
];
const SPECIAL: usize = 6;
const END: &str = "<|return|>";

/// Each token's next. Where there are two, the second follows once the first has been written: it
/// loses less than the penalty for a repetition.
const NEXT: [(&str, &[&str]); 19] = [
    ("assistant", &["<|channel|>"]),
    ("<|channel|>", &["analysis", "final"]),
    ("analysis", &["<|message|>"]),
    ("final", &["<|message|>"]),
    ("<|message|>", &["let", "A"]),
    ("let", &["me"]),
    ("me", &["see"]),
    ("see", &["<|end|>"]),
    ("<|end|>", &["<|start|>"]),
    ("<|start|>", &["assistant"]),
    ("A", &["crab"]),
    ("crab", &["."]),
    (".", &[END]),
    ("go", &["<think>"]),
    ("<think>", &["hm"]),
    ("hm", &["so"]),
    ("so", &["</think>"]),
    ("</think>", &["Yes"]),
    ("Yes", &[END]),
];

const HARMONY: &str = "{% for m in messages %}<|start|>{{ m.role }}\
    {% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>{% endfor %}\
    {% if add_generation_prompt %}<|start|>assistant{% endif %}";
const THINK: &str = "{% for m in messages %}{{ m.content }} {% endfor %}go";

const HIDDEN: usize = 64;

fn id(word: &str) -> usize {
    WORDS.iter().position(|other| *other == word).expect("a word of the list")
}

/// A matrix with these numbers, and zeros elsewhere.
fn matrix(rows: usize, columns: usize, numbers: impl IntoIterator<Item = (usize, usize, f32)>) -> Vec<f32> {
    let mut all = vec![0.0; rows * columns];
    numbers.into_iter().for_each(|(row, column, number)| all[row * columns + column] = number);
    all
}

/// Weights whose layer adds nothing: a token's row goes to the head as it is.
fn weights() -> Vec<u8> {
    let own = (0..WORDS.len()).map(|word| (word, word, 1.0));
    let follows = NEXT.iter().flat_map(|(word, next)| {
        next.iter().enumerate().map(|(rank, next)| (id(next), id(word), 1.0 - rank as f32 / 8.0))
    });
    let (square, ones) = (vec![HIDDEN, HIDDEN], vec![1.0; HIDDEN]);
    let table = vec![WORDS.len(), HIDDEN];
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), table.clone(), matrix(WORDS.len(), HIDDEN, own)),
        ("lm_head.weight".to_owned(), table, matrix(WORDS.len(), HIDDEN, follows)),
        ("model.norm.weight".to_owned(), vec![HIDDEN], ones.clone()),
        (layer("input_layernorm"), vec![HIDDEN], ones.clone()),
        (layer("post_attention_layernorm"), vec![HIDDEN], ones),
    ];
    for name in ["q_proj", "k_proj", "v_proj", "o_proj"].map(|name| format!("self_attn.{name}")) {
        tensors.push((layer(&name), square.clone(), vec![0.0; HIDDEN * HIDDEN]));
    }
    for name in ["gate_proj", "up_proj", "down_proj"].map(|name| format!("mlp.{name}")) {
        tensors.push((layer(&name), square.clone(), vec![0.0; HIDDEN * HIDDEN]));
    }
    let (mut header, mut bytes) = (serde_json::Map::new(), Vec::new());
    for (name, shape, numbers) in tensors {
        let start = bytes.len();
        numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        header.insert(name, json!({"dtype": "F32", "shape": shape, "data_offsets": [start, bytes.len()]}));
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes].concat()
}

fn write(folder: &Path, template: &str) {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": WORDS.len(),
        "hidden_size": HIDDEN, "intermediate_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": 512, "hidden_act": "silu", "tie_word_embeddings": false,
        "eos_token_id": id(END), "torch_dtype": "float32",
    });
    let added = |(id, word): (usize, &&str)| {
        json!({"id": id, "content": word, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": id < SPECIAL})
    };
    let vocab: serde_json::Map<_, _> =
        WORDS.iter().enumerate().map(|(id, word)| ((*word).to_owned(), id.into())).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": WORDS.iter().enumerate().take(SPECIAL + 2).map(added).collect::<Vec<_>>(),
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    });
    let files = [
        ("config.json", config.to_string()),
        ("tokenizer.json", tokenizer.to_string()),
        ("tokenizer_config.json", json!({"eos_token": END, "unk_token": "<unk>"}).to_string()),
        ("chat_template.jinja", template.to_owned()),
    ];
    for (name, text) in files {
        std::fs::write(folder.join(name), text).expect("a file");
    }
    std::fs::write(folder.join("model.safetensors"), weights()).expect("weights");
}

/// A service of the model with a template.
fn serving(template: &str, options: &[&str]) -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), template);
    let path = folder.path().display().to_string();
    (Server::start(&[&["--model", &path, "--served-model-name", "demo"], options].concat()), folder)
}

/// The reasoning and the answer, which are the same whole and streamed.
fn asked(server: &Server, more: Value) -> (Option<String>, String) {
    let mut body = json!({"model": "demo", "messages": [{"role": "user", "content": "what is it ?"}],
        "max_tokens": 40, "temperature": 0, "presence_penalty": 1.5, "logprobs": true});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let response = server.chat(&body);
    assert_eq!(response.status, 200, "{}", response.body);
    let choice = &response.json()["choices"][0];
    assert_eq!(choice["finish_reason"], "stop", "{choice}");
    let text = |name: &str| choice["message"][name].as_str().map(str::to_owned);
    let (reasoning, answer) = (text("reasoning_content"), text("content").expect("a text"));
    let (content, events) = streamed(server.stream(&body));
    let parts = || events.iter().filter_map(|event| event["choices"][0]["delta"]["reasoning_content"].as_str());
    assert_eq!((parts().collect::<String>(), content), (reasoning.clone().unwrap_or_default(), answer.clone()));
    assert!(reasoning.is_none() || parts().count() > 1, "it comes as it is written: {events:?}");
    (reasoning, answer)
}

fn both(reasoning: &str, answer: &str) -> (Option<String>, String) {
    (Some(reasoning.to_owned()), answer.to_owned())
}

#[test]
fn channels_of_gpt_oss_come_apart_without_their_headers() {
    for options in [&[][..], &["--reasoning-parser", "harmony", "--world-size", "2"]] {
        let (server, _folder) = serving(HARMONY, options);
        assert_eq!(asked(&server, json!({})), both("let me see", "A crab ."), "{options:?}");
        let together = asked(&server, json!({"separate_reasoning": false}));
        assert_eq!(together, (None, "let me see\nA crab .".into()), "{options:?}");
        let without = asked(&server, json!({"include_reasoning": false}));
        assert_eq!(without, (None, "A crab .".into()), "{options:?}");
        let stops = ["analysis", "final", "assistant", "<|end|>"];
        assert_eq!(asked(&server, json!({"stop": stops})), both("let me see", "A crab ."), "a header is no text");
        assert_eq!(asked(&server, json!({"stop": "crab"})), both("let me see", "A "), "{options:?}");
        server.ends_well();
    }
}

/// The prompt ends within the answer here; after it the model reasons.
#[test]
fn prefill_tells_reasoning_apart_and_without_headers() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), &HARMONY.replace("<|start|>assistant{% endif %}", "<|channel|>final<|message|>{% endif %}"));
    let (model, request) = (folder.path().display().to_string(), folder.path().join("request.json"));
    std::fs::write(&request, json!({"documents": ["A crab ."], "query": "what is it ?"}).to_string()).expect("a file");
    let request = request.display().to_string();
    let of = |more: &[&str]| run(&[&["prefill", "--model", &model, "--request", &request], more].concat());
    let (code, told, errors) = of(&["--max-tokens", "12", "--json"]);
    assert_eq!(code, Some(0), "{errors}");
    let report: Value = serde_json::from_str(&told).expect("a report");
    assert_eq!((&report["reasoning"], &report["answer"]), (&json!("let me see"), &json!("let me see")), "{report}");
    let (_, told, _) = of(&["--max-tokens", "12"]);
    assert!(told.starts_with("reasoning:   let me see\nanswer:      let me see\n"), "{told}");
    let (_, told, _) = of(&["--max-tokens", "3", "--json"]);
    let report: Value = serde_json::from_str(&told).expect("a report");
    assert_eq!((report.get("reasoning"), &report["answer"]), (None, &json!("let me see")), "{report}");
    let (_, told, _) = of(&["--max-tokens", "12", "--json", "--template", "none"]);
    let report: Value = serde_json::from_str(&told).expect("a report");
    assert_eq!(report.get("reasoning"), None, "without a template an answer is no message: {report}");
}

#[test]
fn a_parser_is_chosen_by_the_template_or_by_an_option() {
    let (server, _folder) = serving(HARMONY, &["--reasoning-parser", "none"]);
    assert_eq!(asked(&server, json!({})).1.replace(' ', ""), "analysisletmeseeassistantfinalAcrab.");
    server.ends_well();
    let (server, _folder) = serving(THINK, &[]);
    assert_eq!(asked(&server, json!({})), (None, "<think> hm so </think> Yes".into()));
    assert_eq!(asked(&server, json!({"separate_reasoning": true})), both("hm so", "Yes"));
    server.ends_well();
    let (server, _folder) = serving(THINK, &["--reasoning-parser", "think"]);
    assert_eq!(asked(&server, json!({})), both("hm so", "Yes"));
    assert_eq!(asked(&server, json!({"separate_reasoning": false})).0, None);
    server.ends_well();
}

#[test]
fn a_model_without_the_marks_cannot_answer_in_channels() {
    let demo = crate::kit::demo();
    let output = tributary(&["serve", "--model", &demo, "--listen", "127.0.0.1:0", "--reasoning-parser", "harmony"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{errors}");
    assert!(errors.contains("--reasoning-parser harmony: the tokenizer has no token `<|start|>`"), "{errors}");
}
