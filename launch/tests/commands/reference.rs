//! `tributary completions`, `tributary man` and every `--help`: a shell takes the script and
//! completes by it, a formatter takes the pages, and helps describe a command's output and exit
//! codes.

use std::path::Path;
use std::process::Command;

use crate::kit::{root, skipped, tributary};
use tributary_protocol::METHODS;

fn text(arguments: &[&str]) -> String {
    let output = tributary(arguments);
    assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Completions of bash for the last of these words, once it has read the script.
fn offered(script: &Path, words: &[&str]) -> Vec<String> {
    let (last, before) = (words.len() - 1, words[words.len() - 2]);
    let ask = format!(
        "source '{}'; COMP_WORDS=({}); COMP_CWORD={last}; _tributary tributary '{}' '{before}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script.display(),
        words.join(" "),
        words[last],
    );
    let output = Command::new("bash").args(["--norc", "-c", &ask]).output().expect("bash");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("tributary.bash");
    std::fs::write(&script, text(&["completions", "bash"])).expect("written");
    let checked = Command::new("bash").arg("-n").arg(&script).output().expect("bash");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    assert_eq!(offered(&script, &["tributary", "se"]), ["serve"]);
    assert_eq!(offered(&script, &["tributary", "serve", "--print"]), ["--print-config"]);
    assert_eq!(offered(&script, &["tributary", "prefill", "--kernels", "pl"]), ["plain"]);
    let all = offered(&script, &["tributary", "''"]);
    for name in ["prefill", "compare", "bench", "quality", "plan", "doctor", "launch", "completions", "man"] {
        assert!(all.iter().any(|word| word == name), "{name} is not in {all:?}");
    }
    assert!(!all.iter().any(|word| word == "reap" || word == "try-tokenizer"), "hidden: {all:?}");
}

/// The keys of a method in bash, where the word that is completed ends at its last colon.
#[test]
fn methods_are_completed_with_their_keys() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("tributary.bash");
    std::fs::write(&script, text(&["completions", "bash"])).expect("written");
    assert_eq!(offered(&script, &["tributary", "prefill", "--method", "info"]), ["infoflow"]);
    for option in ["compare --methods", "bench --methods", "quality --methods", "plan --methods", "serve --method"] {
        let words: Vec<&str> = ["tributary"].into_iter().chain(option.split(' ')).chain(["''"]).collect();
        assert_eq!(offered(&script, &words), METHODS.map(|method| method.name), "{option}");
    }
    let keys = |line: &str, word: &str| {
        let ask = format!(
            "source '{}'; compopt() {{ :; }}; COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; _tributary_method tributary '{word}' :; \
             echo \"${{COMPREPLY[*]}}\"",
            script.display()
        );
        let output = Command::new("bash").args(["--norc", "-c", &ask]).output().expect("bash");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    for method in METHODS {
        let found = keys(&format!("tributary prefill --method {}:", method.name), "");
        let found: Vec<&str> = found.split(' ').map(|key| key.trim_end_matches('=')).collect();
        assert_eq!(found, method.all_options().map(|option| option.key).collect::<Vec<_>>(), "{}", method.name);
    }
    assert_eq!(keys("tributary prefill --method infoflow:ratio=0.3:sc", "sc"), "score=");
    assert_eq!(keys("tributary compare --methods full,relay:lay", "lay"), "layout=");
    assert_eq!(keys("tributary prefill --method=infoflow:lay", "infoflow:lay"), "infoflow:layers= infoflow:layout=");
}

#[test]
fn every_shell_has_a_script() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&["completions", shell]);
        assert!(script.contains("served-model-name") && script.contains("doctor"), "{shell}");
    }
    let output = tributary(&["completions", "tcsh"]);
    assert_eq!(output.status.code(), Some(64), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn pages_are_written_and_a_formatter_takes_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let pages = folder.path().join("man/man1");
    assert_eq!(text(&["man", &pages.display().to_string()]), "");
    let names: Vec<String> = ["", "-prefill", "-serve", "-compare", "-bench", "-plan", "-doctor", "-launch"]
        .map(|name| format!("tributary{name}.1"))
        .to_vec();
    for name in &names {
        let page = std::fs::read_to_string(pages.join(name)).expect("a page");
        for part in [".TH ", ".SH NAME\n", ".SH SYNOPSIS\n", ".SH DESCRIPTION\n"] {
            assert!(page.contains(part), "{name}: no {part}");
        }
    }
    assert!(!pages.join("tributary-reap.1").exists(), "hidden");
    let main = std::fs::read_to_string(pages.join("tributary.1")).expect("a page");
    assert_eq!(text(&["man"]), main, "the page that is printed is the one that is written");
    let serve = std::fs::read_to_string(pages.join("tributary-serve.1")).expect("a page");
    assert!(serve.contains("max\\-waiting") && serve.contains("print\\-config"), "{serve}");
    if Command::new("groff").arg("--version").output().is_err() {
        return skipped("no groff: the pages' structure was looked at, not their text");
    }
    for name in &names {
        let output = Command::new("groff").args(["-man", "-Tutf8", "-wall", "-P-c"]).arg(pages.join(name)).output();
        let output = output.expect("groff");
        let warnings = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && warnings.is_empty(), "{name}: {warnings}");
        assert!(String::from_utf8_lossy(&output.stdout).lines().count() > 20, "{name}");
    }
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("written");
    let output = tributary(&["man", &file.display().to_string()]);
    assert_eq!(output.status.code(), Some(74), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The commands of the main help.
fn commands() -> Vec<String> {
    let help = text(&["--help"]);
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = list.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").map(str::to_owned).collect()
}

/// The help of a command with every option: a command with few has them on one screen.
fn whole_help(command: &str) -> String {
    let all = tributary(&[command, "--help-all"]);
    if all.status.success() { String::from_utf8(all.stdout).expect("text") } else { text(&[command, "--help"]) }
}

#[test]
fn helps_say_what_comes_out_and_how_it_ends() {
    let commands = commands();
    assert_eq!(commands.len(), 14, "{commands:?}");
    let mut with_file = Vec::new();
    for name in &commands {
        let help = whole_help(name);
        let ends: Vec<&str> =
            help.lines().filter(|line| line.starts_with("Exit codes: 0 success, 64 usage error")).collect();
        assert_eq!(ends.len(), 1, "{name}: {help}");
        assert!(help.contains("\nOutput: "), "{name}: {help}");
        for path in help.split(|c: char| c.is_whitespace() || "(),".contains(c)).filter(|word| word.contains("docs/")) {
            assert!(root().join(path.trim_end_matches('.')).exists(), "{name} speaks of {path}, which is not there");
        }
        // The error for an unknown option differs, which shows whether it is an option.
        let asked = tributary(&[name, "--config", "/nowhere.toml"]);
        let takes_file = String::from_utf8_lossy(&asked.stderr).contains("/nowhere.toml: ");
        assert_eq!(help.contains("--config <FILE.toml>"), takes_file, "{name}");
        assert_eq!(help.contains("--print-config"), takes_file, "{name}");
        with_file.extend(takes_file.then_some(name.as_str()));
    }
    let wanted = ["prefill", "serve", "load", "compare", "bench", "quality", "plan", "methods", "doctor", "launch"];
    assert_eq!(with_file, wanted, "`store` and `train` have commands of their own");
    let compare = whole_help("compare");
    assert!(compare.contains("A method is NAME"), "what the command itself adds is kept: {compare}");
}

#[test]
fn methods_are_listed_and_told_about() {
    let all = text(&["methods"]);
    let lines: Vec<&str> = all.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(lines, METHODS.map(|method| method.name), "{all}");
    let page = text(&["methods", "infoflow"]);
    for word in [
        "infoflow\n",
        "exact at ratio 1",
        "layers=FIRST..END",
        "options, as in infoflow:KEY=VALUE:..",
        "replicate, pass-q, selected",
        "# cost: N rows of the prompt",
    ] {
        assert!(page.contains(word), "{word}: {page}");
    }
    let unknown = tributary(&["methods", "voodoo"]);
    let line = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert_eq!(unknown.status.code(), Some(64), "{line}");
    assert!(
        line.lines().count() == 1 && line.contains("voodoo") && line.contains("full, prefix-cache, ring"),
        "{line}"
    );
}
