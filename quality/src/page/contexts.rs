//! Selections of methods on the requests with the largest losses: the text of the context with
//! their rows marked, methods side by side, documents in the order in which they were read.

use tributary_charts::page::{Column, Page, Passage};
use tributary_coordinator::{Piece, Prepared};
use tributary_engine::Question;

use super::worst::{Worst, shown};
use crate::answers::{Answer, Answers};
use crate::design::Arm;
use crate::evaluation::{Evaluation, Request};
use crate::selected::Rows;

/// The most requests that are shown, and the most methods of one.
const REQUESTS: usize = 8;
const METHODS: usize = 4;

/// Maximum letters of a context that is shown whole; of a longer one, the text around marked rows
/// is shown, this number of letters in all.
const LETTERS: usize = 4000;

/// Letters on either side of marked rows.
const AROUND: usize = 60;

/// Legend of the folded contexts.
const EXPLAINED: &str = "Each line unfolds to the context as methods read it, with the rows that they recomputed marked, methods with the largest losses first; a long context \
     is shown around marks only.";

/// Function from a request to its tokens with their texts; none where that fails.
pub type Read<'a> = &'a dyn Fn(&Question) -> Option<Prepared>;

/// Adds the contexts of the worst requests, folded.
pub fn contexts(page: &mut Page, evaluation: &Evaluation, answers: &Answers, worst: &[Worst<'_>], read: Read<'_>) {
    let mut requests: Vec<&Request> = Vec::new();
    for fall in worst {
        let is_its = |request: &&Request| request.cell == fall.own.cell && request.number == fall.own.sample;
        let found = evaluation.requests.iter().find(is_its);
        requests.extend(found.filter(|request| !requests.iter().any(|known| std::ptr::eq(*known, *request))));
    }
    let mut shown_requests = 0;
    let all_requests = requests.len();
    for request in requests {
        let fallen = |arm: &Arm| {
            let is_it = |fall: &&Worst<'_>| fall.own.cell == request.cell && fall.own.sample == request.number;
            worst.iter().filter(is_it).any(|fall| fall.method == arm.label())
        };
        let mut answered: Vec<(&Arm, &Answer)> = evaluation
            .arms
            .iter()
            .filter_map(|arm| Some((arm, answers.get(&request.cell, request.number, arm)?)))
            .filter(|(_, answer)| answer.reply().is_some_and(|reply| !reply.selected.is_empty()))
            .collect();
        answered.sort_by_key(|(arm, _)| !fallen(arm));
        answered.truncate(METHODS);
        let Some(prepared) = (!answered.is_empty()).then(|| read(&request.question)).flatten() else { continue };
        let columns: Vec<Column> = answered.iter().map(|(arm, answer)| column(arm, answer, &prepared.chunks)).collect();
        let name = request.id.clone().unwrap_or_else(|| format!("request {}", request.number));
        if shown_requests == 0 {
            page.paragraph(EXPLAINED);
        }
        page.folded(&format!("{}, {name}", request.cell), |page| {
            page.paragraph(&format!("{} → {}", asked(request), shown(&request.scoring.references.join("; "))));
            page.side_by_side(&columns);
        });
        shown_requests += 1;
        if shown_requests == REQUESTS {
            break;
        }
    }
    if shown_requests == REQUESTS && all_requests > REQUESTS {
        page.paragraph(&format!(
            "{REQUESTS} of these {all_requests} requests have their contexts here, of {METHODS} methods at most; rows of the others are in answers.jsonl."
        ));
    }
}

fn asked(request: &Request) -> String {
    match &request.question {
        Question::Led(led) => shown(&led.request.query),
        Question::Text(text) => shown(&text.query),
        Question::Random(..) | Question::Drawn(..) => String::new(),
    }
}

/// A method's context with its rows marked.
fn column(arm: &Arm, answer: &Answer, chunks: &[Piece]) -> Column {
    let reply = answer.reply().expect("only answers are shown");
    let (rows, all) = (reply.selected.len(), reply.context_rows);
    let moved = if reply.order.is_empty() { "" } else { "; chunks moved" };
    let lead = format!("score {:.2}; {rows} of {all} rows{moved}; “{}”", answer.score, shown(&reply.answer));
    Column { head: arm.label(), lead, passages: passages(chunks, &reply.selected, &reply.order) }
}

/// The chunks in the order in which they were read, whole or as the text around marked rows.
fn passages(chunks: &[Piece], selected: &Rows, order: &[u32]) -> Vec<Passage> {
    let order: Vec<usize> = match order.is_empty() {
        true => (0..chunks.len()).collect(),
        false => order.iter().map(|&chunk| chunk as usize).filter(|&chunk| chunk < chunks.len()).collect(),
    };
    let is_cut = chunks.iter().map(|chunk| chunk.text.len()).sum::<usize>() > LETTERS;
    let (mut found, mut letters) = (Vec::new(), 0);
    for (place, &chunk) in order.iter().enumerate() {
        if letters > LETTERS {
            found.push(Passage { head: format!("… and {} chunks more", order.len() - place), parts: Vec::new() });
            break;
        }
        let first: usize = chunks[..chunk].iter().map(|chunk| chunk.ids.len()).sum();
        let mut parts = parts(&chunks[chunk], first as u32, selected);
        if is_cut {
            parts = around(parts, (LETTERS + AROUND).saturating_sub(letters));
        }
        letters += parts.iter().map(|(text, _)| text.chars().count()).sum::<usize>();
        found.push(Passage { head: format!("chunk {}", chunk + 1), parts });
    }
    found
}

/// A chunk's text in parts that are marked and parts that are not. `first` is the number of its
/// first token in the context.
fn parts(chunk: &Piece, first: u32, selected: &Rows) -> Vec<(String, bool)> {
    let text = chunk.text.as_str();
    let (end, mut at) = (first + chunk.ids.len() as u32, 0);
    let mut parts: Vec<(String, bool)> = Vec::new();
    for &[from, to] in selected.ranges().iter().filter(|[from, to]| *from < end && *to > first) {
        let tokens = (from.max(first) - first) as usize..(to.min(end) - first) as usize;
        let Some(spans) = chunk.spans.get(tokens).filter(|spans| !spans.is_empty()) else { continue };
        let start = text.floor_char_boundary(spans[0].start).max(at);
        let after = text.ceil_char_boundary(spans[spans.len() - 1].end).max(start);
        parts.push((text[at..start].to_owned(), false));
        parts.push((text[start..after].to_owned(), true));
        at = after;
    }
    parts.push((text[at..].to_owned(), false));
    parts.retain(|(text, _)| !text.is_empty());
    parts
}

/// The text around marked parts, `most` letters of it and a few.
fn around(parts: Vec<(String, bool)>, most: usize) -> Vec<(String, bool)> {
    let (count, mut letters) = (parts.len(), 0);
    let mut kept = Vec::new();
    for (index, (text, is_marked)) in parts.into_iter().enumerate() {
        if letters > most {
            kept.push((" …".to_owned(), false));
            break;
        }
        let (behind_mark, before_mark) = (index > 0, index + 1 < count);
        let all = text.chars().count();
        let text = match is_marked {
            true if all > most => format!("{} …", text.chars().take(most).collect::<String>()),
            false if all > 2 * AROUND => {
                // The beginning of a chunk without marks says which it is.
                let head: String =
                    if behind_mark || !before_mark { text.chars().take(AROUND).collect() } else { String::new() };
                let tail: String = if before_mark { text.chars().skip(all - AROUND).collect() } else { String::new() };
                format!("{head} … {tail}")
            }
            _ => text,
        };
        letters += text.chars().count();
        kept.push((text, is_marked));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::piece;

    fn told(passages: &[Passage]) -> Vec<String> {
        let part = |(text, is_marked): &(String, bool)| if *is_marked { format!("[{text}]") } else { text.clone() };
        passages.iter().map(|own| format!("{}: {}", own.head, own.parts.iter().map(part).collect::<String>())).collect()
    }

    #[test]
    fn rows_are_marked_in_the_text_of_their_chunks_in_the_order_in_which_those_stood() {
        let chunks = [piece("the red é lamp"), piece("a dog sits")];
        let rows = Rows::of([1, 2, 4, 6].into_iter());
        assert_eq!(told(&passages(&chunks, &rows, &[])), ["chunk 1: the [red é] lamp", "chunk 2: [a] dog [sits]"]);
        assert_eq!(told(&passages(&chunks, &rows, &[1, 0])), ["chunk 2: [a] dog [sits]", "chunk 1: the [red é] lamp"]);
        let across = Rows::of(3..5);
        assert_eq!(told(&passages(&chunks, &across, &[])), ["chunk 1: the red é [lamp]", "chunk 2: [a] dog sits"]);
    }

    #[test]
    fn long_contexts_are_cut_around_marks() {
        let chunks: Vec<Piece> = (0..40).map(|number| piece(&format!("c{number} {}", "word ".repeat(100)))).collect();
        let found = told(&passages(&chunks, &Rows::of([50, 101 + 50].into_iter()), &[]));
        assert!(
            found[0].starts_with("chunk 1:  … ") && found[0].contains("[word]") && found[0].len() < 200,
            "{}",
            found[0]
        );
        assert!(
            found[2].starts_with("chunk 3: c2 word") && found[2].ends_with(" … ") && !found[2].contains('['),
            "{}",
            found[2]
        );
        let every = told(&passages(&chunks, &Rows::of((0..4040).step_by(2)), &[]));
        let letters: usize = every.iter().map(|text| text.chars().count()).sum();
        assert!(letters < 3 * LETTERS && every.last().unwrap().starts_with("… and "), "{letters} {every:?}");
        let whole = told(&passages(&chunks, &Rows::of(0..4040), &[]));
        assert!(whole.iter().map(|text| text.chars().count()).sum::<usize>() < 2 * LETTERS, "{whole:?}");
    }
}
