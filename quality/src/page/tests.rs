//! A page of made-up answers.

use tributary_engine::{Question, Synthetic};

use super::*;
use crate::answers::{Answer, Outcome, Reply};
use crate::evaluation::Request;
use crate::kit::{self, arm, environment, origin};
use crate::report::report;
use crate::score::Metric;
use crate::selected::Rows;
use crate::suite::{Cell, Scoring};

fn evaluation() -> Evaluation {
    let asked = crate::Asked { suite: "hops".to_owned(), samples: 2, world: 2, threads: 1, ..crate::Asked::default() };
    let mut design = crate::open(&asked).unwrap().0;
    (design.lengths, design.depths) = (vec![512, 1024], vec![0, 50]);
    let cell = |length, depth| Cell { depth: Some(depth), ..Cell::at("niah", length) };
    let cells = vec![(cell(512, 0), 2), (cell(512, 50), 2), (cell(1024, 0), 2), (cell(1024, 50), 2)];
    let request = |(cell, number): (&Cell, usize)| Request {
        cell: cell.clone(),
        number,
        id: None,
        question: Question::Random(Synthetic { chunks: 1, chunk_tokens: 1, query_tokens: 1 }, 0),
        scoring: Scoring::new(Metric::MatchAll, vec!["<7>".to_owned()]),
        prompt_hash: String::new(),
        prompt_tokens: 2,
        answer_tokens: 4,
    };
    let requests = cells.iter().flat_map(|(cell, count)| (0..*count).map(move |number| (cell, number))).map(request);
    Evaluation {
        design,
        arms: vec![arm("full", None), arm("relay", Some(0.1)), arm("relay", Some(0.2))],
        requests: requests.collect(),
        longest: Vec::new(),
        is_estimated: false,
        cells,
    }
}

#[test]
fn a_page_shows_scores_charts_and_the_worst_requests() {
    let evaluation = evaluation();
    let mut answers = Answers::default();
    for request in &evaluation.requests {
        for arm in &evaluation.arms {
            let is_wrong = arm.ratio == Some(0.1) && request.number == 1;
            let answer = if is_wrong { "<nothing>" } else { "it is <7>" }.to_owned();
            let selected = if arm.ratio.is_some() { Rows::of([1, 3].into_iter()) } else { Rows::default() };
            let order = if arm.ratio == Some(0.2) { vec![1, 0] } else { Vec::new() };
            let reply = Reply { answer, selected, order, ..kit::reply() };
            answers.add(Answer::new(request, arm, Outcome::Answered(Box::new(reply))));
        }
    }
    let report = report(&evaluation, (origin(), environment()), &answers, 0, None);
    let read = |_: &Question| {
        let chunks = vec![kit::piece("the <red> lamp"), kit::piece("a dog")];
        Some(tributary_coordinator::Prepared { chunks, ..tributary_coordinator::Prepared::default() })
    };
    let page = page(&evaluation, &report, &answers, &read);
    assert!(page.contains("<td class=\"text\">niah at 512 deep 50 %</td>"), "{page}");
    assert!(page.contains("<td class=\"text\">&lt;nothing&gt;</td>\n<td class=\"text\">it is &lt;7&gt;</td>"));
    assert_eq!(page.matches("<td class=\"text\">&lt;nothing&gt;</td>").count(), 4, "the most of a method");
    // Time, ratios, and a heat map for each of the three; bytes cost nothing here.
    assert_eq!(page.matches("<svg class=\"chart\"").count(), 2 + 3);
    // Four requests, with both methods that selected rows on each, the one with the lower score
    // first; the other read the second chunk first.
    assert_eq!((page.matches("<details>").count(), page.matches("<section>").count()), (4, 8));
    let first = page.split("<section>").nth(1).unwrap();
    assert!(
        first.starts_with("<h3>relay at 0.1</h3>") && first.contains("score 0.00; 2 of 10 rows; “&lt;nothing&gt;”"),
        "{first}"
    );
    assert!(
        first.contains("<b>chunk 1</b> the <mark>&lt;red&gt;</mark> lamp</p>\n<p><b>chunk 2</b> <mark>a</mark> dog"),
        "{first}"
    );
    let second = page.split("<section>").nth(2).unwrap();
    assert!(second.contains("; chunks moved;") && second.find("chunk 2") < second.find("chunk 1"), "{second}");
    assert!(page.contains("<p>No request failed.</p>") && page.contains(">0.50 <small>[0.09 – 0.91]</small></td>"));
    assert!(page.contains("<p>4 answers of 1 method have a lower score than full prefill's; all are shown here.</p>"));
    assert!(
        page.contains("Wilson's for the score")
            && page.contains("<th>p (Holm)</th>")
            && page.contains("adjusted for all rows of the table")
    );
    let links = page.replace("http://www.w3.org/2000/svg", "");
    for word in ["http", "src=", "url(", "@import", "<script", "<link"] {
        assert!(!links.contains(word), "{word}");
    }
}
