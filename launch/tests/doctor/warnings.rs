//! Each warning from facts that ask for it, and silence otherwise.

use tributary::doctor::{Collectives, CpuLimit, Facts, Interface, Limits, Report, Space};

const MIB: u64 = 1 << 20;

/// A rank on a machine without problems: one thread, with its own core.
fn rank(host: &str, number: usize) -> Facts {
    let interface = |name: &str, loopback, address: &str| Interface {
        name: name.into(),
        state: "up".into(),
        loopback,
        addresses: vec![address.into()],
        ..Interface::default()
    };
    Facts {
        host: host.into(),
        boot_id: format!("boot of {host}"),
        pid: number as u32,
        threads: 1,
        cores: [number].into(),
        instructions: "AVX2".into(),
        version: "0.1.0".into(),
        shared_memory: Some(Space { free_bytes: 1024 * MIB, total_bytes: 1024 * MIB }),
        limits: Limits { open_files: Some(1024), ..Limits::default() },
        interfaces: vec![interface("lo", true, "127.0.0.1/8"), interface("eth0", false, "10.0.0.1/24")],
        ..Facts::default()
    }
}

fn said(ranks: &[Facts]) -> Vec<String> {
    Report::new("mpirun", ranks, Collectives::default(), None).warnings
}

/// Four ranks on two hosts, some of them changed.
fn four(change: impl Fn(usize, &mut Facts)) -> Vec<String> {
    let mut ranks: Vec<Facts> = (0..4).map(|number| rank(["a", "b"][number / 2], number)).collect();
    for (number, facts) in ranks.iter_mut().enumerate() {
        change(number, facts);
    }
    said(&ranks)
}

/// Exactly one warning, with all of these parts.
fn one(found: &[String], parts: &[&str]) {
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(!found[0].contains('\n'));
    for part in parts {
        assert!(found[0].contains(part), "`{part}` is not in: {}", found[0]);
    }
}

#[test]
fn nothing_is_said_where_all_is_well() {
    assert_eq!(said(&[rank("a", 0)]), [""; 0]);
    assert_eq!(four(|_, _| ()), [""; 0]);
}

#[test]
fn ranks_that_share_cores() {
    type Case<'a> = (&'a [(usize, &'a [usize])], &'a [&'a str]);
    // (threads, cores) of each rank of one machine, and the warnings.
    let table: [Case<'_>; 8] = [
        (&[(2, &[0, 1]), (2, &[2, 3])], &[]),
        (&[(1, &[0, 1]), (1, &[0, 1])], &[]),
        (&[(1, &[0, 1]), (1, &[0, 1]), (2, &[0, 1])], &["a: 4 threads of ranks 0-2 share 2 cores (0-1)"]),
        (&[(4, &[0]), (1, &[1])], &["a: 4 threads of rank 0 share 1 core (0)"]),
        (&[(1, &[0]), (1, &[0]), (1, &[1])], &["a: 2 threads of ranks 0-1 share 1 core (0)"]),
        // Each pair fits, all three do not.
        (&[(1, &[0, 1]), (1, &[1, 2]), (2, &[0, 2])], &["a: 4 threads of ranks 0-2 share 3 cores (0-2)"]),
        // Two sockets, each with too many; the machine as a whole adds nothing.
        (
            &[(3, &[0, 1]), (3, &[2, 3])],
            &["a: 3 threads of rank 0 share 2 cores (0-1)", "a: 3 threads of rank 1 share 2 cores (2-3)"],
        ),
        // Unknown cores say nothing.
        (&[(9, &[])], &[]),
    ];
    for (ranks, wanted) in table {
        let facts: Vec<Facts> = ranks
            .iter()
            .enumerate()
            .map(|(number, (threads, cores))| Facts {
                threads: *threads,
                cores: cores.iter().copied().collect(),
                ..rank("a", number)
            })
            .collect();
        let mut found = said(&facts);
        found.retain(|warning| warning.contains("share") && warning.contains("core"));
        assert_eq!(found.len(), wanted.len(), "{ranks:?}: {found:?}");
        for (found, wanted) in found.iter().zip(wanted) {
            assert!(found.starts_with(wanted) && found.contains("timings are functional only"), "{ranks:?}: {found}");
        }
    }
}

#[test]
fn containers_of_one_machine_share_its_cores() {
    let together = four(|_, facts| {
        facts.boot_id = "one".into();
        facts.cores = [0, 1].into();
    });
    one(&together, &["a, b: 4 threads of ranks 0-3 share 2 cores (0-1)"]);
    assert_eq!(four(|_, facts| facts.cores = [0, 1].into()), [""; 0], "two machines of two cores");
    one(
        &four(|number, facts| {
            facts.boot_id.clear();
            facts.cores = if number < 2 { [0].into() } else { [number].into() };
        }),
        &["a: 2 threads of ranks 0-1 share 1 core (0)"],
    );
}

#[test]
fn tight_control_groups() {
    let limit = |cores, group: &str| Some(CpuLimit { cores, group: group.into() });
    one(
        &four(|number, facts| facts.cpu_limit = if number < 2 { limit(1.5, "/job") } else { None }),
        &["a: 2 threads under a control group's limit of 1.5 cores (/job)", "raise the limit"],
    );
    assert_eq!(four(|_, facts| facts.cpu_limit = limit(2.0, "/job")), [""; 0], "two threads on each host");
    assert_eq!(four(|number, facts| facts.cpu_limit = limit(1.0, &format!("/{number}"))), [""; 0], "a group each");
}

#[test]
fn little_shared_memory() {
    let space = |free_bytes| Some(Space { free_bytes, total_bytes: 1024 * MIB });
    one(
        &four(|number, facts| {
            if number < 2 {
                facts.shared_memory = space(128 * MIB - 1);
            }
        }),
        &["a: /dev/shm has 128.0 MiB free for 2 processes; 128.0 MiB would do", "--shm-size"],
    );
    assert_eq!(four(|_, facts| facts.shared_memory = space(128 * MIB)), [""; 0]);
    let threads = |number: usize, facts: &mut Facts| {
        facts.pid = number as u32 / 2;
        facts.shared_memory = space(64 * MIB);
    };
    assert_eq!(four(threads), [""; 0], "ranks that are threads of one process need it once");
    assert_eq!(four(|_, facts| facts.shared_memory = None).len(), 2);
}

#[test]
fn few_open_files() {
    one(
        &four(|number, facts| {
            if number == 3 {
                facts.limits.open_files = Some(1023);
            }
        }),
        &["b: 1023 open files allowed; 1024 would do (ulimit -n)"],
    );
    assert_eq!(four(|_, facts| facts.limits.open_files = None), [""; 0], "unlimited");
}

#[test]
fn hosts_that_cannot_be_reached() {
    let loopback_only = |facts: &mut Facts| facts.interfaces.truncate(1);
    let found = four(|number, facts| {
        if number >= 2 {
            loopback_only(facts);
        }
    });
    one(&found, &["b: no interface but loopback"]);
    let mut alone = rank("a", 0);
    loopback_only(&mut alone);
    assert_eq!(said(&[alone]), [""; 0], "one host needs none");
}

#[test]
fn ranks_that_differ() {
    let fourth = |change: fn(&mut Facts)| {
        four(move |number, facts| {
            if number == 3 {
                change(facts);
            }
        })
    };
    one(&fourth(|facts| facts.cores = [3, 4].into()), &["cores: 1 on ranks 0-2, 2 on rank 3; the slowest rank"]);
    one(
        &fourth(|facts| facts.instructions = "AVX-512".into()),
        &["instructions: AVX2 on ranks 0-2, AVX-512 on rank 3"],
    );
    one(
        &fourth(|facts| facts.version = "0.0.9".into()),
        &["version: 0.1.0 on ranks 0-2, 0.0.9 on rank 3; install the same build"],
    );
}

#[test]
fn machines_of_one_name() {
    one(&four(|number, facts| facts.host = ["a", "c", "b", "a"][number].into()), &["2 machines are called a"]);
}
