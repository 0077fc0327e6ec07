//! Specs that are read, printed and applied, and those that are refused.

use tributary_protocol::METHODS;

use super::*;

fn spec(text: &str) -> MethodSpec {
    text.parse().unwrap_or_else(|why| panic!("{text}: {why}"))
}

fn applied(text: &str, settings: &RequestSettings) -> RequestSettings {
    spec(text).apply(settings.clone(), Importance::Mass)
}

fn reordering() -> RequestSettings {
    RequestSettings { reorder: Some(Importance::Mass), ..RequestSettings::default() }
}

/// A value that an option takes, by the form that its row tells.
fn value_of(option: &MethodOption) -> String {
    match option.value {
        "" => String::new(),
        "SHARE" | "X" | "T" | "S" => "0.25".into(),
        "N" | "N|N%" => "3".into(),
        "N|N%|[N%:METHOD]" => "[50%:tova]".into(),
        "FIRST..END" => "1..3".into(),
        "METHOD|[METHOD:window=N]" => "[snapkv:window=4]".into(),
        names => names.rsplit('|').next().unwrap().into(),
    }
}

#[test]
fn what_is_printed_reads_as_the_same_for_every_method_and_option() {
    for method in METHODS {
        let options: Vec<_> = MethodOption::of(method).collect();
        let one = |option: &&MethodOption| match option.value {
            "" => format!(":{}", option.key),
            _ => format!(":{}={}", option.key, value_of(option)),
        };
        let written = options.iter().rev().map(one).collect::<String>();
        let read = spec(&format!("{}{written}", method.name));
        let printed = read.to_string();
        assert_eq!(spec(&printed).to_string(), printed);
        let keys: Vec<&str> = printed.split(':').skip(1).map(|part| part.split('=').next().unwrap()).collect();
        let keys: Vec<&&str> = keys.iter().filter(|key| MethodOption::find(key).is_some()).collect();
        assert_eq!(keys.len(), options.len(), "{printed}");
        assert_eq!(
            applied(&printed, &RequestSettings::default()),
            applied(&format!("{}{written}", method.name), &RequestSettings::default())
        );
    }
}

#[test]
fn options_stand_in_for_the_settings() {
    let settings = applied("infoflow:first:importance=selected:layers=1..4:ratio=0.05", &reordering());
    assert_eq!((settings.ratio, settings.score_layers), (Some(0.05), Some((1, 4))));
    assert_eq!((settings.reorder, settings.include_first_chunk), (Some(Importance::Selected), true));
    let settings = applied("samkv:theta=0.5:blocks=3", &RequestSettings::default());
    assert_eq!((settings.samkv.theta, settings.samkv.blocks), (0.5, 3));
    let settings = applied("full:evict=[snapkv:window=4]:keep=30%", &RequestSettings::default());
    assert_eq!(
        (settings.eviction.window, settings.eviction.keep.map(|keep| keep.to_string())),
        (Some(4), Some("30%".into()))
    );
    assert_eq!(
        spec("relay:keep-per-chunk=[50%:tova]:ratio=.3").to_string(),
        "relay:ratio=0.3:keep-per-chunk=[50%:tova]"
    );
}

#[test]
fn reordering_is_dropped_where_nobody_asks_the_query() {
    assert_eq!(applied("epic", &reordering()).reorder, None);
    assert_eq!(applied("relay:reorder:importance=selected", &reordering()).reorder, Some(Importance::Selected));
    assert_eq!(applied("relay", &reordering()).reorder, Some(Importance::Mass));
    let own = spec("relay:reorder").apply(RequestSettings::default(), Importance::Selected);
    assert_eq!(own.reorder, Some(Importance::Selected), "the command's own importance");
}

#[test]
fn an_order_for_the_selection_alone_is_dropped_where_nothing_moves() {
    let base = RequestSettings { order_for: OrderFor::Selection, ..reordering() };
    let [all, selection] = [OrderFor::All, OrderFor::Selection];
    let without = RequestSettings { reorder: None, ..base.clone() };
    for (text, expected) in
        [("epic", all), ("relay:reorder", selection), ("trace", selection), ("trace:keep-order", all)]
    {
        assert_eq!(applied(text, &without).order_for, expected, "{text}");
    }
    assert_eq!(applied("relay:order-for=selection", &RequestSettings::default()).order_for, selection);
}

#[test]
fn what_cannot_be_is_refused_in_a_line() {
    for (text, says) in [
        ("fully", "(`full`?); known are full, ring"),
        ("infoflow:ratio", "needs a value: SHARE"),
        ("infoflow:ratio=", "needs a value"),
        ("infoflow:ratio=x", "needs a number"),
        ("infoflow:ratio=NaN", "needs a number"),
        ("infoflow:rato=0.1", "unknown option (`ratio`?); infoflow takes ratio, score"),
        ("infoflow:colour=red", "unknown option; infoflow takes"),
        ("infoflow:theta=0.5", "makes no difference to this method"),
        ("infoflow:ratio=0.1:ratio=0.2", "ratio: stands there twice"),
        ("infoflow:score=max", "none of norm, mass"),
        ("infoflow:reorder=no", "takes no value"),
        ("infoflow:layers=[1,2", "a bracket is not closed"),
        ("infoflow:layers=1]", "was not opened"),
        ("infoflow:layers=1,2", "stands in brackets"),
        ("full:evict=snapkv:window=4", "unknown option"),
        ("epic:reorder", "makes no difference"),
    ] {
        let why = text.parse::<MethodSpec>().expect_err(text);
        assert!(why.contains(says) && !why.contains('\n'), "{text}: {why}");
    }
    assert!(format!("infoflow:ratio=0.{}", "1".repeat(LONGEST)).parse::<MethodSpec>().is_err());
}
