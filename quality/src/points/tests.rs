//! Points of made-up answers.

use tributary_engine::RunConfig;
use tributary_planner::RequestSettings;
use tributary_protocol::{Method, REFERENCE};

use super::*;
use crate::answers::Outcome;
use crate::kit;

fn arm(method: &'static Method) -> Arm {
    let settings = RequestSettings { method, ..RequestSettings::default() };
    Arm::new(method.name.to_owned(), RunConfig { settings, threads: 1 })
}

fn cells() -> [(Cell, usize); 2] {
    [(Cell::of("single"), 4), (Cell::of("vt2"), 4)]
}

fn answer(arm: &Arm, task: &str, sample: usize, score: f64) -> Answer {
    let reply = Reply {
        first_token: score as u32,
        selected_rows: 15,
        measured_rows: 5,
        context_rows: 100,
        ttft_ms: 1.0 + sample as f64,
        received_bytes: 10,
        moved: sample == 0,
        kl_nats: (arm.method != "full").then_some(0.5 * sample as f64),
        ..kit::reply()
    };
    Answer {
        cell: Cell::of(task),
        sample,
        id: None,
        method: arm.method.clone(),
        ratio: arm.ratio,
        prompt_hash: String::new(),
        references: Vec::new(),
        score,
        outcome: Outcome::Answered(Box::new(reply)),
    }
}

#[test]
fn methods_stand_beside_full_on_the_same_requests_and_failures_count_as_wrong() {
    let (full, relay) = (arm(REFERENCE), arm(Method::find("relay").unwrap()));
    let mut answers = Answers::default();
    for sample in 0..4 {
        answers.add(answer(&full, "single", sample, 1.0));
        answers.add(answer(&full, "vt2", sample, 0.0));
        // Right where full is, but for one that fails; and once where full is not.
        answers.add(answer(&relay, "single", sample, 1.0));
        answers.add(answer(&relay, "vt2", sample, f64::from(u8::from(sample == 1))));
    }
    let outcome = Outcome::Failed { failure: "no".to_owned(), exit_code: 70 };
    answers.add(Answer { outcome, score: 0.0, ..answer(&relay, "single", 3, 0.0) });
    let points = points(&cells(), 0, &[full, relay], &answers);
    let of = |method: &str, task: &str| points.iter().find(|p| p.method == method && p.task == task).unwrap();
    assert_eq!(points.len(), 6);
    assert_eq!((of("full", "all").score.mean, of("full", "all").against_full), (0.5, None));
    assert_eq!((of("full", "all").selected_share, of("full", "all").ratio), (1.0, None));
    let single = of("relay", "single");
    assert_eq!((single.requests, single.failures, single.score.mean), (4, 1, 0.75));
    assert_eq!((single.first_token_agrees, single.median_ttft_ms), (1.0, 2.0), "of the three that were answered");
    assert_eq!((single.share_of_full, of("relay", "vt2").share_of_full), (Some(0.75), None), "nothing of nothing");
    let all = of("relay", "all");
    let pair = all.against_full.unwrap();
    assert_eq!((pair.right_alone, pair.full_alone, pair.mcnemar_p), (1, 1, 1.0));
    assert_eq!(pair.holm_p, 1.0, "one comparison");
    assert_eq!((pair.difference.mean, all.requests, all.ratio), (0.0, 8, Some(0.15)));
    assert!((all.selected_share - 0.15).abs() < 1e-12 && (all.measured_share - 0.05).abs() < 1e-12, "{all:?}");
    assert!((all.moved_share - 2.0 / 7.0).abs() < 1e-12 && (all.first_token_agrees - 6.0 / 7.0).abs() < 1e-12);
    // 6 of the 7 that were answered have full's first token; 0, 0.5, 1, 0, 0.5, 1, 1.5 nats.
    let near = all.agreement.unwrap();
    assert_eq!((near.requests, of("full", "all").agreement), (7, None));
    assert!((near.first_token.share - 6.0 / 7.0).abs() < 1e-12 && near.first_token.low < 0.5, "{near:?}");
    let nats = near.kl_nats.unwrap();
    assert!((nats.mean - 4.5 / 7.0).abs() < 1e-12 && nats.low < nats.mean && nats.mean < nats.high, "{nats:?}");
}

#[test]
fn p_values_are_adjusted_for_the_methods_beside_them_in_each_cell() {
    let find = |name: &str| arm(Method::find(name).unwrap());
    let arms = [arm(REFERENCE), find("none"), find("epic"), find("random")];
    let mut answers = Answers::default();
    for sample in 0..12 {
        for arm in &arms {
            // `none` is right nowhere, `epic` in half, `random` as full prefill; on the other task
            // all are right.
            let is_right = match arm.method.as_str() {
                "none" => false,
                "epic" => sample % 2 == 0,
                _ => true,
            };
            answers.add(answer(arm, "single", sample, f64::from(u8::from(is_right))));
            answers.add(answer(arm, "vt2", sample, 1.0));
        }
    }
    let cells = [(Cell::of("single"), 12), (Cell::of("vt2"), 12)];
    let points = points(&cells, 0, &arms, &answers);
    let pair = |method: &str, task: &str| {
        points.iter().find(|p| p.method == method && p.task == task).unwrap().against_full.unwrap()
    };
    let (none, epic, random) = (pair("none", "single"), pair("epic", "single"), pair("random", "single"));
    assert_eq!((none.holm_p, epic.holm_p, random.holm_p), (3.0 * none.mcnemar_p, 2.0 * epic.mcnemar_p, 1.0));
    assert!(epic.mcnemar_p < 0.05 && epic.holm_p > 0.05, "a finding alone, and none among three: {epic:?}");
    assert_eq!(pair("none", "vt2").holm_p, 1.0, "another cell is another table");
    let families: Vec<&str> = arms.iter().map(|arm| arm.family().name()).collect();
    assert_eq!(families, ["exact", "reuse", "position", "control"]);
    let right = points.iter().find(|p| p.method == "random" && p.task == "vt2").unwrap();
    assert!(right.score.mean == 1.0 && right.score.low < 0.8, "twelve of twelve are not sure: {right:?}");
}

#[test]
fn lengths_are_looked_at_together_where_there_are_several() {
    let cell = |task: &str, length, depth| (Cell { depth: Some(depth), ..Cell::at(task, length) }, 1);
    let cells = [cell("niah", 512, 0), cell("niah", 512, 50), cell("niah", 1024, 0), cell("niah", 1024, 50)];
    let names: Vec<String> = groups(&cells).iter().map(|group| group.name.to_string()).collect();
    let wanted = ["niah at 512 deep 0 %", "niah at 512 deep 50 %", "niah at 1024 deep 0 %", "niah at 1024 deep 50 %"];
    assert_eq!(names[..4], wanted);
    assert_eq!(names[4..], ["all at 512", "all at 1024", "all"]);
    assert_eq!(groups(&cells)[5].members, [2, 3]);
    assert_eq!(groups(&cells[..2]).len(), 3, "one length is all of them");
    let sized = |length, size| (Cell { chunk_tokens: Some(size), ..Cell::at("niah", length) }, 1);
    let names = |cells: &[(Cell, usize)]| groups(cells).iter().map(|group| group.name.to_string()).collect::<Vec<_>>();
    let all = names(&[sized(512, 64), sized(1024, 64), sized(512, 128), sized(1024, 128)]);
    assert_eq!(all[4..], ["all at 512", "all at 1024", "all in chunks of 64", "all in chunks of 128", "all"]);
    assert_eq!(names(&[sized(512, 64), sized(512, 128)])[2..], ["all in chunks of 64", "all in chunks of 128", "all"]);
}
