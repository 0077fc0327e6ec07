//! OpenAI's own Python package as a client. `OPENAI` names a virtual environment that has it; `make test` makes one.

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
    let server = Server::start(&["--world-size", "2"]);
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
