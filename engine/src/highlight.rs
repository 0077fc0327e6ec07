//! The context with the recomputed tokens highlighted.

use std::collections::HashSet;

use tributary_coordinator::Piece;
use tributary_protocol::Picture;

use crate::answered::Answered;

/// The context in the order of the layout, chunk by chunk, with its recomputed tokens between the
/// marks.
pub fn highlighted(answered: &Answered, marks: (&str, &str)) -> String {
    let plan = &answered.planned.plan;
    let selected: HashSet<u32> = answered.answer.outcome.selected.iter().copied().collect();
    let starts = plan.chunk_starts();
    let begun = |piece: &Piece| piece.pictures.iter().filter(|picture| picture.begins()).count();
    let counts: Vec<usize> = answered.prepared.chunks.iter().map(begun).collect();
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
/// picture, or a tile of it, is told by its number among the request's, of which `before`
/// begin in earlier chunks, and by its numbers of chosen places and of places.
fn marked(piece: &Piece, chosen: &[bool], before: usize, (open, close): (&str, &str)) -> String {
    let mut text = String::new();
    let (mut at, mut inside) = (0, false);
    let numbered = piece.pictures.iter().scan(before, |number, picture| {
        *number += usize::from(picture.begins());
        Some((*number, picture))
    });
    let (mut places, mut pictures) = (chosen.iter().enumerate(), numbered.peekable());
    while let Some((index, &is_chosen)) = places.next() {
        // Its rows are between two marks, of which a tile may lack one or both.
        let marked = |(_, picture): &(usize, &Picture)| picture.first as usize == index + usize::from(picture.begins());
        if let Some((number, picture)) = pictures.next_if(marked) {
            let count = chosen[picture.range()].iter().filter(|&&chosen| chosen).count();
            text += if std::mem::take(&mut inside) { close } else { "" };
            text += piece.text.get(at..piece.spans[index].start).unwrap_or("");
            let tile = picture.tile.map_or(String::new(), |tile| format!(", tile {}", tile.number + 1));
            text += &format!("[picture {number}{tile}: {count} of {} places]", picture.rows());
            at = piece.spans[index].end;
            let tokens = usize::from(picture.begins()) + picture.rows() + usize::from(picture.ends());
            places.by_ref().take(tokens - 1).for_each(drop);
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
    use std::ops::Range;

    use tributary_protocol::Pixels;
    use tributary_protocol::tile::{Tile, TileOrder};

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
        let picture = Picture { first: 2, lines: 1, columns: 2, hash: [0; 32], tile: None, pixels: Pixels::default() };
        let piece = Piece { ids: vec![1, 2, 3, 3, 4, 5], text, spans, pictures: vec![picture], ..Piece::default() };
        let mark = |chosen: [bool; 6]| marked(&piece, &chosen, 2, ("<", ">"));
        assert_eq!(mark([true, true, false, true, true, true]), "<ab>[picture 3: 1 of 2 places]<cd>");
        assert_eq!(mark([false; 6]), "ab[picture 3: 0 of 2 places]cd");
    }

    #[test]
    fn tiles_are_told_by_their_rows() {
        // A picture of one line of three rows, in three tiles.
        let tile = |number, first| Picture {
            first,
            lines: 1,
            columns: 3,
            hash: [0; 32],
            tile: Some(Tile { grid: 4, number, before: 2, order: TileOrder::Raster }),
            pixels: Pixels::default(),
        };
        let piece = |text: &str, spans: &[Range<usize>], picture| Piece {
            ids: vec![3; spans.len()],
            text: text.to_owned(),
            spans: spans.to_vec(),
            pictures: vec![picture],
            ..Piece::default()
        };
        let first = piece("ab\u{FFFC}", &[0..2, 2..5, 2..5], tile(0, 2));
        let second = piece("\u{FFFC}", std::slice::from_ref(&(0..3)), tile(1, 0));
        let last = piece("\u{FFFC}cd", &[0..3, 0..3, 3..5], tile(2, 0));
        let mark = |piece: &Piece, before: usize, chosen: &[bool]| marked(piece, chosen, before, ("<", ">"));
        assert_eq!(mark(&first, 4, &[true, false, true]), "<ab>[picture 5, tile 1: 1 of 1 places]");
        assert_eq!(mark(&second, 5, &[false]), "[picture 5, tile 2: 0 of 1 places]");
        assert_eq!(mark(&last, 5, &[true, false, true]), "[picture 5, tile 3: 1 of 1 places]<cd>");
    }

    #[test]
    fn without_text_ids_are_shown() {
        let piece = Piece { ids: vec![7, 8], ..Piece::default() };
        assert_eq!(marked(&piece, &[false, true], 0, ("<", ">")), "7 <8>");
    }
}
