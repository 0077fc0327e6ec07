//! The folder `dashboards`: its own check, without and with a running service; its YAML files,
//! which agree on labels, ports, paths and alerts; and Prometheus' targets under Slurm.

mod kit;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kit::{root, skipped};
use serde_json::{Value, json};

fn folder() -> PathBuf {
    root().join("dashboards")
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The documents of a YAML file.
fn yaml(path: &Path) -> Vec<Value> {
    let documents = serde_saphyr::from_multiple(&text(path));
    documents.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The one document of a YAML file below `dashboards`.
fn document(name: &str) -> Value {
    let mut all = yaml(&folder().join(name));
    assert_eq!(all.len(), 1, "{name}: one document");
    all.remove(0)
}

/// The value at a path, which there must be.
fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    value.pointer(path).unwrap_or_else(|| panic!("no {path} in {value:#}"))
}

fn word<'a>(value: &'a Value, path: &str) -> &'a str {
    at(value, path).as_str().unwrap_or_else(|| panic!("{path} is no text in {value:#}"))
}

fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    at(value, path).as_array().unwrap_or_else(|| panic!("{path} is no list in {value:#}"))
}

/// Folder into which `.ci/tools prometheus` unpacks missing tools.
fn path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{path}:{}", root().join("target/prometheus/usr/bin").display())
}

/// Whether Debian's package `prometheus` is there, with `promtool` in it; prints a message where it
/// is not.
fn has_prometheus() -> bool {
    let runs = |tool: &str| Command::new("sh").args(["-c", &format!("{tool} --version")]).env("PATH", path()).output();
    let is_there = ["prometheus", "promtool"].iter().all(|tool| runs(tool).is_ok_and(|output| output.status.success()));
    assert!(is_there || std::env::var_os("CI").is_none(), "prometheus is missing: run `make test`");
    if !is_there {
        skipped("Prometheus: the package `prometheus` is not there; `make test` unpacks it");
    }
    is_there
}

/// Runs `dashboards/check`, which must succeed, and gives its output.
fn check(arguments: &[&str]) -> String {
    let mut command = Command::new("sh");
    command.arg(folder().join("check")).args(arguments).env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    let output = command.output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn dashboards_and_rules_pass_their_checks() {
    if has_prometheus() {
        let said = check(&["static"]);
        assert!(said.contains("4 dashboards") && said.contains(" 0 complaints"), "{said}");
    }
}

/// A panel that says nothing until an option asks for its feature is folded into a row that names
/// the option.
#[test]
fn what_may_not_be_in_use_is_folded() {
    let is_optional = |panel: &Value| {
        let optional = ["chunk_store_", "eviction_", "training_", "job_", "predicted_", "picture"];
        let mut asked = list(panel, "/targets").iter().map(|target| word(target, "/expr"));
        asked.any(|asked| optional.iter().any(|name| asked.contains(&format!("tributary_{name}"))))
    };
    let (mut shown, mut folded) = (0, 0);
    for name in ["overview", "phases", "memory-and-cache", "communication"] {
        let board: Value = serde_json::from_str(&text(&folder().join(format!("grafana/{name}.json")))).expect("JSON");
        for panel in list(&board, "/panels") {
            let title = word(panel, "/title");
            if word(panel, "/type") != "row" {
                assert!(!is_optional(panel), "{name}: {title} may not be in use");
                shown += 1;
                continue;
            }
            assert!(at(panel, "/collapsed") == &json!(true) && title.contains("--"), "{name}: {title}");
            let inner = list(panel, "/panels");
            assert!(inner.iter().any(is_optional), "{name}: {title}");
            folded += inner.len();
        }
    }
    assert!(shown > 40 && folded > 10, "{shown} and {folded} panels");
}

#[test]
fn every_panel_shows_something_of_a_running_service() {
    if has_prometheus() {
        let said = check(&["live", env!("CARGO_BIN_EXE_tributary")]);
        assert!(said.contains(" 0 differences") && said.ends_with(" 0 empty queries\n"), "{said}");
        let end: Vec<&str> =
            said.lines().filter(|line| line.contains("panels") || line.starts_with("traffic")).collect();
        println!("{}", end.join("\n"));
    }
}

/// The rules' alerts by name.
fn alerts() -> BTreeMap<String, Value> {
    let rules = document("prometheus/rules.yml");
    let groups = list(&rules, "/groups").iter();
    let rules = groups.flat_map(|group| list(group, "/rules")).filter(|rule| rule.get("alert").is_some());
    rules.map(|rule| (word(rule, "/alert").to_owned(), rule.clone())).collect()
}

#[test]
fn every_alert_says_what_to_do() {
    let advice = text(&folder().join("alerts.md"));
    let sections: BTreeSet<&str> = advice.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let alerts = alerts();
    assert_eq!(
        alerts.keys().map(String::as_str).collect::<BTreeSet<_>>(),
        sections,
        "alerts, and sections of alerts.md"
    );
    for (name, alert) in &alerts {
        assert!(["critical", "warning"].contains(&word(alert, "/labels/severity")), "{name}");
        let written = word(alert, "/annotations/runbook");
        assert_eq!(written, format!("dashboards/alerts.md#{}", name.to_lowercase()), "{name}");
        assert!(word(alert, "/annotations/summary").contains("$labels.instance"), "{name} says where");
        assert!(word(alert, "/annotations/description").ends_with('.'), "{name}: a sentence");
    }
}

#[test]
fn every_alert_is_tested_both_ways() {
    let tests = document("prometheus/rules_test.yml");
    let (mut fires, mut does_not) = (BTreeSet::new(), BTreeSet::new());
    for case in list(&tests, "/tests") {
        for expected in list(case, "/alert_rule_test") {
            let is_empty = list(expected, "/exp_alerts").is_empty();
            let tested = if is_empty { &mut does_not } else { &mut fires };
            tested.insert(word(expected, "/alertname").to_owned());
        }
    }
    let alerts: BTreeSet<String> = alerts().into_keys().collect();
    assert_eq!((&fires, &does_not), (&alerts, &alerts), "alerts that are seen to fire, and not to");
}

#[test]
fn monitors_find_what_the_templates_start() {
    for template in ["mpijob.yaml", "mpijob-serve.yaml"] {
        monitors_match(&yaml(&root().join("launch/templates").join(template)).remove(0));
    }
}

fn monitors_match(template: &Value) {
    let worker = "/spec/mpiReplicaSpecs/Worker/template/spec/containers/0";
    let port = at(template, &format!("{worker}/ports/0"));
    // The MPI Operator's own labels; rank 0 runs on the first worker of the hostfile that it
    // writes.
    let labels = json!({
        "training.kubeflow.org/job-name": word(template, "/metadata/name"),
        "training.kubeflow.org/job-role": "worker",
        "training.kubeflow.org/replica-index": "0",
    });
    let pods = document("kubernetes/podmonitor.yaml");
    assert_eq!(word(&pods, "/kind"), "PodMonitor");
    assert_eq!(at(&pods, "/spec/selector/matchLabels"), &labels);
    let of_pods = at(&pods, "/spec/podMetricsEndpoints/0");
    assert_eq!(word(of_pods, "/port"), word(port, "/name"));

    let [service, monitor] = &yaml(&folder().join("kubernetes/servicemonitor.yaml"))[..] else {
        panic!("a Service and its monitor");
    };
    assert_eq!((word(service, "/kind"), word(monitor, "/kind")), ("Service", "ServiceMonitor"));
    assert_eq!(at(service, "/spec/selector"), &labels);
    assert_eq!(at(service, "/metadata/labels"), at(monitor, "/spec/selector/matchLabels"));
    assert_eq!(word(service, "/spec/ports/0/targetPort"), word(port, "/name"));
    assert_eq!(at(service, "/spec/ports/0/port"), at(port, "/containerPort"));
    let of_service = at(monitor, "/spec/endpoints/0");
    assert_eq!(word(of_service, "/port"), word(service, "/spec/ports/0/name"));
    for endpoint in [of_pods, of_service] {
        assert_eq!(word(endpoint, "/path"), "/metrics");
        assert_eq!(at(endpoint, "/relabelings/0"), &json!({"targetLabel": "job", "replacement": "tributary"}));
    }
}

#[test]
fn the_job_has_one_name_everywhere() {
    for name in ["prometheus/prometheus.yml", "prometheus/slurm.yml"] {
        assert_eq!(word(&document(name), "/scrape_configs/0/job_name"), "tributary", "{name}");
    }
    assert_eq!(word(&alerts()["TributaryDown"], "/expr"), "up{job=\"tributary\"} == 0");
}

#[test]
fn the_composition_mounts_what_is_there() {
    let compose = document("docker-compose.yml");
    let services = at(&compose, "/services").as_object().expect("services");
    assert_eq!(services.keys().collect::<Vec<_>>(), ["prometheus", "grafana"]);
    let mut inside = BTreeMap::new();
    for (name, service) in services {
        let (_, version) = word(service, "/image").split_once(':').expect("a version");
        let numbers = version.trim_start_matches('v').split('.').map(str::parse::<u32>);
        assert_eq!(numbers.filter(Result::is_ok).count(), 3, "{name}: {version} is a whole version");
        for volume in list(service, "/volumes") {
            let parts: Vec<&str> = volume.as_str().expect("text").split(':').collect();
            if parts[0].starts_with("./") {
                assert_eq!(parts.get(2), Some(&"ro"), "{name}: nothing of the repository is written");
                assert!(folder().join(parts[0]).is_dir(), "{name}: {} is there", parts[0]);
                inside.insert(parts[1].to_owned(), parts[0].to_owned());
            } else {
                assert!(at(&compose, "/volumes").get(parts[0]).is_some(), "{name}: {} is declared", parts[0]);
            }
        }
    }
    let mounted =
        |path: &str| folder().join(inside.get(path).unwrap_or_else(|| panic!("{path} is mounted: {inside:?}")));
    let provider = document("grafana/provisioning/dashboards/tributary.yml");
    assert!(mounted(word(&provider, "/providers/0/options/path")).join("overview.json").is_file());
    assert!(mounted("/etc/grafana/provisioning").join("datasources/prometheus.yml").is_file());
    assert!(mounted("/etc/prometheus").join("prometheus.yml").is_file());

    let source = document("grafana/provisioning/datasources/prometheus.yml");
    let url = word(&source, "/datasources/0/url").strip_prefix("http://").expect("an address");
    let listens = format!("--web.listen-address={url}");
    assert!(list(&services["prometheus"], "/command").iter().any(|option| option == &json!(listens)), "{listens}");
    let scraped = document("prometheus/prometheus.yml");
    assert_eq!(at(&source, "/datasources/0/jsonData/timeInterval"), at(&scraped, "/global/scrape_interval"));
}

/// Runs `slurm-targets` where `squeue` is played by a script.
fn slurm_targets(squeue: &str, arguments: &[&str], file: &Path) -> Output {
    let place = tempfile::tempdir().expect("a folder");
    let write = "printf '%s' \"$2\" > \"$1\" && chmod +x \"$1\"";
    let fake = place.path().join("squeue");
    let written = Command::new("sh").args(["-c", write, "sh"]).arg(&fake).arg(squeue).status();
    assert!(written.expect("a shell").success());
    let mut command = Command::new(folder().join("prometheus/slurm-targets"));
    command.args(arguments).arg(file).env("PATH", format!("{}:/usr/bin:/bin", place.path().display()));
    command.output().expect("a shell")
}

#[test]
fn slurms_jobs_have_the_templates_name_and_port() {
    let template = text(&root().join("launch/templates/serve.sbatch"));
    let after = |mark: &str| {
        let rest = template.split(mark).nth(1).unwrap_or_else(|| panic!("no {mark} in {template}"));
        rest.split(['\n', '}']).next().expect("a value").to_owned()
    };
    let defaults = format!("name={} port={} every=", after("--job-name="), after("PORT:-"));
    assert!(text(&folder().join("prometheus/slurm-targets")).lines().any(|line| line == defaults), "{defaults}");
}

#[test]
fn slurms_jobs_are_found() {
    let place = tempfile::tempdir().expect("a folder");
    let targets = place.path().join("targets");
    std::fs::create_dir(&targets).expect("a folder");
    let file = targets.join("slurm.json");
    // Running jobs: one with its own port, a task of an array, one without a node, one that would
    // break the quoting, one with an invalid port.
    let squeue = r#"#!/bin/sh
[ "$*" = '--noheader --states=RUNNING --name=serving --format=%i|%B|%u|%k' ] || { echo "asked $*" >&2; exit 1; }
cat <<'END'
4711|node3|ann|(null)
4712_7|node4.cluster|bob|at night, port=9100
4713|n/a|eve|
4714|node5","x|eve|
4715|node6|eve|port=9"x
END
"#;
    let output = slurm_targets(squeue, &["--name", "serving", "--port", "9000"], &file);
    assert!(output.status.success(), "{output:?}");
    let wanted = json!([
        {"targets": ["node3:9000"], "labels": {"slurm_job": "4711", "slurm_user": "ann"}},
        {"targets": ["node4.cluster:9100"], "labels": {"slurm_job": "4712_7", "slurm_user": "bob"}},
        {"targets": ["node6:9"], "labels": {"slurm_job": "4715", "slurm_user": "eve"}},
    ]);
    assert_eq!(serde_json::from_str::<Value>(&text(&file)).expect("JSON"), wanted);
    if has_prometheus() {
        for name in ["slurm.yml", "rules.yml"] {
            std::fs::copy(folder().join("prometheus").join(name), place.path().join(name)).expect("a copy");
        }
        let mut promtool = Command::new("sh");
        promtool.args(["-c", "promtool check config \"$1\"", "sh"]).arg(place.path().join("slurm.yml"));
        let output = promtool.env("PATH", path()).output();
        let said = format!("{output:?}");
        assert!(output.expect("promtool starts").status.success() && !said.contains("WARNING"), "{said}");
    }

    // While Slurm does not answer, Prometheus keeps its targets.
    let output = slurm_targets("#!/bin/sh\nexit 1\n", &[], &file);
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(serde_json::from_str::<Value>(&text(&file)).expect("JSON"), wanted);

    // Without a job there is an empty list, and no other file is left.
    assert!(slurm_targets("#!/bin/sh\nexit 0\n", &[], &file).status.success());
    assert_eq!(serde_json::from_str::<Value>(&text(&file)).expect("JSON"), json!([]));
    assert_eq!(std::fs::read_dir(&targets).expect("a folder").count(), 1);
    assert_eq!(slurm_targets("", &["--what"], &file).status.code(), Some(64));
}
