//! Points and answers as CSV, for other programs: a row each, with the names of columns above.

use std::fmt::Debug;

use crate::answers::{Answer, Answers, Outcome};
use crate::error::Result;
use crate::evaluation::Evaluation;
use crate::points::Point;

/// A row's columns with their names.
type Columns = Vec<(&'static str, String)>;

/// All points.
///
/// # Errors
/// Returns an error if a row cannot be written, which only a bug can cause.
pub fn points(points: &[Point]) -> Result<String> {
    written(points.iter().map(point_columns))
}

/// All answers, in the order of requests and methods; a failure has its cause and no numbers.
///
/// # Errors
/// Returns an error if a row cannot be written, which only a bug can cause.
pub fn answers(evaluation: &Evaluation, answers: &Answers) -> Result<String> {
    let reference = evaluation.arms.first();
    let rows = evaluation.requests.iter().flat_map(|request| {
        let of = move |arm| answers.get(&request.cell, request.number, arm);
        let full = reference.and_then(of);
        evaluation.arms.iter().filter_map(of).map(move |answer| answer_columns(answer, full))
    });
    written(rows)
}

fn written(rows: impl Iterator<Item = Columns>) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for (index, columns) in rows.enumerate() {
        if index == 0 {
            writer.write_record(columns.iter().map(|(name, _)| name))?;
        }
        writer.write_record(columns.iter().map(|(_, value)| value))?;
    }
    let bytes = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A value that may be absent.
fn some<T: Debug>(value: Option<T>) -> String {
    value.map_or_else(String::new, |value| format!("{value:?}"))
}

fn point_columns(point: &Point) -> Columns {
    let (pair, near) = (point.against_full.as_ref(), point.agreement.as_ref());
    let nats = near.and_then(|near| near.kl_nats);
    let real = |value: f64| some(Some(value));
    let evicted = point.eviction.as_ref();
    vec![
        ("method", point.method.clone()),
        ("ratio", some(point.ratio)),
        ("task", point.task.clone()),
        ("length", some(point.length)),
        ("depth", some(point.depth)),
        ("requests", point.requests.to_string()),
        ("failures", point.failures.to_string()),
        ("score", real(point.score.mean)),
        ("score_low", real(point.score.low)),
        ("score_high", real(point.score.high)),
        ("share_of_full", some(point.share_of_full)),
        ("f1", real(point.f1)),
        ("contained", real(point.contained)),
        ("difference_to_full", some(pair.map(|pair| pair.difference.mean))),
        ("difference_low", some(pair.map(|pair| pair.difference.low))),
        ("difference_high", some(pair.map(|pair| pair.difference.high))),
        ("right_alone", some(pair.map(|pair| pair.right_alone))),
        ("full_alone", some(pair.map(|pair| pair.full_alone))),
        ("mcnemar_p", some(pair.map(|pair| pair.mcnemar_p))),
        ("first_token_agrees", real(point.first_token_agrees)),
        ("median_ttft_ms", real(point.median_ttft_ms)),
        ("selected_share", real(point.selected_share)),
        ("measured_share", real(point.measured_share)),
        ("moved_share", real(point.moved_share)),
        ("median_received_bytes", point.median_received_bytes.to_string()),
        ("first_token_low", some(near.map(|near| near.first_token.low))),
        ("first_token_high", some(near.map(|near| near.first_token.high))),
        ("kl_nats", some(nats.map(|nats| nats.mean))),
        ("kl_nats_low", some(nats.map(|nats| nats.low))),
        ("kl_nats_high", some(nats.map(|nats| nats.high))),
        ("chunk_tokens", some(point.chunk_tokens)),
        ("median_total_ms", some(point.median_total_ms)),
        ("median_token_ms", some(point.median_token_ms)),
        ("kept_rows", some(point.kept_rows)),
        ("evict", evicted.map_or_else(String::new, |evicted| evicted.evict.clone())),
        ("keep", evicted.map_or_else(String::new, |evicted| evicted.keep.clone())),
        ("median_bytes_before", some(evicted.map(|evicted| evicted.median_bytes_before))),
        ("median_bytes_kept", some(evicted.map(|evicted| evicted.median_bytes_kept))),
        ("median_evict_ms", some(evicted.map(|evicted| evicted.median_ms))),
        ("holm_p", some(pair.map(|pair| pair.holm_p))),
        ("family", point.family.to_owned()),
    ]
}

fn answer_columns(answer: &Answer, full: Option<&Answer>) -> Columns {
    let (cell, reply) = (&answer.cell, answer.reply());
    let full = full.and_then(Answer::reply);
    let failure = match &answer.outcome {
        Outcome::Failed { failure, .. } => failure.clone(),
        Outcome::Answered(_) => String::new(),
    };
    vec![
        ("task", cell.task.clone()),
        ("length", some(cell.length)),
        ("depth", some(cell.depth)),
        ("chunk_tokens", some(cell.chunk_tokens)),
        ("sample", answer.sample.to_string()),
        ("id", answer.id.clone().unwrap_or_default()),
        ("method", answer.method.clone()),
        ("ratio", some(answer.ratio)),
        ("score", some(Some(answer.score))),
        ("first_token", some(reply.map(|reply| reply.first_token))),
        ("first_token_as_full", some(reply.zip(full).map(|(own, full)| own.first_token == full.first_token))),
        ("kl_nats", some(reply.and_then(|reply| reply.kl_nats))),
        ("selected_rows", some(reply.map(|reply| reply.selected_rows))),
        ("measured_rows", some(reply.map(|reply| reply.measured_rows))),
        ("context_rows", some(reply.map(|reply| reply.context_rows))),
        ("ttft_ms", some(reply.map(|reply| reply.ttft_ms))),
        ("received_bytes", some(reply.map(|reply| reply.received_bytes))),
        ("moved", some(reply.map(|reply| reply.moved))),
        ("answer", reply.map(|reply| reply.answer.clone()).unwrap_or_default()),
        ("references", answer.references.join("; ")),
        ("failure", failure),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::Reply;
    use crate::kit;

    #[test]
    fn answers_stand_in_rows_failures_too() {
        let evaluation = kit::evaluation(vec![kit::arm("full", None), kit::arm("relay", Some(0.1))], 2);
        let mut all = Answers::default();
        let [full, relay] = [0, 1].map(|index| &evaluation.arms[index]);
        let (first, second) = (&evaluation.requests[0], &evaluation.requests[1]);
        all.add(Answer::new(first, full, Outcome::Answered(Box::new(kit::reply()))));
        let reply = Reply { answer: "a, \"b\"\nc".to_owned(), first_token: 9, kl_nats: Some(0.5), ..kit::reply() };
        all.add(Answer::new(first, relay, Outcome::Answered(Box::new(reply))));
        let outcome = Outcome::Failed { failure: "rank 1 is gone".to_owned(), exit_code: 69 };
        all.add(Answer::new(second, relay, outcome));
        let text = answers(&evaluation, &all).unwrap();
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let heads = reader.headers().unwrap().clone();
        let rows: Vec<csv::StringRecord> = reader.records().map(|row| row.unwrap()).collect();
        let of = |row: usize, name: &str| rows[row][heads.iter().position(|head| head == name).unwrap()].to_owned();
        assert_eq!(
            (rows.len(), of(0, "method"), of(0, "kl_nats"), of(0, "first_token_as_full")),
            (3, "full".into(), "".into(), "true".into())
        );
        assert_eq!(
            (of(1, "kl_nats"), of(1, "first_token_as_full"), of(1, "ratio")),
            ("0.5".into(), "false".into(), "0.1".into())
        );
        assert_eq!((of(1, "answer"), of(1, "ttft_ms")), ("a, \"b\"\nc".into(), "1.0".into()));
        assert_eq!(
            (of(2, "failure"), of(2, "score"), of(2, "ttft_ms")),
            ("rank 1 is gone".into(), "0.0".into(), "".into())
        );
    }

    #[test]
    fn points_stand_in_rows() {
        let text = points(&[kit::point("full", None, 0.5, 2.0), kit::point("relay", Some(0.15), 0.25, 1.0)]).unwrap();
        let all: Vec<&str> = text.lines().collect();
        assert!(all[0].starts_with("method,ratio,task,length,depth,requests,failures,score,"), "{text}");
        assert!(
            all[0].ends_with(",evict,keep,median_bytes_before,median_bytes_kept,median_evict_ms,holm_p,family"),
            "{text}"
        );
        assert!(all[2].starts_with("relay,0.15,all,,,1,1,0.25,0.2,0.3,"), "{text}");
        assert!(all.iter().all(|row| row.matches(',').count() == all[0].matches(',').count()), "{text}");
    }
}
