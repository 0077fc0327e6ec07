//! Help texts that are not an option's own: what a command's output is and how it ends, and what methods say about themselves.

use tributary_protocol::{
    Choice, Command, Descriptor, EVICTIONS, EvictionDescriptor, EvictionEvidence, METHODS, REFERENCE,
};

/// How every command ends.
pub const EXIT_CODES: &str = "\
Exit codes: 0 done, 64 usage, 65 damaged model, 69 rank lost, 70 a bug, 71 out of memory, 74 disk, 75 deadline, \
76 version skew, 78 configuration, 130 and 143 SIGINT and SIGTERM.";

/// What each command puts out.
const OUTPUTS: [(&str, &str); 14] = [
    (
        "prefill",
        "Output: the answer and its cost: times, bytes, tokens. With --json one object (docs/schemas/prefill.v1.json), \
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
        "Output: a table for each request, and one over all. With --json one object (docs/schemas/compare.v1.json).",
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
         docs/schemas/sizing.v1.json).",
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
    Descriptor::defaults_of(command).into_iter().map(|method| method.name).collect()
}

/// `--methods` of a study.
pub fn bench_methods() -> String {
    format!("Methods, NAME[:KEY[=VALUE]].. [default: {}]", names_of(Command::Bench).join(" "))
}

/// The methods that need nothing beside the model: what comparisons run where nobody names some.
pub fn methods_by_themselves() -> Vec<&'static str> {
    let names = METHODS
        .into_iter()
        .filter(|method| ![Choice::AuxModel, Choice::Adapter].iter().any(|&choice| method.takes(choice)));
    names.map(|method| method.name).collect()
}

/// `--methods` of a comparison.
pub fn compared() -> String {
    let reference = REFERENCE.name;
    format!(
        "Methods to compare; `{reference}` is added if it is missing, as the reference of the others [default: all but \
         {}, {}]",
        taking(Choice::AuxModel),
        taking(Choice::Adapter)
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
    let names = taking(Choice::AuxModel);
    format!("{names}: folder of a small model that reads the documents, on the CPUs of rank 0's host")
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
    let (always, too) = (taking(Choice::Adapter), taking(Choice::Packets));
    format!(
        "Folder of an adapter from `tributary train`, at most one of each kind. {always}: rows around every chunk. \
         {too}: the same rows, besides the recomputed ones. --evict lookahead: the lookahead rows after the prompt"
    )
}

/// `--keep-per-chunk`.
pub fn keep_per_chunk() -> String {
    format!(
        "{}: tokens of each chunk that every KV head of each layer keeps before the chunk is cached, and the method \
         that chooses them: {} [default: all tokens; method snapkv]",
        taking(Choice::KeepPerChunk),
        EvictionDescriptor::names_for_chunks()
    )
}

/// `--evict`.
pub fn evict() -> String {
    let each = EVICTIONS.map(|entry| format!("{} ({})", entry.name, entry.summary)).join("; ");
    format!(
        "Method that chooses the prompt rows to keep after the first token, with --keep [default: all are kept]: {each}"
    )
}

/// `--heads-per-gather`.
pub fn heads_per_gather() -> String {
    format!("{}: KV heads gathered at a time [default: all]", taking(Choice::HeadsPerGather))
}

/// `--per-chunk`.
pub fn per_chunk() -> String {
    let names = taking(Choice::PerChunk);
    format!("{names}: rows a chunk, 1 to 64, in place of --ratio [default: the ratio's budget, divided evenly]")
}

/// `--drift-of`.
pub fn drift_of() -> String {
    format!("{}: cached tensor to compare with", taking(Choice::DriftOf))
}

/// `--drift-layers`.
pub fn drift_layers() -> String {
    let names = taking(Choice::DriftLayers);
    format!("{names}: layers after the first in which rows are compared; with several, each passes fewer rows on")
}

/// `--trace-alpha`.
pub fn trace_alpha() -> String {
    let names = taking(Choice::TraceAlpha);
    format!(
        "{names}: net attention, less that in the other direction, from which one row depends on another [default: \
         from the model's trace.json, or 0.18]"
    )
}

/// `--trace-heads`.
pub fn trace_heads() -> String {
    format!(
        "{}: heads whose attention counts in free probes: all, or for each row the given share with the sharpest \
         attention [default: from the model's trace.json, or mean]",
        taking(Choice::TraceHeads)
    )
}

/// `--keep-order`.
pub fn keep_order() -> String {
    format!(
        "{}: keep documents in the request's order, as the parts of one long document require",
        taking(Choice::KeepOrder)
    )
}

/// `--order-for`.
pub fn order_for() -> String {
    format!(
        "{}: use of the new order of chunks: for everything, or for selection and recompute alone; with `selection` \
         the query reads chunks in the request's order",
        taking(Choice::OrderFor)
    )
}

/// `--block-tokens`.
pub fn block_tokens() -> String {
    format!("{}: rows of each block [default: an equal part for every rank]", taking(Choice::BlockTokens))
}

/// `--anchor-tokens`.
pub fn anchor_tokens() -> String {
    format!("{}: rows that every block sees [default: a quarter of a block]", taking(Choice::AnchorTokens))
}

/// `--passing-tokens`.
pub fn passing_tokens() -> String {
    format!("{}: rows that each block passes on [default: an eighth of a block]", taking(Choice::PassingTokens))
}

/// `--ape-temperature`.
pub fn ape_temperature() -> String {
    format!(
        "{}: temperature, by which the attention scores of context rows are divided, above 0",
        taking(Choice::ApeTemperature)
    )
}

/// `--ape-scale`.
pub fn ape_scale() -> String {
    format!("{}: factor of the context's log-sum-exp, times the temperature, above 0", taking(Choice::ApeScale))
}

/// `--samkv-variant`.
pub fn samkv_variant() -> String {
    let names = taking(Choice::SamKvVariant);
    format!(
        "{names}: sizes of the kept first rows, last rows and blocks of every document: large 64, 128, 64; small 8, \
         16, 8"
    )
}

/// `--samkv-blocks`.
pub fn samkv_blocks() -> String {
    format!("{}: blocks kept of every document besides its first and last rows", taking(Choice::SamKvBlocks))
}

/// `--samkv-theta`.
pub fn samkv_theta() -> String {
    format!("{}: share of recomputed keys and values, 0 to 1; the rest stays as cached", taking(Choice::SamKvTheta))
}

fn taking(choice: Choice) -> String {
    Descriptor::names_taking(choice).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_texts_are_made_from_the_registry() {
        assert!(
            methods().contains(": full, ring, all-gather, pass-q (exact); star, apb, none, random, epic"),
            "{}",
            methods()
        );
        assert!(ratio().starts_with("Share of the context to recompute [default: 0.15; prophetkv 0.20"), "{}", ratio());
        assert_eq!(default_method(), "infoflow");
        assert_eq!(heads_per_gather(), "all-gather: KV heads gathered at a time [default: all]");
        assert!(per_chunk().starts_with("epic: rows a chunk, 1 to 64"), "{}", per_chunk());
        assert_eq!(drift_of(), "cacheblend: cached tensor to compare with");
        assert!(drift_layers().starts_with("cacheblend: layers after the first"), "{}", drift_layers());
        assert!(bench_methods().ends_with("[default: full ring all-gather infoflow]"), "{}", bench_methods());
    }
}
