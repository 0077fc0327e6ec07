//! Expected lines, for every kind of request. The meaning of an option to mpirun itself is tested
//! with a real one.

use std::process::Command;

use tributary_engine::marker::LAUNCH_ID;
use tributary_mpirun::hosts::Hosts;
use tributary_mpirun::line::{Here, Launcher, Line, Wish, build, value_of};

/// Makes ranks that wait give up their core.
const YIELD: &str = "OMPI_MCA_mpi_yield_when_idle";

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn wish(ranks: usize, command: &str) -> Wish {
    Wish { ranks, command: words(command), ..Wish::default() }
}

fn here(cores: usize) -> Here {
    Here { cores, host: "node7".to_owned(), ..Here::default() }
}

fn open_mpi(major: u32) -> Launcher {
    Launcher::Mpirun { program: "mpirun".to_owned(), major }
}

fn shown(wish: &Wish, major: u32, here: &Here) -> String {
    build(wish, &open_mpi(major), here).to_string()
}

#[test]
fn ranks_with_cores_of_their_own_are_bound() {
    let line = shown(&wish(2, "t prefill"), 4, &here(4));
    assert_eq!(line, "mpirun -n 2 --map-by 'slot:PE=1' --bind-to core t prefill");
    let line = shown(&wish(2, "t prefill --threads 2"), 5, &here(4));
    assert_eq!(line, "mpirun -n 2 --map-by 'slot:PE=2' --bind-to core t prefill --threads 2");
    let line = shown(&wish(2, "t prefill --threads=3"), 4, &here(4));
    assert_eq!(line, "mpirun -n 2 --bind-to none t prefill '--threads=3'", "6 threads on 4 cores");
}

#[test]
fn more_ranks_than_cores_share_them() {
    let four = shown(&wish(4, "t"), 4, &here(2));
    assert_eq!(four, format!("{YIELD}=1 mpirun -n 4 --oversubscribe --bind-to none t"));
    let five = shown(&wish(4, "t"), 5, &here(2));
    assert_eq!(five, format!("{YIELD}=1 mpirun -n 4 --map-by :OVERSUBSCRIBE --bind-to none t"));
}

#[test]
fn hosts_are_not_oversubscribed_unasked() {
    let mut wish = wish(4, "t");
    wish.hosts = Hosts::from_list("a:2,b:2").expect("hosts");
    assert_eq!(shown(&wish, 4, &here(2)), "mpirun -n 4 --host 'a:2,b:2' --bind-to none t");
    wish.oversubscribe = true;
    let line = shown(&wish, 5, &here(2));
    assert_eq!(line, format!("{YIELD}=1 mpirun -n 4 --host 'a:2,b:2' --map-by :OVERSUBSCRIBE --bind-to none t"));
    wish.oversubscribe = false;
    wish.hostfile = Some("my hosts".to_owned());
    assert_eq!(shown(&wish, 4, &here(2)), "mpirun -n 4 --hostfile 'my hosts' --bind-to none t");
}

#[test]
fn this_machine_as_a_host() {
    let mut wish = wish(4, "t");
    wish.hosts = Hosts::from_list("localhost:4").expect("hosts");
    let crowded = shown(&wish, 4, &here(2));
    assert_eq!(crowded, format!("{YIELD}=1 mpirun -n 4 --host localhost:4 --bind-to none t"), "slots suffice");
    let roomy = shown(&wish, 4, &here(4));
    assert_eq!(roomy, "mpirun -n 4 --host localhost:4 --map-by 'slot:PE=1' --bind-to core t");
}

#[test]
fn what_a_batch_system_granted_is_left_to_mpirun() {
    let mut here = here(2);
    here.environment.insert("SLURM_JOB_ID".to_owned(), "7".to_owned());
    assert_eq!(shown(&wish(8, "t"), 4, &here), "mpirun -n 8 --bind-to none t");
}

#[test]
fn the_user_has_the_last_word_on_placement() {
    let mut wish = wish(2, "t");
    wish.bind_to = Some("numa".to_owned());
    assert_eq!(shown(&wish, 4, &here(4)), "mpirun -n 2 --bind-to numa t");
    wish.map_by = Some("node".to_owned());
    wish.oversubscribe = true;
    let five = shown(&wish, 5, &here(4));
    assert_eq!(five, format!("{YIELD}=1 mpirun -n 2 --map-by node:OVERSUBSCRIBE --bind-to numa t"));
    wish.extra = words("--mca btl self,tcp");
    let four = shown(&wish, 4, &here(4));
    let placed = "--oversubscribe --map-by node --bind-to numa";
    assert_eq!(four, format!("{YIELD}=1 mpirun -n 2 {placed} --mca btl 'self,tcp' t"));
}

#[test]
fn root_is_allowed() {
    let root = Here { is_root: true, ..here(1) };
    for major in [4, 5] {
        assert!(shown(&wish(1, "t"), major, &root).starts_with("mpirun --allow-run-as-root -n 1 "));
    }
}

#[test]
fn variables_are_forwarded() {
    let mut here = here(1);
    for (name, value) in [
        ("FAILPOINTS", "probe=panic"),
        ("HOME", "/root"),
        ("LD_LIBRARY_PATH", "/opt/lib"),
        ("MINE", "1"),
        ("NCCL_DEBUG", "INFO"),
        ("RUST_BACKTRACE", "1"),
        ("TRIBUTARY_A", "x"),
        (LAUNCH_ID, ""),
    ] {
        here.environment.insert(name.to_owned(), value.to_owned());
    }
    let mut wish = wish(1, "t");
    wish.env = words("MINE ABSENT YOURS=a;b NCCL_DEBUG=WARN");
    let line = build(&wish, &open_mpi(4), &here);
    let names: Vec<&str> =
        line.arguments.windows(2).filter(|pair| pair[0] == "-x").map(|pair| pair[1].as_str()).collect();
    let usual = ["FAILPOINTS", "LD_LIBRARY_PATH", "NCCL_DEBUG", "RUST_BACKTRACE", "TRIBUTARY_A", LAUNCH_ID];
    assert_eq!(names, [&usual[..], &["MINE", "YOURS"]].concat());
    let set: Vec<_> = line.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(set, [("NCCL_DEBUG", "WARN"), ("YOURS", "a;b")]);
}

#[test]
fn srun_lines() {
    let mut wish = wish(4, "t prefill --threads 3");
    let line = build(&wish, &Launcher::Srun, &here(2)).to_string();
    assert_eq!(line, "srun '--mpi=pmix' '--kill-on-bad-exit=1' -n 4 '--cpus-per-task=3' t prefill --threads 3");
    wish.command = words("t");
    wish.oversubscribe = true;
    wish.bind_to = Some("none".to_owned());
    wish.env = words("A=1 HOME");
    wish.extra = words("--nodes=2");
    let line = build(&wish, &Launcher::Srun, &here(2)).to_string();
    let options = "-n 4 '--cpus-per-task=1' --overcommit '--cpu-bind=none' '--nodes=2'";
    assert_eq!(line, format!("A=1 {YIELD}=1 srun '--mpi=pmix' '--kill-on-bad-exit=1' {options} t"));
}

#[test]
fn words_are_quoted() {
    for (word, expected) in [("a-b_c/d:1.2@3", "a-b_c/d:1.2@3"), ("", "''"), ("a b", "'a b'"), ("a=1,2", "'a=1,2'")] {
        let line = Line { program: "t".to_owned(), arguments: vec![word.to_owned()], ..Line::default() };
        assert_eq!(line.to_string(), format!("t {expected}"));
    }
    // A shell reads back the original words.
    let line = Line { program: "printf".to_owned(), arguments: vec!["%s|".to_owned()], ..Line::default() };
    let odd = ["$HOME", "a  b", "'", "\"`x`\"", "*", "", "~", "new\nline", "#"];
    let line = Line { arguments: line.arguments.iter().cloned().chain(odd.map(str::to_owned)).collect(), ..line };
    let output = Command::new("/bin/sh").args(["-c", &line.to_string()]).output().expect("a shell");
    assert_eq!(String::from_utf8_lossy(&output.stdout), odd.map(|word| format!("{word}|")).concat());
}

#[test]
fn options_of_the_command_are_found() {
    let command = words("t prefill --threads 2 --threads-x 9 --world-size=4 --last");
    assert_eq!(value_of(&command, "--threads"), Some("2"));
    assert_eq!(value_of(&command, "--world-size"), Some("4"));
    assert_eq!(value_of(&command, "--last"), None);
    assert_eq!(value_of(&command, "--absent"), None);
    for (command, count) in [("t", 1), ("t --threads 0", 1), ("t --threads x", 1), ("t --threads 7", 7)] {
        let line = build(&wish(1, command), &Launcher::Srun, &here(2)).to_string();
        assert!(line.contains(&format!(" '--cpus-per-task={count}' ")), "{command}: {line}");
    }
}

#[test]
fn a_line_runs_under_another_program() {
    let line = Line { program: "mpirun".to_owned(), arguments: words("-n 2"), ..Line::default() };
    assert_eq!(line.under("t", &words("launch --")).to_string(), "t launch -- mpirun -n 2");
}
