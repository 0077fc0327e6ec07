//! The ends of sentences in a document by the Unicode rules (UAX #29, section 5): a line ends a
//! sentence too, and "3.5" is no end. A mark between blanks, as tokenized corpora have it, is one
//! whatever follows.

use unicode_segmentation::UnicodeSegmentation;

use crate::tokenize::Piece;

/// The bytes before which sentences of a text end, rising; the last is its length. No sentence is
/// blank, unless the text is.
fn bounds(text: &str) -> Vec<usize> {
    let of_rules = text.split_sentence_bound_indices().map(|(start, sentence)| start + sentence.len());
    let alone = [" . ", " ? ", " ! "].into_iter().flat_map(|mark| text.match_indices(mark));
    let mut all: Vec<usize> = of_rules.chain(alone.map(|(at, mark)| at + mark.len())).collect();
    all.sort_unstable();
    let (mut bounds, mut from) = (Vec::new(), 0);
    for to in all {
        let is_blank = text[from..to].trim().is_empty();
        match bounds.last_mut() {
            Some(last) if is_blank => *last = to,
            None if is_blank && to < text.len() => {} // the next sentence has it
            _ => bounds.push(to),
        }
        from = to;
    }
    bounds
}

/// The tokens of a document with which a sentence ends, by their places, ascending. None of a
/// document of token ids.
///
/// A token is of the sentence that its last byte is in. The blanks behind a sentence belong to it
/// by the rules, and to the next word by most tokenizers, so a token with one begins the next
/// sentence. Empty lines belong to the sentence before them, and so does a token that ends in one.
pub fn ends(piece: &Piece) -> Vec<u32> {
    let spans = if piece.spans.len() == piece.ids.len() { &piece.spans[..] } else { &[] };
    let (mut ends, mut at) = (Vec::new(), 0);
    for bound in bounds(&piece.text) {
        let count = spans[at..].iter().take_while(|span| span.end <= bound).count();
        at += count;
        if count > 0 {
            ends.push(at as u32 - 1);
        }
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token for each word with the blank before it, and for each mark behind one.
    fn piece(text: &str) -> Piece {
        let mut spans = Vec::new();
        let mut start = 0;
        for (place, letter) in text.char_indices() {
            if place > start
                && (letter == ' ' || ".?!\n\u{3002}".contains(letter) || text[start..].starts_with(['\n', '\u{3002}']))
            {
                spans.push(start..place);
                start = place;
            }
        }
        spans.push(start..text.len());
        Piece { ids: vec![7; spans.len()], text: text.to_owned(), spans, ..Piece::default() }
    }

    fn told(text: &str) -> Vec<String> {
        let piece = piece(text);
        let (mut from, mut sentences) = (0, Vec::new());
        for end in ends(&piece) {
            let spans = &piece.spans[from..=end as usize];
            sentences.push(text[spans[0].start..spans[spans.len() - 1].end].to_owned());
            from = end as usize + 1;
        }
        assert_eq!(from, piece.ids.len(), "the last token ends a sentence");
        sentences
    }

    #[test]
    fn sentences_end_with_marks_and_lines_but_not_inside_of_numbers() {
        assert_eq!(told("It took 3.5 h. Who won? A car!"), ["It took 3.5 h.", " Who won?", " A car!"]);
        assert_eq!(told("Title\nOne line\n\nx"), ["Title\n", "One line\n\n", "x"]);
        assert_eq!(told("\u{96e8}\u{3002}\u{96ea}\u{3002}"), ["\u{96e8}\u{3002}", "\u{96ea}\u{3002}"]);
        assert_eq!(told("\n\nFirst. Second."), ["\n\nFirst.", " Second."]);
        assert_eq!(told("vince is in austin . it rains"), ["vince is in austin .", " it rains"]);
        assert_eq!(told("no end"), ["no end"]);
        assert_eq!(told("\n"), ["\n"]);
    }

    /// Many tokenizers have tokens of a full stop and the lines after it.
    #[test]
    fn a_token_of_a_mark_and_empty_lines_ends_its_sentence() {
        let text = "A b.\n\nC d.";
        let spans = vec![0..1, 1..3, 3..6, 6..7, 7..9, 9..10];
        let piece = Piece { ids: vec![7; 6], text: text.to_owned(), spans, ..Piece::default() };
        assert_eq!(ends(&piece), [2, 5]);
    }
}
