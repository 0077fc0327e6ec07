//! Templates are valid for their readers, and name only existing options.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use tributary_mpirun::hosts::Hosts;

use super::kit::{root, tributary};

fn path(name: &str) -> PathBuf {
    root().join("launch/templates").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(path(name)).expect("a template")
}

/// Fails unless each of these options is in the help of `prefill`, `serve` or `launch`.
fn check_options(name: &str, words: &[String]) {
    let help = |command: &str| String::from_utf8(tributary(&[command, "--help-all"]).stdout).expect("text");
    let help = help("prefill") + &help("serve") + &help("launch");
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
    for (shell, name) in [("sh", "run.sh"), ("bash", "run.sh"), ("bash", "slurm.sbatch"), ("bash", "serve.sbatch")] {
        let output = Command::new(shell).arg("-n").arg(path(name)).output().expect("a shell");
        assert!(output.status.success() && output.stderr.is_empty(), "{name}: {output:?}");
        check_options(name, &options_of_script(&text(name)));
    }
}

#[test]
fn scripts_run_what_they_are_given() {
    // The launcher is played by a script that shows the rank's command and ends as a killed rank
    // makes it end.
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
fn the_serving_script_starts_again_what_has_lost_a_rank_and_passes_on_that_it_shall_end() {
    // A script plays srun: it notes its start, waits for an order if it shall, and ends with the
    // exit code in a file.
    let folder = tempfile::tempdir().expect("a folder");
    let fake = "#!/bin/bash\necho \"$@\" >>\"$FAKE/starts\"\ntrap 'echo asked >>\"$FAKE/starts\"; exit 0' USR1\n\
        [ -z \"$FAKE_WAITS\" ] || for i in {1..200}; do sleep 0.05; done\nexit \"$FAKE_STATUS\"\n";
    let write = "printf '%s' \"$2\" > \"$1\" && chmod +x \"$1\"";
    let srun = folder.path().join("srun");
    let written = Command::new("/bin/sh").args(["-c", write, "sh"]).arg(&srun).arg(fake).status();
    assert!(written.expect("a shell").success());
    let starts = || std::fs::read_to_string(folder.path().join("starts")).unwrap_or_default();
    let start = |status: &str, waits: &str| {
        let _ = std::fs::remove_file(folder.path().join("starts"));
        let mut script = Command::new("bash");
        script.arg(path("serve.sbatch")).args(["--model", "m"]).env("FAKE", folder.path());
        script.env("PATH", format!("{}:/usr/bin:/bin", folder.path().display())).env("TRIBUTARY", "/opt/tributary");
        script.envs([("SLURM_SUBMIT_DIR", "/"), ("SLURM_NTASKS", "6"), ("SLURM_CPUS_PER_TASK", "2"), ("KEYS", "/k")]);
        script.envs([("RESTARTS", "2"), ("FAKE_STATUS", status), ("FAKE_WAITS", waits)]);
        script.stderr(std::process::Stdio::null()).spawn().expect("a shell")
    };
    for (status, code, times) in [("0", 0, 1), ("64", 64, 1), ("75", 75, 3), ("137", 69, 3), ("69", 69, 3)] {
        let ended = start(status, "").wait().expect("it is our child");
        assert_eq!(ended.code(), Some(code), "status {status}");
        let lines = starts();
        assert_eq!(lines.lines().count(), times, "status {status}: {lines}");
        let first = lines.lines().next().expect("a start");
        assert!(
            first.contains("/opt/tributary serve --backend mpi --world-size 6 --threads 2 --listen 0.0.0.0:8080"),
            "{first}"
        );
        assert!(first.ends_with(" --model m"), "{first}");
    }
    let mut waits = start("69", "yes");
    let began = std::time::Instant::now();
    while starts().is_empty() {
        assert!(began.elapsed() < std::time::Duration::from_secs(10), "it never starts");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // Its trap is there a moment after its first line.
    std::thread::sleep(std::time::Duration::from_millis(200));
    super::kit::job::signal(waits.id(), rustix::process::Signal::TERM);
    assert_eq!(waits.wait().expect("it is our child").code(), Some(0));
    assert!(starts().ends_with("asked\n"), "{}", starts());
}

#[test]
fn the_unit_for_systemd_is_one_and_drains() {
    let text = text("tributary.service");
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
        line.unwrap_or_else(|| panic!("{name} is missing"))
    };
    let words: Vec<String> = value("ExecStart").split(' ').map(str::to_owned).collect();
    assert_eq!(words[..2], ["/usr/local/bin/tributary", "launch"]);
    check_options("tributary.service", &words[2..]);
    let drains = words.iter().position(|word| word == "--drain-timeout").map(|place| words[place + 1].parse::<u64>());
    let stops: u64 = value("TimeoutStopSec").parse().expect("seconds");
    assert!(drains.expect("it is there").expect("seconds") < stops, "systemd waits for what is drained");
    assert_eq!(value("KillMode"), "mixed");
    assert_eq!(
        (value("ProtectSystem"), value("PrivateTmp")),
        ("strict", "yes"),
        "the one alone leaves no place for files"
    );
    // systemd's own reader, where there is one, knows every line but the program, which is not
    // installed.
    let checked = Command::new("systemd-analyze").arg("verify").arg(path("tributary.service")).output();
    match checked {
        Ok(checked) => {
            let errors = String::from_utf8_lossy(&checked.stderr);
            let wrong: Vec<_> = errors.lines().filter(|line| line.contains("tributary.service:")).collect();
            assert!(wrong.iter().all(|line| line.contains("is not executable")), "{errors}");
        }
        Err(_) => super::kit::skipped("systemd-analyze verify: there is no systemd"),
    }
}

#[test]
fn the_hostfile_is_one() {
    let hosts = Hosts::from_file(&path("hostfile")).expect("a hostfile");
    assert!(hosts.iter().all(|host| host.slots.is_some()));
    assert_eq!((hosts.iter().count(), hosts.slots()), (2, 8));
    assert_eq!(hosts.check(8), Ok(()));
}

/// The values of a YAML file in block style by their paths, such as `spec.list.0.name`. Knows no
/// more of YAML than the template needs, and refuses the rest.
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
fn the_jobs_for_kubernetes_are_consistent() {
    is_consistent("mpijob.yaml");
    is_consistent("mpijob-serve.yaml");
    let values = yaml(&text("mpijob-serve.yaml"));
    let value = |path: &str| values.get(path).unwrap_or_else(|| panic!("{path} is missing: {values:#?}")).as_str();
    let launcher = "spec.mpiReplicaSpecs.Launcher.template.spec";
    let grace: u64 = value(&format!("{launcher}.terminationGracePeriodSeconds")).parse().expect("seconds");
    let command: Vec<String> =
        (0..).map_while(|index| values.get(&format!("{launcher}.containers.0.command.{index}")).cloned()).collect();
    let after = |option: &str| command[command.iter().position(|word| word == option).expect(option) + 1].as_str();
    assert!(after("--drain-timeout").parse::<u64>().expect("seconds") < grace, "Kubernetes waits for what is drained");
    let worker = "spec.mpiReplicaSpecs.Worker.template.spec.containers.0";
    let port = value(&format!("{worker}.ports.0.containerPort"));
    assert_eq!(after("--listen"), format!("0.0.0.0:{port}"));
    let folder = value(&format!("{worker}.volumeMounts.2.mountPath"));
    assert_eq!(after("--api-key-file"), format!("{folder}/key"), "the secret's only entry");
}

#[test]
fn services_are_kept_from_strangers() {
    let policy = yaml(&text("networkpolicy.yaml"));
    let job = yaml(&text("mpijob-serve.yaml"));
    let label = "matchLabels.training.kubeflow.org/job-name";
    for selector in ["spec.podSelector", "spec.ingress.0.from.0.podSelector"] {
        assert_eq!(policy[&format!("{selector}.{label}")], job["metadata.name"], "{selector}");
    }
    let port = "spec.mpiReplicaSpecs.Worker.template.spec.containers.0.ports.0.containerPort";
    assert_eq!(policy["spec.ingress.1.ports.0.port"], job[port]);
    let unit = text("tributary.service");
    assert!(unit.contains("--listen 127.0.0.1:") && unit.contains("\nMemoryMax="), "{unit}");
}

fn is_consistent(name: &str) {
    let values = yaml(&text(name));
    let value = |path: &str| values.get(path).unwrap_or_else(|| panic!("{path} is missing: {values:#?}")).as_str();
    assert_eq!(value("apiVersion"), "kubeflow.org/v2beta1");
    assert_eq!(value("kind"), "MPIJob");
    assert_eq!(value("spec.launcherCreationPolicy"), "WaitForWorkersReady");
    assert_eq!(value("spec.mpiImplementation"), "OpenMPI");
    for role in ["Launcher", "Worker"] {
        let context = format!("spec.mpiReplicaSpecs.{role}.template.spec.containers.0.securityContext");
        assert_eq!(value(&format!("{context}.runAsNonRoot")), "true", "{role}");
        assert_eq!(value(&format!("{context}.allowPrivilegeEscalation")), "false", "{role}");
    }
    let worker = "spec.mpiReplicaSpecs.Worker";
    assert_eq!(value(&format!("{worker}.template.spec.containers.0.volumeMounts.0.mountPath")), "/dev/shm");
    assert_eq!(value(&format!("{worker}.template.spec.volumes.0.emptyDir.medium")), "Memory");

    let launcher = "spec.mpiReplicaSpecs.Launcher.template.spec.containers.0.command";
    let command: Vec<String> = (0..).map_while(|index| values.get(&format!("{launcher}.{index}")).cloned()).collect();
    assert_eq!(command[..2], ["tributary", "launch"]);
    check_options(name, &command);
    let after = |option: &str| {
        let index = command.iter().position(|word| word == option).expect(option);
        command[index + 1].parse::<usize>().expect("a number")
    };
    let number = |path: &str| value(path).parse::<usize>().expect("a number");
    let ranks = number(&format!("{worker}.replicas")) * number("spec.slotsPerWorker");
    assert_eq!((after("-n"), after("--world-size")), (ranks, ranks));
    assert_eq!(after("--threads"), number(&format!("{worker}.template.spec.containers.0.resources.limits.cpu")));
}
