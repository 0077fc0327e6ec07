//! The context with the recomputed tokens highlighted.

use std::collections::HashSet;

use tributary_coordinator::Piece;

use crate::answered::Answered;

/// The context in the order of the layout, chunk by chunk, with its recomputed tokens between the
/// marks.
pub fn highlighted(answered: &Answered, marks: (&str, &str)) -> String {
    let plan = &answered.planned.plan;
    let selected: HashSet<u32> = answered.answer.outcome.selected.iter().copied().collect();
    let starts = plan.chunk_starts();
    let mut text = String::new();
    for &chunk in &answered.answer.outcome.order {
        let chunk = chunk as usize;
        let piece = &answered.prepared.chunks[chunk];
        let first_row = plan.prefix_tokens() + starts[chunk];
        let chosen: Vec<bool> =
            (0..piece.ids.len()).map(|index| selected.contains(&((first_row + index) as u32))).collect();
        let count = chosen.iter().filter(|&&chosen| chosen).count();
        text += &format!("--- chunk {chunk}: {count} of {} tokens recomputed\n", piece.ids.len());
        text += &marked(piece, &chosen, marks);
        text.push('\n');
    }
    text
}

/// A chunk's text with runs of chosen tokens between the marks; token ids where there is no text.
fn marked(piece: &Piece, chosen: &[bool], (open, close): (&str, &str)) -> String {
    let mut text = String::new();
    let (mut at, mut inside) = (0, false);
    for (index, &is_chosen) in chosen.iter().enumerate() {
        let id;
        let (gap, token) = match piece.spans.get(index) {
            Some(span) if span.start >= at && span.end >= span.start => {
                let parts = (piece.text.get(at..span.start).unwrap_or(""), piece.text.get(span.clone()).unwrap_or(""));
                at = span.end;
                parts
            }
            Some(_) => ("", ""),
            None => {
                id = piece.ids[index].to_string();
                (if index == 0 { "" } else { " " }, id.as_str())
            }
        };
        if inside && !is_chosen {
            text += close;
        }
        text += gap;
        if is_chosen && !inside {
            text += open;
        }
        text += token;
        inside = is_chosen;
    }
    if inside {
        text += close;
    }
    text + piece.text.get(at..).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_chosen_tokens_are_marked() {
        let (text, spans) = ("ab cd ef.".to_owned(), vec![0..2, 3..5, 6..8]);
        let piece = Piece { ids: vec![1, 2, 3], text, spans, ..Piece::default() };
        let mark = |chosen: [bool; 3]| marked(&piece, &chosen, ("<", ">"));
        assert_eq!(mark([false, true, false]), "ab <cd> ef.");
        assert_eq!(mark([true, true, false]), "<ab cd> ef.");
        assert_eq!(mark([false, false, true]), "ab cd <ef>.");
        assert_eq!(mark([false, false, false]), "ab cd ef.");
    }

    #[test]
    fn without_text_ids_are_shown() {
        let piece = Piece { ids: vec![7, 8], ..Piece::default() };
        assert_eq!(marked(&piece, &[false, true], ("<", ">")), "7 <8>");
    }
}
