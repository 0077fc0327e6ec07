//! OpenAI's own Python package as a client. `OPENAI` names a virtual environment that has it;
//! `make test` makes one.

use std::path::PathBuf;
use std::process::Command;

use crate::kit::server::{Server, body};
use crate::kit::{root, skipped};

#[test]
fn openais_client_is_served() {
    let Some(folder) = std::env::var_os("OPENAI").map(PathBuf::from) else {
        assert!(std::env::var_os("CI").is_none(), "OPENAI is not set: run `make test`");
        skipped("OpenAI's client: OPENAI is not set; `make test` installs it");
        return;
    };
    let server = Server::start(&["--world-size", "2", "--max-running", "2", "--max-waiting", "2"]);
    let script = root().join("launch/tests/serve/openai_client.py");
    let mut command = Command::new(folder.join("bin/python"));
    command.arg(script).arg(&server.address).arg(body("hop2-0", 8).to_string());
    // The libraries of an emulated GPU are none of its business.
    let output = command.env_remove("LD_LIBRARY_PATH").output().expect("python starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.lines().last(), Some("all passed"), "{said}");
    server.becomes("tributary_requests_running", 0.0);
    server.ends_well();
}

/// Output of curl for a successful request.
fn curl(server: &Server, more: &[&str], body: &str) -> String {
    let url = format!("http://{}/v1/chat/completions", server.address);
    let head =
        ["--silent", "--show-error", "--fail-with-body", "--max-time", "60", "-H", "Content-Type: application/json"];
    let mut command = Command::new("curl");
    let output = command.args(head).args(more).args(["--data", body, &url]).env_remove("LD_LIBRARY_PATH").output();
    let output = output.expect("curl starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn curl_is_served() {
    if Command::new("curl").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "curl is not here");
        skipped("curl: it is not here");
        return;
    }
    let server = Server::start(&[]);
    let mut request = body("hop2-0", 4);
    let answer: serde_json::Value = serde_json::from_str(&curl(&server, &[], &request.to_string())).expect("JSON");
    let text = answer["choices"][0]["message"]["content"].as_str().expect("a text");
    assert!(text.starts_with("lyon"), "{text}");
    request["stream"] = true.into();
    let events = curl(&server, &["--no-buffer"], &request.to_string());
    let data: Vec<&str> = events.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(data.last(), Some(&"[DONE]"), "{events}");
    let parts =
        data[..data.len() - 1].iter().map(|part| serde_json::from_str::<serde_json::Value>(part).expect("JSON"));
    let streamed: String =
        parts.filter_map(|part| part["choices"][0]["delta"]["content"].as_str().map(str::to_owned)).collect();
    assert_eq!(streamed, text);
    server.ends_well();
}
