//! Help texts that are not an option's own: what a command's output is and how it ends, and what
//! methods say about themselves.

use tributary_methods::{KEEP_PER_CHUNK, MethodOption, PACKETS};
use tributary_protocol::{
    Command, EVICTIONS, EvictionDescriptor, EvictionEvidence, METHODS, Method, REFERENCE, Requirement,
};

/// How every command ends.
pub const EXIT_CODES: &str = "\
Exit codes: 0 success, 64 usage error, 65 corrupt model or data, 69 rank lost, 70 internal error, 71 out of memory, \
74 disk error, 75 deadline exceeded, 76 version mismatch, 78 configuration error, 130 SIGINT, 143 SIGTERM.";

/// What each command puts out.
const OUTPUTS: [(&str, &str); 14] = [
    (
        "prefill",
        "Output: the answer and its cost: times, bytes, tokens. With --json one object (docs/schemas/prefill.v2.json), \
         with --requests one a request, with both one a line.",
    ),
    (
        "serve",
        "Output: a line with the address and the number of ranks when requests are accepted; all else is HTTP.\n\n\
         Shutdown: on SIGTERM or SIGINT the service finishes requests in progress, refuses new connections and closes \
         idle ones. A request of which only a part has arrived gets 503. A second signal ends the service at once. \
         `tributary launch` forwards both signals, wherever rank 0 is. A bare mpirun does not: it kills its ranks \
         within one or two seconds. It does forward SIGUSR1, which asks for the same shutdown and never ends anything \
         at once: kill -USR1 PID-OF-MPIRUN.",
    ),
    (
        "load",
        "Output: a table for each window. With --json one object (docs/schemas/load.v1.json). Failed requests do not \
         change the exit code.",
    ),
    (
        "compare",
        "Output: a table for each request, and one over all. With --json one object (docs/schemas/compare.v2.json).",
    ),
    (
        "bench",
        "Output: a table; in --out the study as report.json (docs/schemas/study.v1.json), a page, CSV and charts. With \
         --dry-run the points alone, with --calibrate a profile.",
    ),
    (
        "quality",
        "Output: tables; in --out every answer as answers.jsonl, report.json (docs/schemas/quality.v1.json), \
         points.csv and answers.csv. With --dry-run numbers alone, with `score` one number a line.",
    ),
    (
        "train",
        "Output: the trained weights and their cost; in --out the adapter (adapter.json, adapter.safetensors), \
         training.json, loss.csv and loss.svg, and a checkpoint until all steps are taken (docs/training.md). A loss \
         that is not finite ends the run with 70.",
    ),
    (
        "plan",
        "Output: tables of predictions. With --json one object (docs/schemas/plan.v1.json, with --slo-ttft \
         docs/schemas/sizing.v1.json, with --trace docs/schemas/twin.v1.json).",
    ),
    (
        "methods",
        "Output: a line for each method, or a page for each named one. With --json one object \
         (docs/schemas/methods.v2.json).",
    ),
    (
        "store",
        "Output: tables or a line, with --json one object. A damaged chunk ends `verify` with 65 (docs/store.md).",
    ),
    (
        "doctor",
        "Output: tables of ranks and hosts, warnings, checks, bandwidth. With --json one object \
         (docs/schemas/doctor.v1.json). Warnings do not change the exit code; wrong collectives end with 70, a \
         bandwidth below --min-busbw with 78.",
    ),
    ("launch", "Output: that of the command, printed by rank 0. The exit code is that of the rank that failed first."),
    ("completions", "Output: the script."),
    ("man", "Output: the page; nothing if pages are written to a folder."),
];

/// What a command puts out, in the first words of its help's end.
pub fn output_of(command: &str) -> Option<&'static str> {
    let (_, output) = OUTPUTS.into_iter().find(|(name, _)| *name == command)?;
    output.split("\n\n").next()
}

/// Adds to the end of every command's help what its output is, and its exit codes.
pub fn with_ends(command: clap::Command) -> clap::Command {
    let add = |command: clap::Command, (name, output): (&str, &str)| {
        command.mut_subcommand(name, |command| {
            let own = command.get_after_help().map_or_else(String::new, |own| format!("{own}\n\n"));
            command.after_help(format!("{own}{output}\n\n{EXIT_CODES}"))
        })
    };
    OUTPUTS.into_iter().fold(command, add)
}

/// The methods, those with an exact answer first.
pub fn methods() -> String {
    let names = |exact: bool| {
        let of = METHODS.into_iter().filter(|method| method.is_exact() == exact);
        of.map(|method| method.name).collect::<Vec<_>>().join(", ")
    };
    format!("Method and its options (`tributary methods NAME` lists them): {} (exact); {}", names(true), names(false))
}

/// The method of one request where none is named.
pub fn default_method() -> &'static str {
    names_of(Command::Prefill).first().copied().unwrap_or_default()
}

/// Names of the methods that a command takes where none is named.
pub fn names_of(command: Command) -> Vec<&'static str> {
    Method::defaults_of(command).into_iter().map(|method| method.name).collect()
}

/// `--methods` of a study.
pub fn bench_methods() -> String {
    format!("Methods, NAME[:KEY[=VALUE]].. [default: {}]", names_of(Command::Bench).join(" "))
}

/// Methods that need nothing beside the model: the default of comparisons.
pub fn methods_by_themselves() -> Vec<&'static str> {
    let names = METHODS.into_iter().filter(|method| method.requires.is_none());
    names.map(|method| method.name).collect()
}

/// `--methods` of a comparison.
pub fn compared() -> String {
    let reference = REFERENCE.name;
    format!(
        "Methods to compare; `{reference}` is added if it is missing, as the reference of the others [default: all but \
         {}, {}]",
        needing(Requirement::AuxiliaryModel),
        needing(Requirement::Adapter)
    )
}

/// `--ratio`: the default of most methods, and whose is another.
pub fn ratio() -> String {
    let ratios: Vec<(&str, f64)> =
        METHODS.into_iter().filter_map(|method| Some((method.name, method.ratio?))).collect();
    let count = |ratio: f64| ratios.iter().filter(|(_, other)| *other == ratio).count();
    let usual = ratios.iter().map(|(_, ratio)| *ratio).max_by_key(|&ratio| count(ratio)).unwrap_or(0.0);
    let others = ratios.iter().filter(|(_, ratio)| *ratio != usual).map(|(name, ratio)| format!("; {name} {ratio:.2}"));
    format!("Share of the context to recompute [default: {usual:.2}{}]", others.collect::<String>())
}

/// `--aux-model`.
pub fn aux_model() -> String {
    let names = needing(Requirement::AuxiliaryModel);
    format!("{names}: folder of a small model that reads the documents, on the CPUs of rank 0's host")
}

/// `--aux-model` of `plan`.
pub fn planned_aux_model() -> String {
    let names = needing(Requirement::AuxiliaryModel);
    format!("{names}: model that reads the documents, as --model; its tokens are counted as the main model's")
}

/// `--draft-model`.
pub fn draft_model() -> String {
    let asking = EVICTIONS.iter().filter(|entry| entry.evidence == EvictionEvidence::DraftTokens);
    let names: Vec<_> = asking.map(|entry| entry.name).collect();
    let of = "folder of a small draft model with the same tokenizer, on the CPUs of rank 0's host";
    format!("--evict {}: {of}", names.join(", "))
}

/// `--adapter`.
pub fn adapter() -> String {
    let (always, too) = (needing(Requirement::Adapter), taking(&PACKETS));
    format!(
        "Folder of an adapter from `tributary train`, at most one of each kind. {always}: trained vectors around every \
         chunk. {too}: the same vectors, besides recompute. --evict lookahead: trained vectors after the prompt"
    )
}

/// `--keep-per-chunk`.
pub fn keep_per_chunk() -> String {
    format!(
        "{}: tokens of each chunk that every KV head of each layer keeps before the chunk is cached, and the method \
         that chooses them: {} [default: all tokens; method snapkv]",
        taking(&KEEP_PER_CHUNK),
        EvictionDescriptor::names_for_chunks()
    )
}

/// `--evict`.
pub fn evict() -> String {
    format!(
        "Eviction method after the first token, with --keep [default: all tokens are kept]: {}",
        EvictionDescriptor::names()
    )
}

/// `--evict` in full.
pub fn evict_in_full() -> String {
    let each = EVICTIONS.map(|entry| format!("{} ({})", entry.name, entry.summary)).join("; ");
    format!(
        "Method that chooses the prompt tokens kept after the first token, with --keep [default: all are kept]: {each}"
    )
}

/// Names of methods that take an option.
fn taking(option: &MethodOption) -> String {
    Method::names_taking(option).join(", ")
}

/// Names of methods that cannot be without a folder.
fn needing(requirement: Requirement) -> String {
    let names = METHODS.into_iter().filter(|method| method.needs(requirement)).map(|method| method.name);
    names.collect::<Vec<_>>().join(", ")
}

/// What to write instead of an option that is a method's own: none for any other one.
pub fn instead_of(flag: &str) -> Option<String> {
    let word = flag.strip_prefix("--")?;
    let (_, key, method) = OLD_FLAGS.into_iter().find(|(old, ..)| *old == word)?;
    let value = Method::find(method)?.all_options().find(|option| option.key == key)?.value;
    let value = if value.is_empty() { String::new() } else { format!("={value}") };
    Some(format!("it is an option of the method, which is written {method}:{key}{value}"))
}

/// Flags of commands that were methods' own: the key of the option, and a method that takes it.
const OLD_FLAGS: [(&str, &str, &str); 24] = [
    ("score", "score", "infoflow"),
    ("score-layers", "layers", "infoflow"),
    ("layout", "layout", "relay"),
    ("importance", "importance", "infoflow"),
    ("order-for", "order-for", "relay"),
    ("include-first-chunk", "first", "infoflow"),
    ("exchange", "exchange", "infoflow"),
    ("heads-per-gather", "heads", "all-gather"),
    ("per-chunk", "rows", "epic"),
    ("drift-of", "drift-of", "cacheblend"),
    ("drift-layers", "drift-layers", "cacheblend"),
    ("trace-alpha", "alpha", "trace"),
    ("trace-heads", "sharpest", "trace"),
    ("keep-order", "keep-order", "trace"),
    ("block-tokens", "block", "star"),
    ("anchor-tokens", "anchor", "apb"),
    ("passing-tokens", "passing", "apb"),
    ("ape-temperature", "temperature", "ape"),
    ("ape-scale", "scale", "ape"),
    ("samkv-variant", "variant", "samkv"),
    ("samkv-blocks", "blocks", "samkv"),
    ("samkv-theta", "theta", "samkv"),
    ("keep-per-chunk", "keep-per-chunk", "none"),
    ("evict-window", "evict", "infoflow"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_texts_are_made_from_the_registry() {
        assert!(
            methods().contains(": full, prefix-cache, ring, all-gather, pass-q (exact); context-pilot-like, star, apb, none, random, epic"),
            "{}",
            methods()
        );
        assert!(ratio().starts_with("Share of the context to recompute [default: 0.15; prophetkv 0.20"), "{}", ratio());
        assert_eq!(default_method(), "infoflow");
        assert!(bench_methods().ends_with("[default: full ring all-gather infoflow]"), "{}", bench_methods());
    }

    #[test]
    fn a_flag_that_was_a_methods_own_is_told_as_an_option_of_it() {
        for (flag, key, method) in OLD_FLAGS {
            let takes = Method::find(method).expect("a method").all_options().any(|option| option.key == key);
            assert!(takes && instead_of(&format!("--{flag}")).is_some(), "{flag}");
        }
        let theta = instead_of("--samkv-theta").expect("an option of samkv");
        assert_eq!(theta, "it is an option of the method, which is written samkv:theta=SHARE");
        assert_eq!(instead_of("--thread"), None);
    }
}
