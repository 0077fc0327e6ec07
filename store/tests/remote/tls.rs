//! TLS: a store is believed whose certificate the machine believes, and no other.

use std::process::Command;

use tributary_store::{Reason, Remote};

use crate::gets;
use crate::kit::moto::{self, Moto};
use crate::kit::{SECRET, short};

/// An unknown certificate for this machine, and one that `SSL_CERT_FILE` makes known, in a separate
/// process.
#[test]
fn who_is_believed_is_the_machines_choice() {
    let settings = |address: &str| {
        let endpoint = format!("https://localhost:{}", address.rsplit(':').next().expect("a port"));
        let settings = [
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_ACCESS_KEY_ID", "tester"),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
        ];
        settings.map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    if let Ok(address) = std::env::var("TRIBUTARY_TEST_TLS") {
        let remote = Remote::open_with("s3://chunks/a", short(), settings(&address)).expect("a store");
        assert_eq!(gets(&remote, 1), Err(Reason::NoBucket), "an answer");
        return;
    }
    let Some(moto) = moto::folder() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let [certificate, private] =
        ["certificate.pem", "key.pem"].map(|name| folder.path().join(name).display().to_string());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/remote/kit/certificate.py");
    let mut python = Command::new(moto.join("bin/python"));
    let made = python.args([script, &certificate, &private]).env_remove("LD_LIBRARY_PATH").status();
    assert!(made.expect("python starts").success());
    let moto = Moto::start_with(&moto, &["-c", &certificate, "-k", &private]);
    let address = moto.address.to_string();
    let unknown = Remote::open_with("s3://chunks/a", short(), settings(&address)).expect("a store");
    assert_eq!(gets(&unknown, 1), Err(Reason::Unreachable));
    let mut known = Command::new(std::env::current_exe().expect("this program"));
    known.args(["--exact", "tls::who_is_believed_is_the_machines_choice", "--nocapture"]);
    known.env("TRIBUTARY_TEST_TLS", &address).env("SSL_CERT_FILE", &certificate);
    let output = known.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("1 passed"), "{said}");
}
