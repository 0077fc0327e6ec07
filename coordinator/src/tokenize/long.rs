//! Long texts, cut at places that no token can cross. A tokenizer at work takes hundreds of bytes
//! of memory for each byte of a text, and its result takes twenty a token.

use tokenizers::Tokenizer;

/// Minimum bytes of a piece.
const PIECE: usize = 16 << 10;

/// The longest run of a text without a place to cut, in bytes.
const LONGEST_RUN: usize = 1 << 20;

/// Characters before which a text may be cut, if a letter or a digit is on both sides of them.
const PLACES: [char; 9] = [' ', '\n', '，', '。', '、', '；', '：', '？', '！'];

/// Representations of a space and of a line's end in vocabularies.
const WRITTEN: [(char, &str); 3] = [(' ', "\u{2581}\u{120} "), ('\n', "\u{10a}\n"), ('\r', "\u{10d}\r")];

/// Texts whose tokens must be the same for all cuts.
const PROBES: [&str; 5] = [
    "The quick brown fox jumps over 13 lazy dogs, isn't it?\nYes: 42 of 1024 times a day",
    "fn main() {\n    let x = vec![1, 2, 3];\n    println!(\"{}\", x.len());\n}",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Ça va bien à Noël",
    "春眠不觉晓，处处闻啼鸟。夜来风雨声，花落知多少？一二三、四五六；七八九！十",
    "a a a a b b 1 2 3 4 aa bb  cc   dd\tee",
];

/// Places at which a tokenizer's texts may be cut.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cuts {
    /// Those of [`PLACES`] that no token of its vocabulary has after a letter or a digit.
    places: Vec<char>,
}

impl Cuts {
    /// The places of a tokenizer: none, if the probes show that its tokens depend on text before a
    /// cut. `encode` gives the tokens of a text inside a longer one, or at its beginning.
    pub fn of(tokenizer: &Tokenizer, encode: impl Fn(&str, bool) -> Option<Vec<u32>>) -> Self {
        let mut places = PLACES.to_vec();
        let vocabulary = tokenizer.get_vocab(true);
        for token in vocabulary.keys() {
            let reaches = |place: &char| crosses(token, *place);
            places.retain(|place| !reaches(place));
        }
        let this = Self { places };
        let is_same = |text: &&str| {
            let pieces = this.cut(text, 1);
            let own: Option<Vec<Vec<u32>>> = pieces.iter().map(|&(start, piece)| encode(piece, start == 0)).collect();
            own.map(|ids| ids.concat()) == encode(text, true)
        };
        if PROBES.iter().all(is_same) { this } else { Self::default() }
    }

    /// A text in pieces that are encoded one by one, each with its beginning.
    ///
    /// # Errors
    /// Returns the bytes of a run that is too long and cannot be cut.
    pub fn pieces<'a>(&self, text: &'a str) -> Result<Vec<(usize, &'a str)>, usize> {
        if text.len() <= PIECE {
            return Ok(vec![(0, text)]);
        }
        let pieces = self.cut(text, PIECE);
        match pieces.iter().map(|(_, piece)| piece.len()).max() {
            Some(longest) if longest > LONGEST_RUN => Err(longest),
            _ => Ok(pieces),
        }
    }

    /// Pieces of at least `least` bytes, except for the last.
    fn cut<'a>(&self, text: &'a str, least: usize) -> Vec<(usize, &'a str)> {
        let (mut pieces, mut start, mut before) = (Vec::new(), 0, None::<char>);
        let mut letters = text.char_indices().peekable();
        while let Some((at, letter)) = letters.next() {
            let next = letters.peek().map(|&(_, next)| next);
            let is_between = before.is_some_and(char::is_alphanumeric) && next.is_some_and(char::is_alphanumeric);
            if at - start >= least && is_between && self.places.contains(&letter) {
                pieces.push((start, &text[start..at]));
                start = at;
            }
            before = Some(letter);
        }
        pieces.push((start, &text[start..]));
        pieces
    }
}

/// Whether a token has this place after a letter or a digit.
fn crosses(token: &str, place: char) -> bool {
    let written = WRITTEN.iter().find(|(letter, _)| *letter == place).map(|(_, written)| *written);
    let is_place = |letter: char| letter == place || written.is_some_and(|written| written.contains(letter));
    let mut before = None::<char>;
    token.chars().any(|letter| {
        let found = is_place(letter) && before.is_some_and(|before| before.is_alphanumeric() && !is_space(before));
        before = Some(letter);
        found
    })
}

/// Whether a character represents space in vocabularies: some of these are letters by themselves.
fn is_space(letter: char) -> bool {
    letter == '\u{109}' || WRITTEN.iter().any(|(_, written)| written.contains(letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_words_and_joins_again() {
        let cuts = Cuts { places: PLACES.to_vec() };
        let pieces = cuts.cut("ab cd, ef  gh\nij，kl", 1);
        let texts: Vec<&str> = pieces.iter().map(|(_, text)| *text).collect();
        assert_eq!(texts, ["ab", " cd, ef  gh", "\nij", "，kl"]);
        assert!(pieces.iter().all(|&(start, piece)| "ab cd, ef  gh\nij，kl"[start..].starts_with(piece)));
        let long = "word ".repeat(100_000);
        let pieces = cuts.pieces(&long).expect("it has places");
        assert!(pieces.len() > 6 && pieces.iter().all(|(_, piece)| piece.len() < PIECE + 10));
        assert_eq!(pieces.iter().map(|(_, piece)| *piece).collect::<String>(), long);
        assert_eq!(cuts.pieces(&"x".repeat(LONGEST_RUN + 1)), Err(LONGEST_RUN + 1));
        assert!(cuts.pieces(&"x".repeat(LONGEST_RUN)).is_ok());
        assert_eq!(Cuts::default().pieces(&"a b".repeat(100)).map(|pieces| pieces.len()), Ok(1));
    }

    #[test]
    fn tokens_that_reach_across_a_place_forbid_it() {
        assert!(
            crosses("of\u{2581}the", ' ')
                && crosses("x\u{120}y", ' ')
                && crosses("a b", ' ')
                && crosses("a\u{10a}", '\n')
        );
        assert!(
            !crosses("\u{10a}\u{120}\u{120}", ' ')
                && !crosses("\u{2581}the", ' ')
                && !crosses("\u{120}\u{120}\u{120}", ' ')
                && !crosses(",\u{2581}", ' ')
        );
        assert!(crosses("好，", '，') && !crosses("，好", '，'));
    }
}
