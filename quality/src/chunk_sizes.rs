//! A suite several times: once for each size of its chunks, so that scores can be reported by that
//! size.

use tributary_coordinator::Tokenizer;

use crate::error::Result;
use crate::suite::{Cell, Measure, Sample, Suite};

/// A suite for each size, which differ in nothing else.
pub struct ChunkSizes(pub Vec<(usize, Box<dyn Suite>)>);

impl ChunkSizes {
    /// The suite of a cell, and the cell in that suite.
    fn of(&self, cell: &Cell) -> (&dyn Suite, Cell) {
        let own = self.0.iter().find(|(size, _)| cell.chunk_tokens == Some(*size)).expect("cells are made of sizes");
        (own.1.as_ref(), Cell { chunk_tokens: None, ..cell.clone() })
    }

    /// One of them, where they do not differ.
    fn any(&self) -> &dyn Suite {
        self.0.first().expect("there are several").1.as_ref()
    }
}

impl Suite for ChunkSizes {
    fn made_of(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for line in self.0.iter().flat_map(|(_, suite)| suite.made_of()) {
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines
    }

    fn cells(&self) -> Vec<Cell> {
        let of = |(size, suite): &(usize, Box<dyn Suite>)| {
            let size = Some(*size);
            suite.cells().into_iter().map(move |cell| Cell { chunk_tokens: size, ..cell })
        };
        self.0.iter().flat_map(of).collect()
    }

    fn most_samples(&self, cell: &Cell) -> Option<usize> {
        let (suite, cell) = self.of(cell);
        suite.most_samples(&cell)
    }

    fn cuts_contexts(&self) -> bool {
        self.any().cuts_contexts()
    }

    fn refers(&self, task: &str) -> Option<bool> {
        self.any().refers(task)
    }

    fn check(&self, model: &str, tokenizer: &Tokenizer) -> Result<()> {
        self.any().check(model, tokenizer)
    }

    fn sample(&self, cell: &Cell, number: usize, measure: &Measure<'_>) -> Result<Sample> {
        let (suite, cell) = self.of(cell);
        suite.sample(&cell, number, measure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::design::Asked;
    use crate::kit::{asked, count_words, data};
    use crate::suites::open;

    #[test]
    fn sizes_cut_the_same_texts() {
        let folder = data();
        let asked = Asked {
            lengths: vec![600],
            depths: vec![50],
            chunk_tokens: vec![200, 100, 200],
            ..asked("niah", folder.path())
        };
        let (design, suite) = open(&asked).unwrap();
        assert_eq!((design.chunk_sizes, design.chunk_tokens), (vec![100, 200], None));
        let measure = Measure::new(&count_words);
        let names: Vec<String> = suite.cells().iter().map(Cell::to_string).collect();
        assert_eq!(names, ["niah at 600 deep 50 % in chunks of 100", "niah at 600 deep 50 % in chunks of 200"]);
        let [small, large] = [0, 1].map(|index| suite.sample(&suite.cells()[index], 3, &measure).unwrap());
        assert_eq!((small.chunks.concat(), &small.query), (large.chunks.concat(), &large.query));
        let longest = |sample: &Sample| sample.chunks.iter().map(|chunk| count_words(chunk).unwrap()).max();
        assert!(longest(&small) <= Some(100) && longest(&large) > Some(100) && longest(&large) <= Some(200));
        let one = open(&Asked { chunk_tokens: vec![100, 100], ..asked }).unwrap();
        assert_eq!((one.0.chunk_sizes.len(), one.0.chunk_tokens, one.1.cells()[0].chunk_tokens), (0, Some(100), None));
    }

    #[test]
    fn documents_of_the_demo_language_have_sizes_too() {
        let asked = Asked {
            tasks: vec!["vt3".to_owned()],
            document_tokens: vec![32, 64],
            ..asked("hops", std::path::Path::new(""))
        };
        let (design, suite) = open(&asked).unwrap();
        assert_eq!((design.document_tokens, design.documents, design.chunk_sizes), (None, Some(8), vec![32, 64]));
        assert_eq!(suite.made_of().len(), 2);
        assert_eq!(suite.refers("vt3"), Some(true));
        let said = open(&Asked { document_tokens: vec![32, 9], ..asked }).err().unwrap().to_string();
        assert!(said.starts_with("--document-tokens 9"), "{said}");
    }
}
