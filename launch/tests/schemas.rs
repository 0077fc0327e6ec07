//! The JSON that commands print and write: its schemas (`docs/schemas`) are those of its types, and
//! the real output of commands fits them.

mod kit;

use std::path::{Path, PathBuf};

use boon::{Compiler, SchemaIndex, Schemas};
use kit::adapter::packet;
use kit::server::Server;
use kit::{demo, json, request, root, tributary};
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};
use tributary_coordinator::report::Report;
use tributary_protocol::METHODS;
use tributary_study::{Study, compare::Comparison, dump::Dumped, forecast, sizing, twin};

/// Command that writes the schemas anew from the types.
const UPDATE: &str = "UPDATE_SCHEMAS=1 cargo test --release -p tributary --test schemas";

/// A schema: its name, the outputs with it, and the function that makes it.
type Made = (&'static str, &'static str, fn(&str, &str) -> Value);

/// Every schema: the prefix of its name in outputs, the outputs with it, and the function that
/// makes it.
const SCHEMAS: [Made; 11] = [
    ("prefill", "tributary prefill --json, and each line of it with --requests", schema_of::<Report>),
    ("compare", "tributary compare --json", schema_of::<Comparison>),
    ("study", "report.json of tributary bench", schema_of::<Study>),
    ("quality", "report.json of tributary quality", schema_of::<tributary_quality::Report>),
    ("plan", "tributary plan --json", schema_of::<forecast::Report>),
    ("sizing", "tributary plan --slo-ttft .. --json", schema_of::<sizing::Report>),
    ("twin", "tributary plan --trace .. --json", schema_of::<twin::Report>),
    ("methods", "tributary methods --json", schema_of::<tributary_study::methods::Methods>),
    ("doctor", "tributary doctor --json", schema_of::<tributary::doctor::Report>),
    ("load", "tributary load --json", schema_of::<tributary_load::Report>),
    ("dump", "request.json of tributary prefill --dump", schema_of::<Dumped<'_>>),
];

/// The written schema of a type: closed, and with no word that JSON Schema does not know.
fn schema_of<T: JsonSchema>(name: &str, title: &str) -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize().with_transform(RecursiveTransform(closed));
    let made = settings.into_generator().into_root_schema_for::<T>().to_value();
    let mut schema = Map::new();
    schema.insert("$schema".to_owned(), made["$schema"].clone());
    schema.insert("$id".to_owned(), format!("urn:tributary:{name}:1").into());
    schema.insert("title".to_owned(), title.into());
    for (key, value) in made.as_object().expect("an object") {
        schema.entry(key.clone()).or_insert_with(|| value.clone());
    }
    schema.into()
}

/// Allows no fields but those that the type has. Rust's names of number types, and defaults of
/// inputs, mean nothing to readers.
fn closed(schema: &mut Schema) {
    if schema.get("properties").is_some() && schema.get("additionalProperties").is_none() {
        schema.insert("additionalProperties".to_owned(), false.into());
    }
    schema.remove("format");
    schema.remove("default");
}

/// The version of a schema.
fn version(name: &str) -> u32 {
    if ["prefill", "compare", "dump", "methods"].contains(&name) { 2 } else { 1 }
}

fn file(name: &str) -> PathBuf {
    root().join("docs/schemas").join(format!("{name}.v{}.json", version(name)))
}

/// Validator of outputs against the schema in the repository.
struct Validator {
    schemas: Schemas,
    index: SchemaIndex,
}

impl Validator {
    fn new(name: &str) -> Self {
        let text = std::fs::read_to_string(file(name)).expect("a schema");
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource(name, serde_json::from_str(&text).expect("JSON")).expect("a schema with a name");
        let index = compiler.compile(name, &mut schemas).expect("a schema of draft 2020-12");
        Self { schemas, index }
    }

    fn is_valid(&self, output: &Value) -> bool {
        self.schemas.validate(output, self.index).is_ok()
    }
}

/// Asserts that an output fits its schema, and that it does not once it is damaged.
fn fits(name: &str, output: &Value) {
    let validator = Validator::new(name);
    if let Err(error) = validator.schemas.validate(output, validator.index) {
        panic!("{name}: {error:#}\n{output:#}");
    }
    let version = version(name);
    assert_eq!(output["schema"], format!("tributary.{name}/{version}"));
    let with = |key: &str, value: Value| {
        let mut damaged = output.clone();
        damaged[key] = value;
        damaged
    };
    assert!(!validator.is_valid(&with("colour", "red".into())), "{name}: a field that no type has");
    assert!(
        !validator.is_valid(&with("schema", format!("tributary.{name}/{}", version + 1).into())),
        "{name}: another version"
    );
    for key in output.as_object().expect("an object").keys() {
        assert!(!validator.is_valid(&with(key, json!({"a": [1]}))), "{name}: {key} of another type");
        let mut damaged = output.clone();
        damaged.as_object_mut().expect("an object").remove(key);
        let optional = [
            "selected_rows",
            "trace",
            "auxiliary",
            "auxiliary_model",
            "auxiliary_prompts",
            "sentence_ends",
            "shared_words",
            "named_chunks",
        ];
        let is_optional = optional.contains(&key.as_str());
        assert_eq!(validator.is_valid(&damaged), is_optional, "{name}: without {key}");
    }
}

/// A change of a type changes its schema.
#[test]
fn schemas_are_those_of_the_types() {
    let update = std::env::var_os("UPDATE_SCHEMAS").is_some();
    for (name, title, make) in SCHEMAS {
        let schema = make(name, title);
        let made = format!("{}\n", serde_json::to_string_pretty(&schema).expect("JSON"));
        if update {
            std::fs::write(file(name), &made).expect("written");
        }
        let kept = std::fs::read_to_string(file(name)).unwrap_or_default();
        assert!(kept == made, "{}: the types say otherwise; write it anew by `{UPDATE}`", file(name).display());
        let undescribed: Vec<_> = described(&schema);
        assert!(undescribed.is_empty(), "{name}: no description: {undescribed:?}");
    }
    let files = std::fs::read_dir(root().join("docs/schemas")).expect("a folder").count();
    assert_eq!(files, SCHEMAS.len(), "every file in docs/schemas is made here");
}

/// Fields, of an object's own or of its definitions, that say nothing about themselves.
fn described(schema: &Value) -> Vec<String> {
    let definitions = schema["$defs"].as_object().into_iter().flat_map(|all| all.iter());
    let objects = definitions.map(|(name, object)| (name.as_str(), object)).chain([("", schema)]);
    let fields = |(name, object): (&str, &Value)| {
        let fields = object["properties"].as_object().cloned().unwrap_or_default();
        let name = name.to_owned();
        fields
            .into_iter()
            .filter(|(_, field)| field["description"].is_null())
            .map(move |(key, _)| format!("{name}.{key}"))
    };
    objects.flat_map(fields).collect()
}

#[test]
fn prefill_prints_what_its_schema_says() {
    let (demo, request) = (demo(), request("hop2-0"));
    let base = ["prefill", "--model", &demo, "--request", &request, "--max-tokens", "2", "--json", "--world-size"];
    let packet = packet(Path::new(&demo), 0.5);
    let adapter = packet.path().display().to_string();
    for method in METHODS {
        let beside = ["--aux-model", &demo, "--adapter", &adapter];
        fits("prefill", &json(&[&base[..], &["2", "--method", method.name], &beside].concat()));
    }
    fits("prefill", &json(&[&base[..], &["1", "--show-selected", "--reorder"]].concat()));
}

#[test]
fn lines_of_many_requests_and_a_dump_fit_theirs() {
    let folder = tempfile::tempdir().expect("a folder");
    let (lines, dump) = (folder.path().join("requests.jsonl"), folder.path().join("dump").display().to_string());
    let one_line = |name: &str| {
        let text = std::fs::read_to_string(request(name)).expect("a request");
        serde_json::from_str::<Value>(&text).expect("JSON").to_string()
    };
    std::fs::write(&lines, format!("{}\n{}\n", one_line("hop2-0"), one_line("hop2-1"))).expect("written");
    let (demo, lines) = (demo(), lines.display().to_string());
    let output = tributary(&["prefill", "--model", &demo, "--requests", &lines, "--world-size", "2", "--json"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(text.lines().count(), 2, "{text}");
    for line in text.lines() {
        fits("prefill", &serde_json::from_str(line).expect("JSON"));
    }
    let request = request("hop2-0");
    let base = ["prefill", "--model", &demo, "--request", &request, "--world-size", "2", "--json", "--dump", &dump];
    json(&[&base[..], &["--method", "cacheclip", "--aux-model", &demo]].concat());
    let dumped = std::fs::read_to_string(folder.path().join("dump/request.json")).expect("a dump");
    fits("dump", &serde_json::from_str(&dumped).expect("JSON"));
}

#[test]
fn compare_prints_what_its_schema_says() {
    let (demo, request) = (demo(), request("hop2-0"));
    let arguments = ["compare", "--model", &demo, "--request", &request, "--world-size", "2", "--max-tokens", "1"];
    fits("compare", &json(&[&arguments[..], &["--repeat", "2", "--warmup", "0", "--json"]].concat()));
}

#[test]
fn a_study_writes_what_its_schema_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let (demo, out) = (demo(), folder.path().join("study").display().to_string());
    let arguments = ["bench", "--model", &demo, "--lengths", "128", "--chunk-tokens", "32", "--query-tokens", "8"];
    let sweep = ["--worlds", "1,2", "--methods", "full,infoflow", "--caches", "cold,0.5,warm", "--repeats", "2"];
    let output =
        tributary(&[&arguments[..], &sweep, &["--warmups", "0", "--profile", "h100x4", "--out", &out]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = std::fs::read_to_string(folder.path().join("study/report.json")).expect("a report");
    fits("study", &serde_json::from_str(&report).expect("JSON"));
}

#[test]
fn an_evaluation_writes_what_its_schema_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let (demo, out) = (demo(), folder.path().join("quality").display().to_string());
    let arguments = ["quality", "--suite", "hops", "--model", &demo, "--tasks", "single,vt2", "--samples", "2"];
    let output = tributary(&[&arguments[..], &["--methods", "full,relay", "--worlds", "2", "--out", &out]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = std::fs::read_to_string(folder.path().join("quality/report.json")).expect("a report");
    fits("quality", &serde_json::from_str(&report).expect("JSON"));
}

#[test]
fn plan_prints_what_its_schema_says() {
    for profile in ["h100x4", "h100x8x2"] {
        fits("plan", &json(&["plan", "--model", "qwen3-14b", "--profile", profile, "--tokens", "8k..64k", "--json"]));
    }
}

#[test]
fn methods_print_what_their_schema_says() {
    let all = json(&["methods", "--json"]);
    fits("methods", &all);
    let names: Vec<&str> =
        all["methods"].as_array().expect("a list").iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, METHODS.map(|method| method.name));
    fits("methods", &json(&["methods", "trace", "ring", "--json"]));
}

#[test]
fn sizing_prints_what_its_schema_says() {
    let base = ["plan", "--model", "qwen3-14b", "--profile", "h100x8,h200x8", "--slo-ttft", "1s", "--json"];
    for (rate, tokens) in [("4", "8k..64k"), ("0.1", "8m")] {
        fits("sizing", &json(&[&base[..], &["--requests-per-second", rate, "--tokens", tokens]].concat()));
    }
}

#[test]
fn a_replay_prints_what_its_schema_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.jsonl").display().to_string();
    let line = |at: usize| json!({"timestamp": at, "output_length": 3, "query": {"tokens": 500 + at}});
    std::fs::write(&path, (0..4).map(|at| format!("{}\n", line(at))).collect::<String>()).expect("written");
    let base = ["plan", "--model", "qwen3-14b", "--profile", "h100x8", "--trace", &path, "--json"];
    for more in [&["--gpus", "8,16"][..], &["--slo-ttft", "1s", "--method", "ring"], &["--max-waiting", "1"]] {
        fits("twin", &json(&[&base[..], more].concat()));
    }
}

#[test]
fn load_prints_what_its_schema_says() {
    let server = Server::start(&["--world-size", "2"]);
    let url = format!("http://{}", server.address);
    let small = ["--documents-per-request", "2", "--document-tokens", "16", "--max-tokens", "4", "--json"];
    let base = [&["load", "--url", &url], &small[..]].concat();
    fits("load", &json(&[&base[..], &["--rate", "5,10", "--requests", "3"]].concat()));
    fits("load", &json(&[&base[..], &["--clients", "2", "--requests", "3", "--fresh", "--form", "prompt"]].concat()));
    fits("load", &json(&[&base[..], &["--find-saturation", "--duration", "0.2", "--rate", "500"]].concat()));
    server.ends_well();
}

#[test]
fn doctor_prints_what_its_schema_says() {
    let arguments = ["doctor", "--world-size", "2", "--sizes", "64KiB", "--repeat", "2", "--json"];
    let fit = json(&arguments);
    assert!(fit["unfit"].is_null(), "{fit:#}");
    fits("doctor", &fit);
    let output = tributary(&[&arguments[..], &["--min-busbw", "1", "--skip-checks"]].concat());
    assert_eq!(output.status.code(), Some(78), "threads copy nothing");
    let unfit: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(unfit["unfit"]["exit_code"], 78);
    fits("doctor", &unfit);
}
