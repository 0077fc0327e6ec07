//! The hosts that ranks may run on, as the user names them: `--hosts a:2,b:2`, or a file in Open
//! MPI's format.
//!
//! Knows their names and slots only. The number of their cores is known to their own daemons, not
//! here.

use std::fmt;
use std::net::ToSocketAddrs;
use std::path::Path;

/// A host and its room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its name or address.
    pub name: String,
    /// Maximum number of its ranks; absent where not given.
    pub slots: Option<usize>,
}

/// The hosts of a job. Empty where mpirun is to use this machine, or the hosts of a batch system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hosts(Vec<Host>);

impl Hosts {
    /// `a:2,b:2`, or `a,b` where the slots are not known.
    ///
    /// # Errors
    /// Returns what is wrong, in one line.
    pub fn from_list(list: &str) -> Result<Self, String> {
        let entry = |text: &str| match split_slots(text) {
            ("", _) => Err(format!("--hosts {list}: a name is missing; write HOST:SLOTS,.., such as a:2,b:2")),
            (name, None) => Ok(Host { name: name.to_owned(), slots: None }),
            (name, Some(slots)) => Ok(Host { name: name.to_owned(), slots: Some(count(slots, name, "--hosts")?) }),
        };
        distinct(list.split(',').map(|text| entry(text.trim())).collect::<Result<_, _>>()?, "--hosts")
    }

    /// A file with `HOST slots=N` in each line; `#` begins a comment.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or holds something else.
    pub fn from_file(path: &Path) -> Result<Self, String> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| format!("--hostfile {name}: {error}"))?;
        Self::from_file_text(&text, &name)
    }

    fn from_file_text(text: &str, file: &str) -> Result<Self, String> {
        let mut hosts = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let place = format!("{file} line {}", index + 1);
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let Some(name) = words.next() else { continue };
            let mut host = Host { name: name.to_owned(), slots: None };
            for word in words {
                match word.split_once('=') {
                    Some(("slots", slots)) => host.slots = Some(count(slots, name, &place)?),
                    Some(("max_slots" | "max-slots", _)) => {}
                    _ => return Err(format!("{place}: `{word}` is not slots=N")),
                }
            }
            hosts.push(host);
        }
        if hosts.is_empty() {
            return Err(format!("{file}: no host; write lines such as `a slots=2`"));
        }
        distinct(hosts, file)
    }

    /// Whether no host is named.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The hosts, in the order given.
    pub fn iter(&self) -> impl Iterator<Item = &Host> {
        self.0.iter()
    }

    /// All slots; a host counts for one where its slots are not known.
    pub fn slots(&self) -> usize {
        self.0.iter().map(|host| host.slots.unwrap_or(1)).fold(0, usize::saturating_add)
    }

    /// Whether `ranks` ranks have room.
    ///
    /// # Errors
    /// Returns an error if the hosts have too few slots, or if slots are missing, so that their
    /// number is unknown.
    pub fn check(&self, ranks: usize) -> Result<(), String> {
        if self.is_empty() || ranks <= self.slots() {
            return Ok(());
        }
        if let Some(host) = self.0.iter().find(|host| host.slots.is_none()) {
            return Err(format!("-n {ranks}: the slots of host {0} are not known; write {0}:SLOTS", host.name));
        }
        let slots = self.slots();
        Err(format!("-n {ranks}: only {slots} slots on {self}; give fewer ranks, more slots, or --oversubscribe"))
    }

    /// Whether every name leads to an address.
    ///
    /// # Errors
    /// Returns the first name that does not resolve.
    pub fn resolve(&self) -> Result<(), String> {
        for Host { name, .. } in &self.0 {
            let address = name.trim_start_matches('[').trim_end_matches(']');
            let found = (address, 0).to_socket_addrs();
            found.map_err(|error| format!("unknown host {name}: {}", error.to_string().replace('\n', "; ")))?;
        }
        Ok(())
    }

    /// Whether all of them are this machine, which calls itself `here`.
    pub fn are_here(&self, here: &str) -> bool {
        let short = here.split('.').next().unwrap_or_default();
        let names = ["localhost", "127.0.0.1", "::1", "[::1]", here, short];
        self.0.iter().all(|host| names.contains(&host.name.as_str()))
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, host) in self.0.iter().enumerate() {
            f.write_str(if index > 0 { "," } else { "" })?;
            match host.slots {
                Some(slots) => write!(f, "{}:{slots}", host.name)?,
                None => f.write_str(&host.name)?,
            }
        }
        Ok(())
    }
}

/// Name and slots of `NAME[:SLOTS]`. An address of IPv6 is in brackets where slots follow.
fn split_slots(text: &str) -> (&str, Option<&str>) {
    if let Some(end) = text.find(']') {
        return (&text[..=end], text[end + 1..].strip_prefix(':'));
    }
    match text.split_once(':') {
        Some((_, rest)) if rest.contains(':') => (text, None),
        Some((name, slots)) => (name, Some(slots)),
        None => (text, None),
    }
}

fn count(slots: &str, name: &str, place: &str) -> Result<usize, String> {
    match slots.parse() {
        Ok(0) => Err(format!("{place}: host {name} has 0 slots; at least 1")),
        Ok(count) => Ok(count),
        Err(_) => Err(format!("{place}: `{slots}` is not the number of slots of host {name}")),
    }
}

fn distinct(hosts: Vec<Host>, place: &str) -> Result<Hosts, String> {
    for (index, host) in hosts.iter().enumerate() {
        if hosts[..index].iter().any(|other| other.name == host.name) {
            return Err(format!("{place}: host {} is named twice; add its slots together", host.name));
        }
    }
    Ok(Hosts(hosts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, slots: Option<usize>) -> Host {
        Host { name: name.to_owned(), slots }
    }

    #[test]
    fn lists_are_read() {
        let hosts = Hosts::from_list("a:2,b:3").expect("two hosts");
        assert_eq!(hosts, Hosts(vec![host("a", Some(2)), host("b", Some(3))]));
        assert_eq!((hosts.slots(), hosts.to_string().as_str()), (5, "a:2,b:3"));
        let hosts = Hosts::from_list("10.0.0.1, fe80::1,[::1]:4").expect("three hosts");
        assert_eq!(hosts, Hosts(vec![host("10.0.0.1", None), host("fe80::1", None), host("[::1]", Some(4))]));
    }

    #[test]
    fn lists_that_are_none() {
        let cases = [
            ("", "name is missing"),
            ("a:2,,b", "name is missing"),
            (":2", "name is missing"),
            ("a:0", "0 slots"),
            ("a:x", "`x`"),
            ("a:-1", "`-1`"),
            ("a:", "``"),
            ("a:2,b:1,a:1", "a is named twice"),
        ];
        for (list, says) in cases {
            let error = Hosts::from_list(list).expect_err(list);
            assert!(error.contains(says) && error.lines().count() == 1, "{list}: {error}");
        }
    }

    #[test]
    fn files_are_read() {
        let text = "# two hosts\n\na slots=2 # fast\nb max_slots=4\tslots=3\nc\n";
        let hosts = Hosts::from_file_text(text, "hosts").expect("three hosts");
        assert_eq!(hosts, Hosts(vec![host("a", Some(2)), host("b", Some(3)), host("c", None)]));
        let cases = [
            ("", "no host"),
            ("# a slots=2", "no host"),
            ("a\nb slots=0", "line 2: host b has 0 slots"),
            ("a slots", "`slots` is not slots=N"),
            ("a cpus=2", "`cpus=2`"),
            ("a\na", "twice"),
        ];
        for (text, says) in cases {
            let error = Hosts::from_file_text(text, "hosts").expect_err(text);
            assert!(error.contains(says) && error.lines().count() == 1, "{text}: {error}");
        }
        let error = Hosts::from_file(Path::new("/no/such/file")).expect_err("no file");
        assert!(error.contains("/no/such/file"), "{error}");
    }

    #[test]
    fn room_is_checked() {
        let hosts = |list: &str| Hosts::from_list(list).expect("hosts");
        assert_eq!(Hosts::default().check(100), Ok(()));
        assert_eq!(hosts("a:2,b:2").check(4), Ok(()));
        assert_eq!(hosts("a,b").check(2), Ok(()));
        let error = hosts("a:2,b:2").check(5).expect_err("too many");
        assert!(error.contains("-n 5") && error.contains("4 slots on a:2,b:2"), "{error}");
        let error = hosts("a:2,b").check(4).expect_err("not known");
        assert!(error.contains("host b") && error.contains("b:SLOTS"), "{error}");
    }

    #[test]
    fn names_must_lead_somewhere() {
        let hosts = |list: &str| Hosts::from_list(list).expect("hosts");
        assert_eq!(hosts("localhost:1,127.0.0.2:1,[::1]:1").resolve(), Ok(()));
        let error = hosts("localhost:1,no-such-host.invalid:1").resolve().expect_err("unknown");
        assert!(error.contains("unknown host no-such-host.invalid") && error.lines().count() == 1, "{error}");
    }

    #[test]
    fn this_machine_is_known() {
        let hosts = |list: &str| Hosts::from_list(list).expect("hosts");
        assert!(hosts("localhost:4,node7").are_here("node7.cluster"));
        assert!(hosts("node7.cluster:4").are_here("node7.cluster"));
        assert!(!hosts("localhost,node8").are_here("node7"));
        assert!(!hosts("node7.other:4").are_here("node7.cluster"));
        assert!(Hosts::default().are_here("node7"));
    }
}
