//! A study as a table on a terminal: where the numbers come from in comments, then aligned columns
//! with units.

use tributary_charts::table::{Layout, filled, table};
use tributary_system::size::rounded;

use super::notes::{notes, warning};
use super::rows::{PointRow, interval_name, point_rows};
use super::scaling::{Scaled, strong, weak_flops, weak_tokens};
use super::schema::Study;

/// The whole table. Ends with a line break.
pub fn render(study: &Study) -> String {
    let mut text = header(study);
    if let Some(warning) = warning(study) {
        text += &format!("# warning: {warning}\n");
    }
    text += &points(study);
    text += &strong_scaling(study);
    text += &weak_scaling(study);
    text += &failures(study);
    for note in notes(study) {
        text += &format!("# note: {note}\n");
    }
    text
}

fn header(study: &Study) -> String {
    let (from, design) = (&study.provenance, &study.design);
    let revision = from.revision.as_deref().unwrap_or("unknown");
    let memory = rounded(from.memory_bytes);
    let numbers = match &*design.kv_dtype {
        "" => design.dtype.clone(),
        kv_dtype => format!("{}, keys and values {kv_dtype}", design.dtype),
    };
    format!(
        "# tributary bench {}, commit {revision}, build {}; {}\n\
         # {}: {}, {}, {} cores, {}, {memory}; backend {}\n\
         # model {} ({}), {}, hash {}; {} threads a rank\n\
         # chunks of {} tokens, query of {}; {} warm-ups, {} counted runs a point, interleaved, seed {}\n\
         # {}\n",
        from.version,
        from.build,
        from.began,
        from.host,
        from.system,
        from.cpu,
        from.cores,
        from.instruction_set,
        from.backend,
        design.model,
        design.load_format,
        numbers,
        from.model_hash.get(..16).unwrap_or(&from.model_hash),
        design.threads,
        design.chunk_tokens,
        design.query_tokens,
        design.warmups,
        design.repeats,
        design.seed,
        from.command.join(" "),
    )
}

fn points(study: &Study) -> String {
    let interval = interval_name(study);
    let columns: [(&str, &str); 19] = [
        ("tokens", ""),
        ("method", ""),
        ("ranks", ""),
        ("ratio", ""),
        ("cache", ""),
        ("exchange", ""),
        ("median", "[ms]"),
        (interval, "[ms]"),
        ("min", "[ms]"),
        ("max", "[ms]"),
        ("predicted", "[ms]"),
        ("its interval", "[ms]"),
        ("x full", ""),
        ("efficiency", ""),
        ("Karp-Flatt", ""),
        ("bytes", "received"),
        ("bytes", "formula"),
        ("max |dlogit|", ""),
        ("top-1", ""),
    ];
    let mut rows =
        vec![columns.map(|(name, _)| name.to_owned()).to_vec(), columns.map(|(_, unit)| unit.to_owned()).to_vec()];
    rows.extend(point_rows(study).iter().map(|row| point_cells(row, interval == "range")));
    let (rows, left) = filled(&rows, 2, &[1, 4, 5]);
    format!("# time to first token\n{}", table(&rows, Layout { left: &left, commented_rows: Some(2) }))
}

/// A row's cells. A range is written with its least and largest value.
fn point_cells(row: &PointRow, is_range: bool) -> Vec<String> {
    let fixed = |value: Option<f64>| shown(value, |value| format!("{value:.2}"));
    let interval = row.ci95_low_ttft_ms.zip(row.ci95_high_ttft_ms);
    let predicted = row.predicted_low_ttft_ms.zip(row.predicted_high_ttft_ms);
    vec![
        row.context_tokens.to_string(),
        row.method.clone(),
        format!("{}{}", row.world, if row.shares_cores { "*" } else { "" }),
        shown(row.ratio, |ratio| ratio.to_string()),
        row.shown_cache().unwrap_or("-").to_owned(),
        row.exchange.clone().unwrap_or_else(|| "-".to_owned()),
        fixed(row.median_ttft_ms),
        shown(interval, |(low, high)| format!("{low:.2} to {high:.2}")),
        fixed(row.min_ttft_ms.filter(|_| !is_range)),
        fixed(row.max_ttft_ms.filter(|_| !is_range)),
        fixed(row.predicted_ttft_ms),
        shown(predicted, |(low, high)| format!("{low:.2} to {high:.2}")),
        fixed(row.speed_up_to_full),
        fixed(row.grown_efficiency()),
        shown(row.karp_flatt, |share| format!("{share:.3}")),
        shown(row.received_bytes, |bytes| bytes.to_string()),
        shown(row.formula_bytes, |bytes| bytes.to_string()),
        shown(row.max_logit_difference, |difference| format!("{difference:.1e}")),
        shown(row.top1_agrees, |agrees| if agrees { "yes" } else { "no" }.to_owned()),
    ]
}

/// A value for display, or a dash.
fn shown<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

fn strong_scaling(study: &Study) -> String {
    let rows: Vec<Scaled> =
        strong(study).into_iter().filter(|row| row.world > row.base_world && !row.series.is_full()).collect();
    if rows.is_empty() {
        return String::new();
    }
    let title = "# strong scaling: the same request on more ranks\n";
    title.to_owned() + &scaled(&rows, true)
}

fn weak_scaling(study: &Study) -> String {
    let mut text = String::new();
    for (what, rows) in [("tokens", weak_tokens(study)), ("FLOPs (predicted, within 10 %)", weak_flops(study))] {
        if !rows.is_empty() {
            text += &format!("# weak scaling at constant {what} a rank; efficiency 1 is ideal\n");
            text += &scaled(&rows, false);
        }
    }
    text
}

fn scaled(rows: &[Scaled], is_strong: bool) -> String {
    let names = [
        "method",
        "tokens",
        "ranks",
        "base tokens",
        "base ranks",
        "base [ms]",
        "median [ms]",
        "speed-up",
        "efficiency",
        "Karp-Flatt",
    ];
    let mut cells = vec![names.map(str::to_owned).to_vec()];
    cells.extend(rows.iter().map(|row| {
        vec![
            row.series.label(),
            row.tokens.to_string(),
            format!("{}{}", row.world, if row.shares_cores { "*" } else { "" }),
            row.base_tokens.to_string(),
            row.base_world.to_string(),
            format!("{:.2}", row.base_ms),
            format!("{:.2}", row.ms),
            if is_strong { format!("{:.2}", row.speed_up) } else { "-".to_owned() },
            // On more ranks for the same request it is the speed-up over their growth, which adds
            // no information.
            if is_strong { "-".to_owned() } else { format!("{:.2}", row.efficiency) },
            shown(row.karp_flatt, |share| format!("{share:.3}")),
        ]
    }));
    let (cells, left) = filled(&cells, 1, &[0]);
    table(&cells, Layout { left: &left, commented_rows: Some(1) })
}

fn failures(study: &Study) -> String {
    let mut text = String::new();
    for point in &study.points {
        for failure in &point.failures {
            text += &format!(
                "# failed: run {} of {}: {} (exit code {})\n",
                failure.run, point.id, failure.cause, failure.exit_code
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::kit::{measured, study};
    use super::super::schema::Failure;
    use super::*;

    #[test]
    fn a_busy_machine_and_a_true_interval_are_told() {
        let mut ring = measured("ring", 1024, 1, None, 100.0);
        ring.summary = super::super::schema::summary(&[98.0, 101.0, 100.0, 99.0, 103.0, 100.5, 100.2, 99.7, 100.9]);
        let mut study = study(vec![ring]);
        study.busy = vec![super::super::busy::Busy { others_share: Some(0.5), ..Default::default() }];
        let text = render(&study);
        assert!(
            text.contains("# warning: the machine was busy: other processes took 50 % of its processors"),
            "{text}"
        );
        let heads = text.lines().find(|line| line.starts_with("# tokens")).unwrap();
        assert!(heads.contains("95 % interval") && heads.contains("min"), "{text}");
    }

    #[test]
    fn a_table_has_its_numbers_and_its_notes() {
        let mut shared = measured("ring", 1024, 4, None, 50.0);
        shared.shares_cores = true;
        shared.failures.push(Failure { run: 9, cause: "rank 1 lost".into(), exit_code: 69 });
        let points = vec![
            measured("full", 1024, 1, None, 120.0),
            measured("ring", 1024, 1, None, 100.0),
            measured("ring", 1024, 2, None, 60.0),
            shared,
            measured("ring", 2048, 2, None, 125.0),
        ];
        let text = render(&study(points));
        let row = |start: &[&str]| {
            let found = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            found.into_iter().find(|cells| cells.starts_with(start)).unwrap_or_default().join(" ")
        };
        let wanted = "1024 ring 2 60.00 58.00 to 63.00 2.00 0.83 0.200 0 0 1.0e-6 yes";
        assert_eq!(row(&["1024", "ring", "2"]), wanted);
        assert!(row(&["1024", "ring", "4*"]).contains(" 0.50 "), "{text}");
        assert_eq!(row(&["ring", "2048", "2", "1024"]), "ring 2048 2 1024 1 100.00 125.00 0.80");
        // Ranks of the same request: the speed-up and Karp-Flatt, without efficiency.
        assert_eq!(row(&["ring", "1024", "2", "1024"]), "ring 1024 2 1024 1 100.00 60.00 1.67 0.200");
        let heads = text.lines().find(|line| line.starts_with("# tokens")).unwrap();
        assert!(
            heads.contains("  range  ") && !text.contains("95 % interval"),
            "five samples have no 95 % interval: {text}"
        );
        for absent in ["ratio", "exchange", "cache", "predicted", "min", "p95"] {
            assert!(!heads.contains(absent), "{absent}: {heads}");
        }
        assert!(!text.contains("warning"), "{text}");
        assert!(text.contains("# failed: run 9 of ring tokens=1024 world=4: rank 1 lost (exit code 69)"), "{text}");
        assert!(text.contains("functional only"), "{text}");
        assert!(text.lines().all(|line| !line.ends_with(' ')), "{text}");
    }
}
