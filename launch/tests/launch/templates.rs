//! Templates can be read by what will read them, and name no option that we do not have.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use tributary::mpirun::hosts::Hosts;

use super::kit::{root, tributary};

fn path(name: &str) -> PathBuf {
    root().join("launch/templates").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(path(name)).expect("a template")
}

/// Fails unless each of these options is in the help of `prefill` or of `launch`.
fn check_options(name: &str, words: &[String]) {
    let help = |command: &str| String::from_utf8(tributary(&[command, "--help"]).stdout).expect("text");
    let help = help("prefill") + &help("launch");
    let known: Vec<&str> = help.split([' ', ',', '\n', '[', ']']).filter(|word| word.starts_with('-')).collect();
    let options: Vec<&String> = words.iter().filter(|word| word.starts_with('-') && *word != "--").collect();
    assert!(options.len() >= 5, "{name}: {options:?}");
    for option in options {
        assert!(known.contains(&option.as_str()), "{name} names {option}, which is not in --help");
    }
}

/// Options after the program in a script: of the line that runs it, and of the default command.
fn options_of_script(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let mut words = Vec::new();
    for line in joined.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        let ours = line.strip_prefix("set -- ").or_else(|| line.split_once("\"$tributary\" ").map(|(_, rest)| rest));
        words.extend(ours.unwrap_or_default().split_whitespace().map(str::to_owned));
    }
    words
}

#[test]
fn scripts_parse_and_name_our_options() {
    for (shell, name) in [("sh", "run.sh"), ("bash", "run.sh"), ("bash", "slurm.sbatch")] {
        let output = Command::new(shell).arg("-n").arg(path(name)).output().expect("a shell");
        assert!(output.status.success() && output.stderr.is_empty(), "{name}: {output:?}");
        check_options(name, &options_of_script(&text(name)));
    }
}

#[test]
fn scripts_run_what_they_are_given() {
    // The launcher is played by a script that shows the rank's command and ends as a killed rank makes it end.
    let folder = tempfile::tempdir().expect("a folder");
    for (name, launcher) in [("run.sh", "mpirun"), ("slurm.sbatch", "srun")] {
        let fake = folder.path().join(launcher);
        let body = "#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit \"$FAKE_STATUS\"\n";
        let write = "printf '%s' \"$2\" > \"$1\" && chmod +x \"$1\"";
        let written = Command::new("/bin/sh").args(["-c", write, "sh"]).arg(&fake).arg(body).status();
        assert!(written.expect("a shell").success());
        for (status, exit_code) in [(0, 0), (64, 64), (75, 75), (130, 130), (137, 69), (139, 69), (143, 143)] {
            let output = Command::new("bash")
                .arg(path(name))
                .args(["doctor", "--sizes", "1 MiB"])
                .env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()))
                .envs([("RANKS", "6"), ("THREADS", "2"), ("TRIBUTARY", "/opt/tributary")])
                .envs([("SLURM_SUBMIT_DIR", "/"), ("SLURM_JOB_NUM_NODES", "2"), ("SLURM_NTASKS_PER_NODE", "3")])
                .envs([("SLURM_CPUS_PER_TASK", "2"), ("FAKE_STATUS", &status.to_string())])
                .env_remove("SLURM_NTASKS")
                .output()
                .expect("a shell");
            assert_eq!(output.status.code(), Some(exit_code), "{name}, status {status}: {output:?}");
            let shown = String::from_utf8(output.stdout).expect("text");
            let command = "/opt/tributary\ndoctor\n--backend\nmpi\n--world-size\n6\n--threads\n2\n--sizes\n1 MiB\n";
            assert!(shown.ends_with(command), "{name}: {shown}");
        }
    }
}

#[test]
fn the_hostfile_is_one() {
    let hosts = Hosts::from_file(&path("hostfile")).expect("a hostfile");
    assert!(hosts.iter().all(|host| host.slots.is_some()));
    assert_eq!((hosts.iter().count(), hosts.slots()), (2, 8));
    assert_eq!(hosts.check(8), Ok(()));
}

/// The values of a YAML file in block style by their paths, such as `spec.list.0.name`. Knows no more of YAML than the
/// template needs, and refuses the rest.
fn yaml(text: &str) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    // Open levels: indentation, name, and how many entries of a list were seen.
    let mut levels: Vec<(usize, String)> = Vec::new();
    let mut entries: BTreeMap<String, usize> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#')) {
        let mut rest = line.trim_start_matches(' ');
        let mut indent = line.len() - rest.len();
        assert!(indent % 2 == 0 && !line.contains('\t'), "indentation: {line}");
        levels.retain(|(level, _)| *level < indent);
        if let Some(entry) = rest.strip_prefix("- ") {
            let list: Vec<&str> = levels.iter().map(|(_, name)| name.as_str()).collect();
            let count = entries.entry(list.join(".")).or_default();
            levels.push((indent, count.to_string()));
            *count += 1;
            (rest, indent) = (entry, indent + 2);
        }
        let (name, value) = match rest.split_once(':') {
            Some((name, value)) if value.is_empty() || value.starts_with(' ') => (Some(name), value.trim()),
            _ => (None, rest),
        };
        let names = levels.iter().map(|(_, name)| name.as_str()).chain(name);
        let path = names.collect::<Vec<_>>().join(".");
        if let Some(name) = name {
            levels.push((indent, name.to_owned()));
        }
        if !value.is_empty() {
            assert!(!value.starts_with(['{', '[', '&', '*', '|', '>']), "not known here: {line}");
            assert_eq!(values.insert(path, value.trim_matches('"').to_owned()), None, "twice: {line}");
        }
    }
    values
}

#[test]
fn the_job_for_kubernetes_is_consistent() {
    let values = yaml(&text("mpijob.yaml"));
    let value = |path: &str| values.get(path).unwrap_or_else(|| panic!("{path} is missing: {values:#?}")).as_str();
    assert_eq!(value("apiVersion"), "kubeflow.org/v2beta1");
    assert_eq!(value("kind"), "MPIJob");
    assert_eq!(value("spec.launcherCreationPolicy"), "WaitForWorkersReady");
    assert_eq!(value("spec.mpiImplementation"), "OpenMPI");
    let worker = "spec.mpiReplicaSpecs.Worker";
    assert_eq!(value(&format!("{worker}.template.spec.containers.0.volumeMounts.0.mountPath")), "/dev/shm");
    assert_eq!(value(&format!("{worker}.template.spec.volumes.0.emptyDir.medium")), "Memory");

    let launcher = "spec.mpiReplicaSpecs.Launcher.template.spec.containers.0.command";
    let command: Vec<String> = (0..).map_while(|index| values.get(&format!("{launcher}.{index}")).cloned()).collect();
    assert_eq!(command[..2], ["tributary", "launch"]);
    check_options("mpijob.yaml", &command);
    let after = |option: &str| {
        let index = command.iter().position(|word| word == option).expect(option);
        command[index + 1].parse::<usize>().expect("a number")
    };
    let number = |path: &str| value(path).parse::<usize>().expect("a number");
    let ranks = number(&format!("{worker}.replicas")) * number("spec.slotsPerWorker");
    assert_eq!((after("-n"), after("--world-size")), (ranks, ranks));
    assert_eq!(after("--threads"), number(&format!("{worker}.template.spec.containers.0.resources.limits.cpu")));
}
