//! Texts of words from a seed, of about as many tokens as are asked for.

use std::path::Path;

use crate::draws::Draws;
use crate::error::{Error, Result};

/// Common words, each a token in most tokenizers.
const COMMON: &str = "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one \
    you were all her she there would their we him been has when who will no more if out so up said what its about than into them can only \
    other time new some could these two may first then do any like my now over such our man me even most made after also did many off \
    before must well back through years much where your way down should because long each just state those people too how little good world \
    make very year still see own work men day get here old life both between being under three never know same last another while us";

/// The kinds of draws that texts are.
const DOCUMENT: u32 = 2;
const QUESTION: u32 = 3;

/// A vocabulary, and how many of its words make the texts.
#[derive(Debug, Clone)]
pub struct Words {
    words: Vec<String>,
    seed: u64,
}

impl Words {
    /// The words of a file, separated by white space; without a file, common words.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or has fewer than two words.
    pub fn new(file: Option<&Path>, seed: u64) -> Result<Self> {
        let text = match file {
            Some(path) => std::fs::read_to_string(path).map_err(Error::read(path))?,
            None => COMMON.to_owned(),
        };
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        if words.len() < 2 {
            let name = file.unwrap_or(Path::new("")).display();
            return Err(Error::usage(format!("--words {name}: two words at least, or all documents are alike")));
        }
        Ok(Self { words, seed })
    }

    /// The text of a document by its number.
    pub fn document(&self, number: u64, words: usize) -> String {
        self.text(DOCUMENT, number, words)
    }

    /// The text of a question by its number.
    pub fn question(&self, number: u64, words: usize) -> String {
        self.text(QUESTION, number, words)
    }

    fn text(&self, kind: u32, number: u64, words: usize) -> String {
        let mut draws = Draws::new(self.seed, kind, number);
        let drawn: Vec<&str> = (0..words).map(|_| self.words[draws.below(self.words.len())].as_str()).collect();
        drawn.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_their_numbers() {
        let words = Words::new(None, 7).unwrap();
        assert_eq!(words.document(3, 40), words.document(3, 40));
        assert_ne!(words.document(3, 40), words.document(4, 40));
        assert_ne!(words.document(3, 40), words.question(3, 40));
        assert_ne!(words.document(3, 40), Words::new(None, 8).unwrap().document(3, 40));
        assert_eq!(words.document(3, 40).split(' ').count(), 40);
    }

    #[test]
    fn a_file_gives_the_vocabulary() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("words");
        std::fs::write(&path, "one\ntwo  three").unwrap();
        let text = Words::new(Some(&path), 0).unwrap().document(0, 200);
        assert!(["one", "two", "three"].iter().all(|word| text.split(' ').any(|drawn| drawn == *word)), "{text}");
        std::fs::write(&path, "one").unwrap();
        assert!(Words::new(Some(&path), 0).unwrap_err().to_string().contains("two words"));
        let absent = Words::new(Some(&folder.path().join("absent")), 0).unwrap_err();
        assert_eq!(absent.exit_code(), 64);
    }
}
