//! Hosts on this machine: separate network, host name, process numbers, mounts and shared memory,
//! joined by a switch, so that messages between ranks on different hosts go over real TCP.
//!
//! A host is a process that holds its namespaces and runs commands; it has no name outside. It ends
//! with the process that made it, for any cause, and the kernel then ends its remaining processes.
//! Needs root, iproute2 and util-linux.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

use super::job::{Fault, shell};

/// The hosts' names, in order.
pub const NAMES: [&str; 3] = ["ash", "birch", "cedar"];

/// Their network: host i has address i + 1.
const SUBNET: &str = "10.78.0.0/24";

/// Script of a host's first process: it makes the setup that only it can make, then runs each line
/// that it reads, until no writer is left.
const INIT: &str = r#"
set -e
hostname "$1"
mount -t tmpfs tmpfs /dev/shm
mount --bind "$2" /etc/hosts
ip link set lo up
echo up
exec >/dev/null 2>&1
set +e
while read -r line; do sh -c "$line" </dev/null & done
"#;

/// Replacement of ssh: `agent [OPTION].. HOST COMMAND..`, with the host's mailbox beside the agent.
const AGENT: &str = r#"#!/bin/sh
while case $1 in -*) true ;; *) false ;; esac; do shift; done
mailbox=${0%/*}/$1.mailbox
shift
printf '%s\n' "$*" > "$mailbox"
"#;

/// Timings are measured: one test's hosts at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Hosts that are up, until this is dropped.
pub struct Hosts {
    hosts: Vec<Host>,
    /// Has the other end of every host's cable.
    switch: Host,
    folder: TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// A process that holds namespaces.
struct Host {
    process: Child,
    /// Keeps the mailbox open: without it the host ends.
    _mailbox: File,
    /// For temporary files.
    folder: PathBuf,
}

/// Hosts for a test. Where hosts cannot be made the test is skipped with a message; under
/// continuous integration as root that is a failure.
pub fn hosts(count: usize) -> Option<Hosts> {
    let why = match rustix::process::geteuid().is_root() {
        true => match Hosts::up(count) {
            Ok(hosts) => return Some(hosts),
            Err(why) => {
                assert!(std::env::var_os("CI").is_none(), "no hosts as network namespaces: {why}");
                why
            }
        },
        false => "needs root".to_owned(),
    };
    super::skipped(&format!("hosts as network namespaces: {why}"));
    None
}

impl Hosts {
    fn up(count: usize) -> Result<Self, String> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let path = folder.path();
        let addresses: String = (0..count).map(|host| format!("{} {}\n", address(host), NAMES[host])).collect();
        let files = [("hosts", format!("127.0.0.1 localhost\n{addresses}"), 0o644), ("agent", AGENT.to_owned(), 0o755)];
        for (name, text, mode) in files {
            let file = File::options().write(true).create_new(true).mode(mode).open(path.join(name));
            file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| format!("{name}: {error}"))?;
        }
        let switch = Host::up("switch", path)?;
        switch.ip("link add bridge0 type bridge")?;
        switch.ip("link set bridge0 up")?;
        let mut hosts = Vec::new();
        for (number, name) in NAMES.iter().enumerate().take(count) {
            let host = Host::up(name, path)?;
            let pid = host.process.id();
            switch.ip(&format!("link add port{number} type veth peer name eth0 netns {pid}"))?;
            switch.ip(&format!("link set port{number} master bridge0 up"))?;
            host.ip(&format!("addr add {}/24 dev eth0", address(number)))?;
            host.ip("link set eth0 up")?;
            hosts.push(host);
        }
        Ok(Self { hosts, switch, folder, _alone: alone })
    }

    /// A command that runs on a host.
    pub fn on(&self, host: usize, program: &str) -> Command {
        let host = &self.hosts[host];
        let mut command = host.enter(program);
        command.env("TMPDIR", &host.folder);
        command
    }

    /// Runs a line of a shell on a host; it must succeed.
    pub fn sh(&self, host: usize, line: &str) {
        let output = self.on(host, "sh").args(["-c", line]).output().expect("a shell");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// An mpirun on the first host, with `slots` ranks on each.
    pub fn mpirun(&self, slots: &[usize]) -> Command {
        let mut command = self.on(0, "mpirun");
        let ranks: usize = slots.iter().sum();
        command.args(["-n", &ranks.to_string(), "--host", &list(slots), "--bind-to", "none"]).args(self.network());
        command.args(["-x", "TRIBUTARY_TEST_MARK", "-x", "TRIBUTARY_LOG"]);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("OMPI_MCA_mpi_yield_when_idle", "1");
        command
    }

    /// `tributary launch` on the first host, with `slots` ranks on each.
    pub fn launch(&self, slots: &[usize], fault: Option<Fault<'_>>, arguments: &[&str]) -> Command {
        let mut command = self.on(0, env!("CARGO_BIN_EXE_tributary"));
        let ranks: usize = slots.iter().sum();
        command.args(["launch", "-n", &ranks.to_string(), "--hosts", &list(slots)]);
        // mpirun's own arguments come right before the command: the last of them can wrap it.
        for argument in self.network().into_iter().chain(shell(fault.as_ref())) {
            command.args(["--mpirun-arg", &argument]);
        }
        command.arg("--").args(arguments);
        command
    }

    /// Arguments for mpirun's way to the hosts, and for the ranks' network.
    fn network(&self) -> Vec<String> {
        let agent = self.folder.path().join("agent").display().to_string();
        let parameters = [
            ("plm_rsh_agent", agent.as_str()),
            ("btl", "self,vader,tcp"),
            ("btl_tcp_if_include", SUBNET),
            ("oob_tcp_if_include", SUBNET),
        ];
        parameters.iter().flat_map(|(name, value)| ["--mca", name, value].map(str::to_owned)).collect()
    }

    /// Pulls a host's cable out of the switch.
    pub fn cut(&self, host: usize) {
        self.switch.ip(&format!("link set port{host} down")).expect("the port is there");
    }

    /// Puts it back.
    pub fn heal(&self, host: usize) {
        self.switch.ip(&format!("link set port{host} up")).expect("the port is there");
    }

    /// Sends a signal, such as KILL, to a process by its number on its host.
    pub fn signal(&self, host: usize, pid: u32, name: &str) {
        self.sh(host, &format!("kill -s {name} {pid}"));
    }

    /// Names of the processes that run on a host, without its first one.
    pub fn processes(&self, host: usize) -> Vec<String> {
        self.hosts[host].processes().into_iter().map(|(name, _)| name).collect()
    }

    /// The number, outside, of a process on a host.
    pub fn number(&self, host: usize, name: &str) -> Option<u32> {
        self.hosts[host].processes().into_iter().find(|process| process.0 == name).map(|process| process.1)
    }

    /// Number of ranks that run on a host.
    pub fn ranks(&self, host: usize) -> usize {
        let is_rank = |&(_, pid): &(String, u32)| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|variable| variable.starts_with(b"OMPI_COMM_WORLD_RANK="))
        };
        self.hosts[host].processes().iter().filter(|process| is_rank(process)).count()
    }

    /// Bytes that a host has received from the others.
    pub fn received_bytes(&self, host: usize) -> u64 {
        let path = format!("/proc/{}/net/dev", self.hosts[host].process.id());
        let table = std::fs::read_to_string(path).expect("the host is up");
        let row = table.lines().find_map(|line| line.trim().strip_prefix("eth0:")).expect("it has a link");
        row.split_whitespace().next().and_then(|bytes| bytes.parse().ok()).expect("the first column is bytes received")
    }
}

impl Host {
    fn up(name: &str, folder: &Path) -> Result<Self, String> {
        let path = folder.join(format!("{name}.mailbox"));
        let own = folder.join(name);
        let made = Command::new("mkfifo").arg(&path).status().and_then(|_| std::fs::create_dir(&own));
        // A named pipe that is open for both directions does not block.
        let mailbox = made.and_then(|()| File::options().read(true).write(true).open(&path));
        let mailbox = mailbox.map_err(|error| format!("{}: {error}", path.display()))?;
        let reader = File::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--uts", "--net", "--ipc", "--pid", "--mount-proc", "--fork", "--kill-child"]);
        command.args(["sh", "-c", INIT, "sh", name]).arg(folder.join("hosts"));
        // As through ssh, our environment does not get there.
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.env_clear().env("PATH", path).env("HOME", "/root").env("TMPDIR", &own);
        // But a host has the libraries that this one has: those of an emulated GPU are in a folder
        // of the build's.
        if let Some(folders) = std::env::var_os("LD_LIBRARY_PATH") {
            command.env("LD_LIBRARY_PATH", folders);
        }
        command.stdin(reader).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("unshare: {error}"))?;
        let mut line = String::new();
        let read = BufReader::new(process.stdout.take().expect("piped")).read_line(&mut line);
        if read.is_err() || line != "up\n" {
            let mut errors = String::new();
            let _ = process.stderr.take().expect("piped").read_to_string(&mut errors);
            let _ = process.wait();
            return Err(errors.trim().to_owned());
        }
        Ok(Self { process, _mailbox: mailbox, folder: own })
    }

    fn enter(&self, program: &str) -> Command {
        let pid = self.process.id();
        let mut command = Command::new("nsenter");
        command.args(["--target", &pid.to_string(), "--mount", "--uts", "--net", "--ipc"]);
        command.arg(format!("--pid=/proc/{pid}/ns/pid_for_children")).args(["--", program]);
        command
    }

    /// Sets up the host's links; processes are named by their numbers outside.
    fn ip(&self, arguments: &str) -> Result<(), String> {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.process.id().to_string(), "--net", "--", "ip"]).args(arguments.split(' '));
        let output = command.output().map_err(|error| format!("nsenter: {error}"))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        output.status.success().then_some(()).ok_or_else(|| format!("ip {arguments}: {}", errors.trim()))
    }

    /// Name and number, outside, of the processes here besides the first one.
    fn processes(&self) -> Vec<(String, u32)> {
        let numbers = |path: String| std::fs::read_link(path).ok();
        let here = numbers(format!("/proc/{}/ns/pid_for_children", self.process.id()));
        let Some(here) = here else { return Vec::new() };
        let entries = std::fs::read_dir("/proc").expect("it is mounted").flatten();
        let all = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let inside = all.filter(|pid| numbers(format!("/proc/{pid}/ns/pid")).as_ref() == Some(&here));
        inside.filter_map(|pid| Some((running(pid)?, pid))).collect()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Its first process goes with it, and with that one all others.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The name of a process, unless it has ended or is the first of its host.
fn running(pid: u32) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let ended = field("State:")?.starts_with(['Z', 'X']);
    let first = field("NSpid:")?.ends_with("\t1");
    (!ended && !first).then(|| field("Name:").map(str::to_owned))?
}

/// A host's address.
fn address(host: usize) -> String {
    format!("10.78.0.{}", host + 1)
}

/// Hosts with their slots, as mpirun wants them.
fn list(slots: &[usize]) -> String {
    let hosts: Vec<String> = NAMES.iter().zip(slots).map(|(name, slots)| format!("{name}:{slots}")).collect();
    hosts.join(",")
}
