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
    let counts: Vec<usize> = answered.prepared.chunks.iter().map(|piece| piece.pictures.len()).collect();
    let mut text = String::new();
    for &chunk in &answered.answer.outcome.order {
        let chunk = chunk as usize;
        let piece = &answered.prepared.chunks[chunk];
        let first_row = plan.prefix_tokens() + starts[chunk] + plan.chunks[chunk].head_rows();
        let chosen: Vec<bool> =
            (0..piece.ids.len()).map(|index| selected.contains(&((first_row + index) as u32))).collect();
        let count = chosen.iter().filter(|&&chosen| chosen).count();
        text += &format!("--- chunk {chunk}: {count} of {} tokens recomputed\n", piece.ids.len());
        text += &marked(piece, &chosen, counts[..chunk].iter().sum(), marks);
        text.push('\n');
    }
    text
}

/// A chunk's text with runs of chosen tokens between the marks; token ids where there is no text. A
/// picture is told by its number among the request's, of which `before` stand in earlier chunks,
/// and by its numbers of chosen places and of places.
fn marked(piece: &Piece, chosen: &[bool], before: usize, (open, close): (&str, &str)) -> String {
    let mut text = String::new();
    let (mut at, mut inside) = (0, false);
    let (mut places, mut pictures) = (chosen.iter().enumerate(), (before + 1..).zip(&piece.pictures).peekable());
    while let Some((index, &is_chosen)) = places.next() {
        // The mark before its rows.
        if let Some((number, picture)) = pictures.next_if(|(_, picture)| picture.first as usize == index + 1) {
            let count = chosen[picture.range()].iter().filter(|&&chosen| chosen).count();
            text += if std::mem::take(&mut inside) { close } else { "" };
            text += piece.text.get(at..piece.spans[index].start).unwrap_or("");
            text += &format!("[picture {number}: {count} of {} places]", picture.rows());
            at = piece.spans[index].end;
            places.nth(picture.rows());
            continue;
        }
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
    use tributary_protocol::{Picture, Pixels};

    use super::*;

    #[test]
    fn runs_of_chosen_tokens_are_marked() {
        let (text, spans) = ("ab cd ef.".to_owned(), vec![0..2, 3..5, 6..8]);
        let piece = Piece { ids: vec![1, 2, 3], text, spans, ..Piece::default() };
        let mark = |chosen: [bool; 3]| marked(&piece, &chosen, 0, ("<", ">"));
        assert_eq!(mark([false, true, false]), "ab <cd> ef.");
        assert_eq!(mark([true, true, false]), "<ab cd> ef.");
        assert_eq!(mark([false, false, true]), "ab cd <ef>.");
        assert_eq!(mark([false, false, false]), "ab cd ef.");
    }

    #[test]
    fn pictures_are_told_by_their_rows() {
        let (text, spans) = ("ab\u{FFFC}cd".to_owned(), vec![0..2, 2..5, 2..5, 2..5, 2..5, 5..7]);
        let picture = Picture { first: 2, lines: 1, columns: 2, hash: [0; 32], pixels: Pixels::default() };
        let piece = Piece { ids: vec![1, 2, 3, 3, 4, 5], text, spans, pictures: vec![picture], ..Piece::default() };
        let mark = |chosen: [bool; 6]| marked(&piece, &chosen, 2, ("<", ">"));
        assert_eq!(mark([true, true, false, true, true, true]), "<ab>[picture 3: 1 of 2 places]<cd>");
        assert_eq!(mark([false; 6]), "ab[picture 3: 0 of 2 places]cd");
    }

    #[test]
    fn without_text_ids_are_shown() {
        let piece = Piece { ids: vec![7, 8], ..Piece::default() };
        assert_eq!(marked(&piece, &[false, true], 0, ("<", ">")), "7 <8>");
    }
}
