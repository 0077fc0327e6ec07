//! Specs that are read and printed, and specs that are refused.

use proptest::prelude::*;

use super::*;

fn spec(text: &str) -> MethodSpec {
    text.parse().unwrap_or_else(|why| panic!("{text}: {why}"))
}

/// An option with a value that it takes, as a spec writes it.
fn written(option: &'static MethodOption) -> impl Strategy<Value = String> {
    let value = match &option.kind {
        Kind::Flag => return Just(option.key.to_owned()).boxed(),
        Kind::Count(range) => {
            (*range.start()..=(*range.end()).min(1 << 40)).prop_map(|count| count.to_string()).boxed()
        }
        Kind::Number(..) => (1_u32..1000).prop_map(|thousandths| (f64::from(thousandths) / 1e3).to_string()).boxed(),
        Kind::Word(words) => proptest::sample::select(*words).prop_map(str::to_owned).boxed(),
        Kind::Layers => (0_usize..9, 0_usize..9).prop_map(|(first, end)| format!("{first}..{end}")).boxed(),
        Kind::Text(_) => {
            let forms = match option.key {
                "keep-per-chunk" => &["8", "50%", "[50%:tova]", "[7:random]"][..],
                "exchange" => &["auto", "pass-q"],
                "evict" => &["snapkv", "[snapkv:window=4]", "[laq:window=7]"],
                "keep" => &["9", "12.5%"],
                key => panic!("the test has no values of {key}"),
            };
            proptest::sample::select(forms).prop_map(str::to_owned).boxed()
        }
    };
    value.prop_map(move |value| format!("{}={value}", option.key)).boxed()
}

/// Any spec of any method: a subset of its options, in any order.
fn specs() -> impl Strategy<Value = String> {
    proptest::sample::select(METHODS.to_vec()).prop_flat_map(|method| {
        let options: Vec<_> = method.all_options().map(written).collect();
        let count = 0..options.len();
        (options, count, any::<prop::sample::Index>()).prop_map(move |(mut parts, count, from)| {
            let length = parts.len();
            parts.rotate_left(from.index(length));
            parts.truncate(count);
            std::iter::once(method.name.to_owned()).chain(parts).collect::<Vec<_>>().join(":")
        })
    })
}

proptest! {
    /// The printed form reads as the same spec, has the method's order and contains no defaults.
    #[test]
    fn what_is_printed_reads_as_the_same(text in specs()) {
        let read = spec(&text);
        let printed = read.to_string();
        prop_assert_eq!(&spec(&printed), &read);
        prop_assert_eq!(spec(&printed).to_string(), printed);
    }
}

#[test]
fn the_printed_form_is_canonical() {
    for (text, printed) in [
        ("infoflow:layout=global:score=mass", "infoflow:score=mass"),
        ("samkv:theta=0.90:blocks=3", "samkv:blocks=3"),
        ("relay:keep=128:evict=[snapkv:window=16]:ratio=.3", "relay:ratio=0.3:evict=[snapkv:window=16]:keep=128"),
        ("infoflow:layers=[22..26]", "infoflow:layers=22..26"),
        ("infoflow:exchange=auto", "infoflow:exchange=auto"),
        ("none:keep-per-chunk=[50%:snapkv]", "none:keep-per-chunk=50%"),
    ] {
        assert_eq!(spec(text).to_string(), printed);
    }
}

#[test]
fn a_list_splits_at_commas_outside_brackets() {
    for (text, entries) in [
        ("full", &["full"][..]),
        ("full,relay:reorder", &["full", "relay:reorder"]),
        (
            "infoflow:layers=[1,3],none,relay:evict=[snapkv:window=[4,5]],ring",
            &["infoflow:layers=[1,3]", "none", "relay:evict=[snapkv:window=[4,5]]", "ring"],
        ),
        ("full,", &["full", ""]),
    ] {
        assert_eq!(spec_list(text).as_deref(), Ok(entries), "{text}");
    }
    assert!(spec_list("full,infoflow:layers=[1,2").is_err_and(|why| why.contains("not closed")));
    assert!(spec_list("infoflow:layers=1],full").is_err_and(|why| why.contains("not opened")));
}

#[test]
fn what_cannot_be_is_refused_in_a_line() {
    for (text, says) in [
        ("fully", "(`full`?); known are full, prefix-cache, ring"),
        ("infoflow:ratio", "needs a value: SHARE"),
        ("infoflow:ratio=", "needs a value"),
        ("infoflow:ratio=x", "needs a number"),
        ("infoflow:ratio=NaN", "needs a number"),
        ("infoflow:ratio=1.5", "must be from 0 to 1"),
        ("infoflow:rato=0.1", "unknown option (`ratio`?); infoflow takes ratio,"),
        ("infoflow:colour=red", "unknown option; infoflow takes"),
        ("infoflow:theta=0.5", "makes no difference to this method"),
        ("infoflow:ratio=0.1:ratio=0.2", "ratio: is given twice"),
        ("infoflow:score=norm:score=mass", "score: is given twice"),
        ("samkv:blocks=2:blocks=3", "blocks: is given twice"),
        ("infoflow:score=max", "none of norm, mass"),
        ("infoflow:reorder=no", "takes no value"),
        ("infoflow:layers=[1,2", "a bracket is not closed"),
        ("infoflow:layers=1]", "was not opened"),
        ("infoflow:layers=1,2", "stands in brackets"),
        ("full:evict=snapkv:window=4", "unknown option"),
        ("full:evict=[snapkv:window=0]", "window: must be 1 or more"),
        ("epic:reorder", "makes no difference"),
        ("epic:rows=65", "must be from 1 to 64"),
        ("all-gather:heads=0", "must be 1 or more"),
        ("samkv:blocks=0", "must be 1 or more"),
        ("samkv:theta=1.5", "must be from 0 to 1"),
        ("ape:temperature=0", "must be above 0"),
        ("ape:scale=-0.5", "must be above 0"),
        ("ape:scale=inf", "needs a number"),
        ("ape:temperature=1e-60", "must be above 0"),
        ("ape:temperature=1e60", "must be above 0"),
        ("trace:alpha=1e-60", "must be above 0 and at most 1"),
        ("trace:alpha=1.5", "must be above 0 and at most 1"),
        ("cacheblend:drift-layers=-1", "needs a whole number"),
    ] {
        let why = text.parse::<MethodSpec>().expect_err(text);
        assert!(why.contains(says) && !why.contains('\n'), "{text}: {why}");
    }
    assert!(format!("infoflow:ratio=0.{}", "1".repeat(LONGEST)).parse::<MethodSpec>().is_err());
}
