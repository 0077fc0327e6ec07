//! Processes of this host, as the kernel shows them in `/proc`.

use std::path::PathBuf;

/// Facts of a process from `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// The kernel's letter for the process's state.
    pub state: char,
    /// When it started, in the kernel's ticks since boot; with its number it names a process for
    /// good.
    pub started_ticks: u64,
}

impl Stat {
    /// Whether the process has ended: all that is left of it is its exit code.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// State of a process, and its start; none if there is no such process here.
pub fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Numbers of all processes that this one sees.
pub fn all() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Whether a process was started with the variable `name` of that value. No for a process that this
/// one may not look at.
pub fn has_variable(pid: u32, name: &str, value: &str) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let wanted = format!("{name}={value}");
    environment.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes())
}

/// A kind of namespace, as the kernel calls it in `/proc/PID/ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespace {
    /// Namespace of network interfaces.
    Network,
    /// Namespace of process numbers.
    Process,
}

impl Namespace {
    /// The namespace that this process is in, as the kernel names it.
    pub fn of_this_process(self) -> Option<PathBuf> {
        std::fs::read_link(format!("/proc/self/ns/{}", self.name())).ok()
    }

    /// The namespace that a process is in; none for a process that this one may not look at.
    pub fn of(self, pid: u32) -> Option<PathBuf> {
        std::fs::read_link(format!("/proc/{pid}/ns/{}", self.name())).ok()
    }

    fn name(self) -> &'static str {
        match self {
            Namespace::Network => "net",
            Namespace::Process => "pid",
        }
    }
}

/// Number of threads of this process.
pub fn thread_count() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// State (field 3) and start in ticks since boot (field 22) of a line of `/proc/PID/stat`
/// (proc(5)). The name in field 2 may hold anything, parentheses too.
fn parse_stat(stat: &str) -> Option<Stat> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some(Stat { state, started_ticks: fields.nth(18)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_are_read() {
        let line = "12 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(parse_stat(line), Some(Stat { state: 'S', started_ticks: 4711 }));
        assert_eq!(parse_stat("12"), None);
    }

    #[test]
    fn another_process_is_seen_until_it_has_gone() {
        let mut child = std::process::Command::new("sleep").arg("60").env("OF_A_TEST", "a=b").spawn().expect("a child");
        let pid = child.id();
        while !has_variable(pid, "OF_A_TEST", "a=b") {
            std::thread::yield_now(); // a child has its environment from the moment it runs the program
        }
        assert!(!has_variable(pid, "OF_A_TEST", "a"));
        assert!(all().contains(&pid));
        assert_eq!(Namespace::Network.of(pid), Namespace::Network.of_this_process());
        assert_ne!(Namespace::Network.of(pid), Namespace::Process.of(pid));
        let before = stat(pid).expect("it runs");
        assert!(!before.has_ended() && before.started_ticks > 0, "{before:?}");
        child.kill().expect("it is ours");
        while !stat(pid).expect("its exit code has not been taken yet").has_ended() {
            std::thread::yield_now();
        }
        child.wait().expect("it has ended");
        assert_eq!(stat(pid), None);
    }

    #[test]
    fn threads_are_counted() {
        let before = thread_count();
        let both = std::thread::scope(|scope| scope.spawn(thread_count).join().expect("no panic"));
        assert!(before >= 1 && both > 1, "{before}, then {both}");
    }
}
