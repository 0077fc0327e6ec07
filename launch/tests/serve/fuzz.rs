//! The interface against its own description: schemathesis makes requests of `/openapi.json`, right
//! ones and wrong ones, and judges the answers. `SCHEMATHESIS` names a virtual environment that has
//! it; `make test` makes one. `FUZZ_SECONDS` says how long (`make fuzz-api`).

use std::path::PathBuf;
use std::process::Command;

use crate::kit::server::{Server, body};
use crate::kit::skipped;

/// Checks of each answer: no failure of the server, no undescribed status, content type or header,
/// a body that fits its schema, wrong requests refused, other methods refused. Acceptance of right
/// requests is not checked: no schema says that a text has tokens, or that a question is not empty.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
    response_schema_conformance,negative_data_rejection,missing_required_header,unsupported_method,allow_header_conformance";

#[test]
fn answers_are_as_they_are_described() {
    let Some(folder) = std::env::var_os("SCHEMATHESIS").map(PathBuf::from) else {
        assert!(std::env::var_os("CI").is_none(), "SCHEMATHESIS is not set: run `make test`");
        return skipped("schemathesis: SCHEMATHESIS is not set; `make test` installs it");
    };
    let long = std::env::var("FUZZ_SECONDS").ok();
    let seconds = long.clone().unwrap_or_else(|| "20".to_owned());
    let server = Server::start(&["--world-size", "2"]);
    let right = server.answer(&body("vt3-1", 12));
    let url = format!("http://{}/openapi.json", server.address);
    let work = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(folder.join("bin/schemathesis"));
    command.args(["run", &url, "--checks", CHECKS, "--max-time", &seconds, "--phases", "examples,coverage,fuzzing"]);
    command.args(["--continue-on-failure", "--no-color"]);
    // A short run is the same each time.
    if long.is_none() {
        command.args(["--seed", "1"]);
    }
    // It must not load the libraries of an emulated GPU, nor use the memory of its last run.
    let output = command.env_remove("LD_LIBRARY_PATH").current_dir(work.path()).output().expect("schemathesis starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let cases = said.lines().find(|line| line.contains(" generated, ")).unwrap_or_else(|| panic!("no cases: {said}"));
    println!("{}", cases.trim());
    assert!(!cases.trim().starts_with("0 generated"), "{said}");
    let with_examples = operations_with_examples(&server);
    let sent =
        said.lines().skip_while(|line| !line.contains("Examples (in")).skip(1).find(|line| line.contains("passed"));
    assert!(
        with_examples > 0 && sent.is_some_and(|line| line.contains(&format!("{with_examples} passed"))),
        "the examples of {with_examples} operations were sent: {said}"
    );
    server.becomes("tributary_requests_running", 0.0);
    assert_eq!(server.answer(&body("vt3-1", 12)), right, "it answers as before");
    server.ends_well();
}

/// The number of operations for which the description has a body as an example.
fn operations_with_examples(server: &Server) -> usize {
    let document = server.get("/openapi.json").json();
    let paths = document["paths"].as_object().expect("paths");
    let operations = paths.values().flat_map(|methods| methods.as_object().expect("methods").values());
    let has_examples =
        |operation: &&serde_json::Value| operation.pointer("/requestBody/content/application~1json/examples").is_some();
    operations.filter(has_examples).count()
}
