//! Variables that are assigned to each other, among noise. An example with its answer precedes the
//! question.

use std::collections::BTreeSet;

use super::draft::{Draft, NOISE, lines};
use crate::cut::Run;
use crate::error::Result;
use crate::fit::{Fit, largest};
use crate::random::Random;
use crate::suite::Measure;

/// Assignments after the first.
const HOPS: usize = 4;

/// Tokens of the example at most, and the share of a request's length at most: RULER knows no
/// lengths that are so short.
const EXAMPLE_TOKENS: usize = 500;
const EXAMPLE_SHARE: usize = 3;

/// A chain at random places among lines of noise: its lines, its value, and its variables.
struct Chain {
    lines: Vec<(String, bool)>,
    value: String,
    variables: Vec<String>,
}

impl Chain {
    /// Letters are those of a variable's name.
    fn draw(letters: usize, noises: usize, random: &mut Random) -> Self {
        let mut taken = BTreeSet::new();
        while taken.len() <= HOPS {
            let name: String = (0..letters).map(|_| char::from(b'A' + random.below(26) as u8)).collect();
            taken.insert(name);
        }
        let mut variables: Vec<String> = taken.into_iter().collect();
        random.shuffle(&mut variables);
        let value = (10_000 + random.below(89_999)).to_string();
        let mut said = vec![format!("VAR {} = {value}", variables[0])];
        said.extend(variables.windows(2).map(|pair| format!("VAR {} = VAR {} ", pair[1], pair[0])));
        let mut places = random.some_of(&(0..noises).collect::<Vec<_>>(), said.len());
        places.sort_unstable();
        let mut lines = vec![(NOISE.to_owned(), false); noises];
        for (index, (place, line)) in places.into_iter().zip(said).enumerate() {
            lines.insert(place + index, (line, true));
        }
        Self { lines, value, variables }
    }

    fn query(&self) -> String {
        format!("\nQuestion: Find all variables that are assigned the value {} in the text above.", self.value)
    }

    fn begun(&self) -> String {
        format!(
            " Answer: According to the chain(s) of variable assignment in the text above, {} variables are assigned the value {}, they are: ",
            self.variables.len(),
            self.value
        )
    }
}

const LEAD: &str = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n";

/// The least lines of noise: one for each assignment.
pub const LEAST: usize = HOPS + 1;

/// A chain among `size` lines of noise, for a request of `length` tokens.
///
/// # Errors
/// Returns an error if the tokenizer fails.
pub fn draft(size: usize, length: usize, measure: &Measure<'_>, random: &mut Random) -> Result<Draft> {
    let chain = Chain::draw(5, size, random);
    // Of the same draws at every size, so that the example is the same.
    let seed = random.below(usize::MAX);
    let example = |noises: usize| {
        let example = Chain::draw(3, noises, &mut Random::of(&format!("example {seed}")));
        let context: String = lines(example.lines.clone()).into_iter().map(|run| run.text).collect();
        let answer = example.variables.join(" ");
        format!("{LEAD}{context}{}{} {answer}\n\n", example.query(), example.begun())
    };
    let limit = EXAMPLE_TOKENS.min(length / EXAMPLE_SHARE);
    let noises = match largest((LEAST, EXAMPLE_TOKENS), limit, |noises| measure.tokens(&example(noises)))? {
        Fit::Largest(noises) => noises,
        Fit::TooShort(_) => LEAST,
    };
    let (query, begun) = (chain.query(), chain.begun());
    let runs: Vec<Run> = lines(chain.lines);
    Ok(Draft { lead: format!("{}{LEAD}", example(noises)), runs, query, begun, references: chain.variables })
}
