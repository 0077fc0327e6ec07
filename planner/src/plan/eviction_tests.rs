//! Valid evictions of requests, and refused ones.

use tributary_methods::Keep;
use tributary_protocol::{EVICTIONS, Eviction, EvictionDescriptor, EvictionEvidence, Method};

use super::*;
use crate::shape::tests::DEMO;

fn refusal(eviction: EvictionWish, method: &str) -> String {
    let method = Method::named(method).expect("a method");
    let settings = RequestSettings { eviction, method, ..RequestSettings::default() };
    let tokens =
        Tokens { prefix: vec![1], chunks: vec![vec![7; 60]], query: vec![3; 9], eos: vec![2], ..Tokens::default() };
    match Draft::new(tokens, &settings, &DEMO) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn budgets_are_rows_or_percentages() {
    assert_eq!("128".parse(), Ok(Keep::Rows(128)));
    assert_eq!("30%".parse(), Ok(Keep::Percent(30.0)));
    assert_eq!("12.5%".parse::<Keep>().expect("a percentage").to_string(), "12.5%");
    for text in ["", "%", "-1", "1.5", "many", "30 %"] {
        assert!(text.parse::<Keep>().is_err(), "{text}");
    }
}

#[test]
fn what_cannot_be_evicted_is_refused_in_one_line() {
    let of = |name: &str, keep: &str, window| {
        let method = (!name.is_empty()).then(|| name.parse::<Eviction>().expect("a method"));
        let keep = (!keep.is_empty()).then(|| keep.parse().expect("a budget"));
        EvictionWish { method, keep, window, at_most: false }
    };
    let names = EvictionDescriptor::names();
    let table = [
        (of("snapkv", "", None), "full", "--evict snapkv: needs --keep N or N%".to_owned()),
        (of("", "64", None), "full", format!("--keep 64: needs --evict METHOD, one of {names}")),
        (of("", "", Some(4)), "full", "--evict window=4: needs a method and --keep".to_owned()),
        (of("tova", "0", None), "full", "--keep 0: must be at least 1 row".to_owned()),
        (of("tova", "0%", None), "full", "--keep 0%: must be above 0% and at most 100%".to_owned()),
        (of("tova", "101%", None), "full", "--keep 101%: must be above 0%".to_owned()),
        (of("tova", "71", None), "full", "--keep 71: the prompt has 70 rows".to_owned()),
        (of("snapkv", "16", Some(0)), "full", "--evict window=0: must be at least 1 row".to_owned()),
        (of("snapkv", "16", Some(16)), "full", "--evict snapkv:window=16: must be less than the 16 rows".to_owned()),
        (of("lookahead", "16", None), "full", "--evict lookahead: needs --adapter DIR".to_owned()),
        (of("speckv", "16", None), "full", "--evict speckv: needs --draft-model DIR".to_owned()),
        (of("snapkv", "16", None), "ape", "--evict snapkv: not with method ape".to_owned()),
    ];
    for (wish, method, expected) in table {
        let found = refusal(wish, method);
        assert!(found.starts_with(&expected) && !found.contains('\n'), "{wish:?}: {found}");
    }
    let needs = [EvictionEvidence::LookAhead, EvictionEvidence::DraftTokens];
    for entry in EVICTIONS.iter().filter(|entry| !needs.contains(&entry.evidence)) {
        assert_eq!(refusal(of(entry.name, "100%", None), "full"), "");
        assert_eq!(refusal(of(entry.name, "70", Some(8)), "infoflow"), "");
    }
    assert_eq!(refusal(of("random", "16", None), "ape"), "");
    // A service's own choice is an upper bound; a shorter prompt keeps all.
    assert_eq!(refusal(EvictionWish { at_most: true, ..of("snapkv", "71", Some(70)) }, "full"), "");
}
