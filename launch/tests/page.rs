//! The page at `/` as people use it: `tests/page/check.py` drives a Chromium without a window,
//! against a service, and against a stand-in that gives rare answers on demand. `make test`
//! installs Chromium.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::kit::server::Server;
use crate::kit::{root, skipped};

mod kit;

/// A process that ends with its test.
struct StandIn(Child);

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether there is a browser to drive.
fn has_browser() -> bool {
    let asked = Command::new("chromedriver").arg("--version").stdout(Stdio::null()).status();
    let has = asked.is_ok_and(|status| status.success());
    if !has {
        assert!(std::env::var_os("CI").is_none(), "no chromedriver: run `make test`");
        skipped("the page in a browser: no chromedriver; `make test` installs it");
    }
    has
}

/// A script of the page's folder; the libraries of an emulated GPU are none of its business.
fn script(name: &str) -> Command {
    let mut command = Command::new("python3");
    command.arg(root().join("tests/page").join(name)).env_remove("LD_LIBRARY_PATH");
    command
}

/// All cases pass.
fn passes(address: &str, options: &[&str]) {
    let output = script("check.py").arg(format!("http://{address}")).args(options).output().expect("python starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.lines().last(), Some("all passed"), "{said}");
}

#[test]
fn the_page_comes_with_a_policy_that_lets_it_ask_its_service_alone() {
    let server = Server::start(&[]);
    let page = server.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").expect("a policy");
    for rule in ["default-src 'none'", "connect-src 'self'", "script-src 'sha256-"] {
        assert!(policy.contains(rule), "{rule}: {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    let other = ["cache-control", "x-content-type-options"].map(|name| page.header(name));
    assert_eq!(other, [Some("no-cache"), Some("nosniff")]);
    assert!(page.body.starts_with("<!DOCTYPE html>") && page.body.ends_with("</html>\n"), "the whole page");
    server.ends_well();
}

#[test]
fn a_request_is_tried_on_the_page_of_a_stand_in() {
    if !has_browser() {
        return;
    }
    let key = "a-key-of-the-test";
    let mut stand_in =
        StandIn(script("mock.py").args(["--key", key]).stdout(Stdio::piped()).spawn().expect("python starts"));
    let mut greeting = String::new();
    BufReader::new(stand_in.0.stdout.take().expect("piped")).read_line(&mut greeting).expect("text");
    let address = greeting.trim_end().rsplit("http://").next().expect("where it listens");
    passes(address, &["--mock", "--key", key]);
}

#[test]
fn a_request_is_tried_on_the_page_of_a_service() {
    if !has_browser() {
        return;
    }
    let (folder, key) = (tempfile::tempdir().expect("a folder"), "a-key-of-the-test");
    let keys = folder.path().join("keys");
    std::fs::write(&keys, key).expect("written");
    std::fs::set_permissions(&keys, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
    let keys = keys.display().to_string();
    let server = Server::start(&["--world-size", "2", "--api-key-file", &keys, "--metrics-public"]);
    passes(&server.address, &["--key", key]);
    server.becomes("tributary_requests_running", 0.0);
    server.ends_well();
}

#[test]
fn pictures_are_tried_on_the_page_of_a_model_that_reads_them() {
    if !has_browser() {
        return;
    }
    let model = root().join("tests/golden/qwen3vl-tiny").display().to_string();
    let server = Server::start(&["--model", &model, "--world-size", "2"]);
    passes(&server.address, &["--vision"]);
    server.ends_well();
}
