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
        "Output: the answer, then what it cost: times, bytes, tokens. With --json one object (docs/schemas/prefill.v1.json), with \
         --requests one a request, with both one a line.",
    ),
    (
        "serve",
        "Output: a line with address and number of ranks once requests are taken; all else is HTTP.\n\n\
         Ends: SIGTERM and SIGINT let requests that have begun be answered, refuse new connections and close idle ones; a request of which \
         only a part had arrived gets 503; a second signal ends the service at once. \
         `tributary launch` passes them on, wherever rank 0 is. A bare mpirun does not: it kills its ranks within one or two seconds. It \
         passes SIGUSR1 on, which asks for the same and never ends anything at once: kill -USR1 PID-OF-MPIRUN.",
    ),
    (
        "load",
        "Output: a table for each window. With --json one object (docs/schemas/load.v1.json). Failed requests change no exit code.",
    ),
    ("compare", "Output: a table a request, and one over all. With --json one object (docs/schemas/compare.v1.json)."),
    (
        "bench",
        "Output: a table; in --out the study as report.json (docs/schemas/study.v1.json), a page, CSV and charts. With --dry-run the \
         points alone, with --calibrate a profile.",
    ),
    (
        "quality",
        "Output: tables; in --out every answer as answers.jsonl, report.json (docs/schemas/quality.v1.json), points.csv and answers.csv. With --dry-run \
         numbers alone, with `score` a number a line.",
    ),
    (
        "train",
        "Output: what was learned and what it took; in --out the adapter (adapter.json, adapter.safetensors), training.json, loss.csv and \
         loss.svg, and a checkpoint until all steps are taken (docs/training.md). A loss that is not finite ends it with 70.",
    ),
    (
        "plan",
        "Output: tables of predictions. With --json one object (docs/schemas/plan.v1.json, with --slo-ttft docs/schemas/sizing.v1.json).",
    ),
    (
        "methods",
        "Output: a line a method, or a page for each one that is named. With --json one object (docs/schemas/methods.v2.json).",
    ),
    (
        "store",
        "Output: tables or a line, with --json one object. A damaged chunk ends `verify` with 65 (docs/store.md).",
    ),
    (
        "doctor",
        "Output: tables of ranks and hosts, warnings, checks, bandwidth. With --json one object (docs/schemas/doctor.v1.json). Warnings \
         change no exit code; wrong collectives end with 70, a bandwidth below --min-busbw with 78.",
    ),
    (
        "launch",
        "Output: that of the command, which rank 0 prints. The exit code is that of the rank that failed first.",
    ),
    ("completions", "Output: the script."),
    ("man", "Output: the page; none where files are written."),
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

/// The method of a name.
///
/// # Errors
/// Returns an error with the known names if the name is unknown.
pub fn method_named(name: &str) -> Result<&'static Descriptor, String> {
    Descriptor::find(name).ok_or_else(|| format!("known are {}", Descriptor::names().join(", ")))
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
        "The methods; `{reference}` is added where it is missing: the others are measured against it [default: all but {}, {}]",
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
    format!("{names}: folder of a small model that reads the documents for it, on the CPUs of rank 0's host")
}

/// `--draft-model`.
pub fn draft_model() -> String {
    let asking = EVICTIONS.iter().filter(|entry| entry.evidence == EvictionEvidence::DraftTokens);
    let names: Vec<_> = asking.map(|entry| entry.name).collect();
    let of =
        "folder of a small model with the same tokenizer that writes what it listens to, on the CPUs of rank 0's host";
    format!("--evict {}: {of}", names.join(", "))
}

/// `--adapter`.
pub fn adapter() -> String {
    let (always, too) = (taking(Choice::Adapter), taking(Choice::Packets));
    format!(
        "Folder of an adapter that `tributary train` wrote; one of a kind. {always}: the rows around every chunk. {too}: the same, beside what they recompute. --evict lookahead: the rows that look ahead"
    )
}

/// `--keep-per-chunk`.
pub fn keep_per_chunk() -> String {
    format!(
        "{}: tokens that each KV head of each layer keeps of every chunk before it is cached, and how they are chosen: {} [default method: snapkv]",
        taking(Choice::KeepPerChunk),
        EvictionDescriptor::names_for_chunks()
    )
}

/// `--evict`.
pub fn evict() -> String {
    let each = EVICTIONS.map(|entry| format!("{} ({})", entry.name, entry.summary)).join("; ");
    format!("How rows of the prompt are chosen that decoding keeps, with --keep [default: all are kept]: {each}")
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
    format!("{}: what is compared with the cache", taking(Choice::DriftOf))
}

/// `--drift-layers`.
pub fn drift_layers() -> String {
    let names = taking(Choice::DriftLayers);
    format!("{names}: layers behind the first in which rows are compared; with more than one ever fewer rows go on")
}

/// `--trace-alpha`.
pub fn trace_alpha() -> String {
    let names = taking(Choice::TraceAlpha);
    format!(
        "{names}: the attention, less that the other way, from which on a row depends on another [default: the model's trace.json, or 0.18]"
    )
}

/// `--trace-heads`.
pub fn trace_heads() -> String {
    format!(
        "{}: the heads whose attention counts in free probes: all, or of each row the share that reads sharpest [default: the model's trace.json, or mean]",
        taking(Choice::TraceHeads)
    )
}

/// `--keep-order`.
pub fn keep_order() -> String {
    format!(
        "{}: documents stay in the request's order, as the parts of one long document must",
        taking(Choice::KeepOrder)
    )
}

/// `--order-for`.
pub fn order_for() -> String {
    format!(
        "{}: what another order of chunks is for; with `selection` the query reads them in the request's own",
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
    format!("{}: what the scores of context rows are divided by", taking(Choice::ApeTemperature))
}

/// `--ape-scale`.
pub fn ape_scale() -> String {
    format!("{}: the context's weight beside the rest, times the temperature", taking(Choice::ApeScale))
}

/// `--samkv-variant`.
pub fn samkv_variant() -> String {
    let names = taking(Choice::SamKvVariant);
    format!("{names}: keeps 64 first and 128 last rows of a document and blocks of 64, or 8, 16 and 8")
}

/// `--samkv-blocks`.
pub fn samkv_blocks() -> String {
    format!("{}: blocks kept of every document beside its first and last rows", taking(Choice::SamKvBlocks))
}

/// `--samkv-theta`.
pub fn samkv_theta() -> String {
    format!(
        "{}: share of what is recomputed in keys and values, the rest as they were cached",
        taking(Choice::SamKvTheta)
    )
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
        assert_eq!(drift_of(), "cacheblend: what is compared with the cache");
        assert!(drift_layers().starts_with("cacheblend: layers behind the first"), "{}", drift_layers());
        assert!(bench_methods().ends_with("[default: full ring all-gather infoflow]"), "{}", bench_methods());
    }
}
