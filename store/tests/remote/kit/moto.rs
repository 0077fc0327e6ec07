//! moto, a mock of S3 and IAM in memory. It shows that requests conform to S3's description,
//! signatures included. It does not show the behaviour of a real store under load or failures.
//! `MOTO` names a virtual environment that has it; `make test` makes one.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{LONG, listener, skipped};

/// The virtual environment that has moto; none where it is missing, which is said.
pub fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("MOTO").map(PathBuf::from);
    if folder.is_none() {
        assert!(std::env::var_os("CI").is_none(), "MOTO is not set: run `make test`");
        skipped("S3: MOTO is not set; `make test` installs moto");
    }
    folder
}

/// A running moto with the bucket `chunks`. It ends when this goes.
pub struct Moto {
    process: Child,
    pub address: SocketAddr,
}

impl Moto {
    /// Starts it; none where it is missing.
    pub fn start() -> Option<Self> {
        let moto = Self::start_with(&folder()?, &[]);
        assert_eq!(moto.asks("PUT", "/chunks", "", ""), 200, "a bucket");
        Some(moto)
    }

    /// Starts it with more options.
    pub fn start_with(folder: &std::path::Path, options: &[&str]) -> Self {
        // Another process may take the port before moto does.
        for _ in 0..3 {
            let (_, address) = listener();
            let port = address.port().to_string();
            let mut command = Command::new(folder.join("bin/moto_server"));
            command.args(["-H", "127.0.0.1", "-p", &port]).args(options).env_remove("LD_LIBRARY_PATH");
            let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("moto starts");
            let mut moto = Self { process, address };
            if moto.listens() {
                return moto;
            }
        }
        panic!("moto does not listen");
    }

    fn listens(&mut self) -> bool {
        let began = Instant::now();
        while began.elapsed() < LONG {
            let has_ended = self.process.try_wait().expect("it is ours").is_some();
            if has_ended || TcpStream::connect(self.address).is_ok() {
                return !has_ended;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    }

    /// Makes a request of no particular user, and gives the answer's status.
    pub fn asks(&self, method: &str, path: &str, headers: &str, body: &str) -> u16 {
        self.answer(method, path, headers, body)
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .expect("a status")
    }

    fn answer(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.address).expect("moto listens");
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: moto\r\nConnection: close\r\nContent-Length: {length}\r\n");
        stream.write_all(format!("{head}{headers}\r\n{body}").as_bytes()).expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        // A chunk's bytes are no text, and no test reads them here.
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Makes a user who may do everything with buckets, and from now on judges the signatures of
    /// all requests. The user's key and secret.
    pub fn with_users(&self) -> (String, String) {
        let iam = "Authorization: AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/iam/aws4_request, SignedHeaders=host, \
                   Signature=x\r\nContent-Type: application/x-www-form-urlencoded\r\n";
        let asks = |action: &str| {
            let answer = self.answer("POST", "/", iam, &format!("Version=2010-05-08&UserName=me&Action={action}"));
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            answer
        };
        asks("CreateUser");
        let policy = r#"{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"s3:*","Resource":"*"}}"#;
        let policy: String = policy.bytes().map(|byte| format!("%{byte:02x}")).collect();
        asks(&format!("PutUserPolicy&PolicyName=all&PolicyDocument={policy}"));
        let answer = asks("CreateAccessKey");
        let field = |name: &str| {
            let (_, rest) = answer.split_once(&format!("<{name}>")).expect("a field");
            rest.split('<').next().expect("a text").to_owned()
        };
        assert_eq!(self.asks("POST", "/moto-api/reset-auth", "Content-Type: text/plain\r\n", "0"), 200);
        (field("AccessKeyId"), field("SecretAccessKey"))
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
