//! Traces of every format, what is wrong with one, and what caches find in it.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::reuse::{Documents, Found};
use super::*;

fn part(id: u64, tokens: usize) -> Part {
    Part { id, tokens }
}

fn written(lines: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.jsonl");
    std::fs::write(&path, lines).expect("written");
    (folder, path)
}

fn read_text(lines: &str) -> Result<Trace, String> {
    let (_folder, path) = written(lines);
    read(&path).map_err(|error| error.to_string().replace(&path.display().to_string(), "trace.jsonl"))
}

/// A folder as RAGPulse has it: two passages, two system parts, and what `trace` says.
fn ragpulse(trace: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let files = [
        ("0_trace.jsonl", trace),
        (
            "1_sys_prompt.jsonl",
            "{\"sys_prompt_id\": 7, \"token_length\": 100}\n{\"sys_prompt_id\": 8, \"token_length\": 50}",
        ),
        ("2_passages.jsonl", "{\"passage_id\": 0, \"token_length\": 84}\n\n{\"passage_id\": 1, \"token_length\": 286}"),
        ("3_history.jsonl", "{\"history_id\": 15, \"token_length\": 11}"),
        ("4_user_input.jsonl", "{\"user_input_id\": 9, \"token_length\": 6}"),
        ("5_web_search.jsonl", "{\"web_search_id\": 20, \"token_length\": 512}"),
    ];
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    folder
}

#[test]
fn every_format_is_read() {
    let mooncake = "{\"timestamp\": 2000, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [0, 4]}\n\n\
        {\"timestamp\": 1000, \"input_length\": 512, \"output_length\": 7, \"hash_ids\": [0]} {\"timestamp\": \"3500\", \
        \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [5]}";
    let trace = read_text(mooncake).expect("a trace");
    assert_eq!((trace.format, trace.unordered), ("mooncake", 1));
    let seen: Vec<_> = trace.requests.iter().map(|request| (request.at_s, request.rest.clone())).collect();
    let wanted = [(0.0, vec![part(0, 512)]), (1.0, vec![part(0, 512), part(4, 88)]), (2.5, vec![part(5, 1)])];
    assert_eq!(seen, wanted, "two objects on a line, a blank line, a time as a text, sorted");

    let bailian = "{\"chat_id\": 1, \"parent_chat_id\": -1, \"timestamp\": 61.5, \"input_length\": 20, \"output_length\": 3, \
        \"type\": \"text\", \"turn\": 1, \"hash_ids\": [1, 2]}";
    let trace = read_text(bailian).expect("a trace");
    assert_eq!((trace.format, &trace.requests[0].rest[..]), ("bailian", &[part(1, 16), part(2, 4)][..]));

    let own = "{\"timestamp\": 0, \"output_length\": 3, \"session_id\": \"a\", \"system\": {\"id\": \"s\", \"tokens\": 10}, \
        \"documents\": [{\"id\": \"x\", \"tokens\": 20}, {\"id\": 4, \"tokens\": 30}], \"query\": {\"tokens\": 5}}\n\
        {\"timestamp\": 250, \"output_length\": 3, \"documents\": [{\"id\": \"x\", \"tokens\": 20}], \"query\": {\"tokens\": 5}}";
    let trace = read_text(own).expect("a trace");
    let [one, other] = &trace.requests[..] else { panic!("{trace:?}") };
    assert_eq!((trace.format, one.prompt_tokens(), other.at_s), ("tributary", 65, 0.25));
    assert_eq!(one.documents[0], other.documents[0], "the same document");
    assert_ne!(one.rest[0].id, other.rest[0].id, "questions differ");

    let folder = ragpulse(
        "{\"timestamp\": \"82\", \"input_length\": 3112, \"output_length\": 192, \"hash_ids\": {\"sys_prompt\": [7, 8], \
         \"passages_ids\": [1, 0], \"history\": [15], \"web_search\": [20], \"user_input\": [9]}, \"session_id\": \"x\"}",
    );
    let trace = read(folder.path()).expect("a trace");
    let tokens = |parts: &[Part]| parts.iter().map(|part| part.tokens).collect::<Vec<_>>();
    let request = &trace.requests[0];
    assert_eq!((trace.format, request.output_tokens), ("ragpulse", 192));
    let wanted = (vec![100, 50], vec![286, 84], vec![512, 11, 6]);
    assert_eq!((tokens(&request.system), tokens(&request.documents), tokens(&request.rest)), wanted);
}

#[test]
fn what_is_wrong_is_named_by_its_line() {
    let request = |more: &str| {
        format!("{{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [0]}}\n{more}")
    };
    let refused = [
        (request("{\"timestamp\": \"soon\"}"), "trace.jsonl:2: `timestamp` is no time"),
        (request("{\"timestamp\": 1, \"input_length\": -5}"), "trace.jsonl:2: `input_length` is no number of tokens"),
        (
            request("{\"timestamp\": 1, \"input_length\": 513, \"hash_ids\": [0]}"),
            "trace.jsonl:2: 513 tokens are 2 blocks of 512, and `hash_ids` has 1",
        ),
        (
            request("{\"timestamp\": 1, \"input_length\": 5, \"hash_ids\": [0.5]}"),
            "trace.jsonl:2: `hash_ids`: 0.5 is no identity",
        ),
        (
            request("{\"timestamp\": 1, \"input_length\": 0, \"output_length\": 1}"),
            "trace.jsonl:2: the request has no token",
        ),
        (request("{\"timestamp\""), "trace.jsonl:2: EOF while parsing"),
        ("{\"timestamp\": 1}".to_owned(), "trace.jsonl:1: an unknown format"),
        (
            "{\"timestamp\": 1, \"query\": {\"tokens\": 5}, \"documents\": [{\"tokens\": 5}]}".to_owned(),
            "trace.jsonl:1: `documents` needs an `id`",
        ),
        (request("{\"timestamp\": 1e300}"), "trace.jsonl:2: `timestamp` is no time"),
        (
            request("{\"timestamp\": 1, \"input_length\": 1000000000000}"),
            "trace.jsonl:2: `input_length` is no number of tokens",
        ),
        ("\n".to_owned(), "trace.jsonl: no request"),
    ];
    for (lines, begin) in refused {
        let error = read_text(&lines).expect_err(begin);
        assert!(error.starts_with(begin), "{error}");
    }
    let folder = ragpulse("{\"timestamp\": 1, \"output_length\": 1, \"hash_ids\": {\"passages_ids\": [3]}}");
    let error = read(folder.path()).expect_err("an unknown passage").to_string();
    assert!(error.ends_with("0_trace.jsonl:1: `passages_ids`: 3 is not in 2_passages.jsonl"), "{error}");
    assert!(read(Path::new("absent.jsonl")).expect_err("absent").to_string().starts_with("cannot read absent.jsonl"));
}

fn request(at_s: f64, system: &[u64], documents: &[u64], query: u64) -> TraceRequest {
    let parts = |ids: &[u64], tokens| ids.iter().map(|&id| part(id, tokens)).collect::<Vec<_>>();
    let (system, documents, rest) = (parts(system, 64), parts(documents, 128), parts(&[query], 10));
    TraceRequest { at_s, output_tokens: 4, system, documents, rest }
}

fn trace(requests: Vec<TraceRequest>) -> Trace {
    Trace { format: "tributary", requests, unordered: 0 }
}

#[test]
fn caches_find_what_they_can() {
    let requests = vec![
        request(0.0, &[1, 2], &[10, 11, 12], 90),
        request(1.0, &[1, 2], &[12, 10, 11], 91), // another order
        request(2.0, &[1, 3], &[11, 13], 92),     // another second part of the system text
        request(3.0, &[1, 2], &[10, 14], 93),     // the beginning of the first one
        request(4.0, &[1, 2], &[10, 14], 93),     // the same again
    ];
    let found = reuse(&trace(requests), &[]);
    assert_eq!((found.prompt_tokens, found.documents.tokens), (5 * (128 + 10) + 12 * 128, 12 * 128));
    // The system text of 128, its first part of 64, that with a document, and all but the last
    // token.
    assert_eq!(found.prefix, 128 + 64 + (128 + 128) + (128 + 256 + 9));
    assert_eq!(
        found.ordered_prefix,
        (128 + 384) + 64 + 256 + (128 + 256 + 9),
        "10, 11, 12 again in the second request"
    );
    let Documents { after_system, after_first_part, after_head } = found.unlimited;
    assert_eq!(after_system, Found { count: 3 + 1 + 2, tokens: 128 * (3 + 1 + 2) });
    assert_eq!(after_first_part, Found { count: 3 + 1 + 1 + 2, tokens: 128 * (3 + 1 + 1 + 2) });
    assert_eq!((after_head, found.bounded), (after_first_part, vec![]));
}

#[test]
fn a_small_cache_loses_the_documents_that_were_used_least_recently() {
    let all = [&[10, 11][..], &[12], &[10], &[13], &[11], &[10], &[14, 14], &[14]];
    let requests = (0..).zip(all).map(|(at, documents)| request(f64::from(at), &[1], documents, 90)).collect();
    let requests = trace(requests);
    let found = reuse(&requests, &[127, 3 * 128, 4 * 128, 1 << 20]);
    let counts = |found: &Documents| found.after_head.count;
    // Room for three: 13 takes the place of 11, which is gone as it comes again.
    let bounded: Vec<_> = found.bounded.iter().map(|(tokens, found)| (*tokens, counts(found))).collect();
    assert_eq!(bounded, [(127, 0), (384, 3), (512, 4), (1 << 20, 4)]);
    assert_eq!((counts(&found.unlimited), found.documents), (4, Found { count: 10, tokens: 1280 }));
    assert_eq!(found.bounded[3].1, found.unlimited, "all find room");
    let text = found.text(&requests);
    let row = |name: &str| text.lines().find(|line| line.trim_start().starts_with(name)).expect("a row").to_owned();
    assert_eq!(row("384").matches("30.0 %").count(), 4, "{text}");
    assert_eq!(row("unlimited").matches("40.0 %").count(), 4, "{text}");
    assert_eq!(reuse(&requests, &[]).text(&requests).lines().count(), 7, "one table where no size is given");
}

#[test]
fn a_part_of_a_trace_is_scaled_and_begins_at_0() {
    let all = trace((0..5).map(|at| request(f64::from(at), &[1], &[2], 3)).collect());
    let part = all.part(&(1.0..4.0), Some(2), 0.25);
    assert_eq!(part.requests.iter().map(|request| request.at_s).collect::<Vec<_>>(), [0.0, 1.0]);
    let TraceRequest { output_tokens, system, documents, rest, .. } = &part.requests[0];
    let tokens = [system, documents, rest].map(|parts| parts[0].tokens);
    assert_eq!((tokens, *output_tokens), ([16, 32, 3], 1));
}

#[test]
fn an_exported_trace_has_the_same_prefixes() {
    let requests = vec![
        request(0.0, &[1, 2], &[10, 11, 12, 13], 90),
        request(0.5, &[1, 2], &[10, 11, 12, 14], 91),
        request(1.0, &[1, 2], &[11, 10, 12, 14], 92),
    ];
    let (_folder, path) = written(&mooncake(&trace(requests)));
    let read = read(&path).expect("what was written");
    let ids: Vec<Vec<u64>> =
        read.requests.iter().map(|request| request.rest.iter().map(|part| part.id).collect()).collect();
    assert_eq!((read.format, read.requests[1].at_s), ("mooncake", 0.5));
    assert_eq!(ids.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 2], "650 tokens");
    assert!(ids[0][0] == ids[1][0] && ids[0][1] != ids[1][1], "the first 512 tokens are the same: {ids:?}");
    assert_ne!(ids[0][0], ids[2][0]);
}

/// The public trace: what share of passages could be found at all, by what chunks are prefilled
/// after.
#[test]
fn passages_of_the_public_trace_come_again() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/ragpulse");
    if !folder.is_dir() {
        let _ = writeln!(std::io::stderr(), "skipped: the trace RAGPulse is not beside the repository");
        return;
    }
    let sizes = [50_000, 100_000, 200_000, 400_000];
    let found = reuse(&read(&folder).expect("a trace"), &sizes);
    let share = |tokens: usize, of: usize| tokens as f64 / of as f64;
    let Documents { after_system, after_first_part, after_head } = found.unlimited;
    let of_documents = [after_system, after_first_part, after_head];
    let of_documents = of_documents.map(|found_there| share(found_there.tokens, found.documents.tokens));
    assert!(of_documents[0] < 0.01 && of_documents[1] > 0.85 && of_documents[2] > 0.88, "{of_documents:?}");
    assert!(share(found.prefix, found.prompt_tokens) < share(after_head.tokens, found.prompt_tokens));
    // Over the whole week, of which five days are here, 40, 55, 71 and 85 % of the uses are found.
    for ((tokens, bounded), week) in found.bounded.iter().zip([0.40, 0.55, 0.71, 0.85]) {
        let of_uses = share(bounded.after_head.count, found.documents.count);
        println!("{tokens} tokens: {:.1} % of passage uses", 100.0 * of_uses);
        assert!((of_uses - week).abs() < 0.03, "{tokens} tokens: {of_uses}, over the week {week}");
    }
}
