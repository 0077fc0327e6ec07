//! All suites, and the options of each.

use crate::chunk_sizes::ChunkSizes;
use crate::design::{Asked, Design, numbers};
use crate::error::{Error, Result};
use crate::hops::{self, Shape};
use crate::suite::Suite;
use crate::{longbench, niah, own, pairs, ruler};

/// Opens a suite.
type Open = fn(&Asked) -> Result<Box<dyn Suite>>;

/// A suite by its name.
struct Known {
    name: &'static str,
    /// Options that it takes, besides those of every suite.
    takes: &'static [&'static str],
    /// Default shape of its requests, if it has one.
    shape: Option<Shape>,
    open: Open,
}

/// All of them.
const SUITES: [Known; 5] = [
    Known { name: "hops", takes: &["--documents", "--document-tokens"], shape: Some(hops::SHAPE), open: hops::open },
    Known {
        name: "ruler",
        takes: &["--lengths", "--chunk-tokens", "--data", "--essays", "--squad"],
        shape: None,
        open: ruler::open,
    },
    Known {
        name: "niah",
        takes: &["--lengths", "--depths", "--chunk-tokens", "--data", "--essays"],
        shape: None,
        open: niah::open,
    },
    Known { name: "pairs", takes: &[], shape: None, open: pairs::open },
    Known { name: "longbench", takes: &["--lengths", "--chunk-tokens", "--data"], shape: None, open: longbench::open },
];

/// A file of rows.
const OWN: Known = Known { name: "of a file", takes: &["--chunk-tokens"], shape: None, open: own::open };

/// The requested suite, and the design of its evaluation.
///
/// # Errors
/// Returns an error if a suite or task is unknown, with the known ones, if the suite does not take
/// an option, or if a value is out of range.
pub fn open(asked: &Asked) -> Result<(Design, Box<dyn Suite>)> {
    let named = SUITES.iter().find(|suite| suite.name == asked.suite);
    let Some(known) = named.or(own::is_file(&asked.suite).then_some(&OWN)) else {
        let names = SUITES.map(|suite| suite.name).join(", ");
        return Err(Error::usage(format!("--suite {}: unknown; known are {names}, or FILE.jsonl", asked.suite)));
    };
    let given = [
        ("--documents", asked.documents.is_some()),
        ("--document-tokens", !asked.document_tokens.is_empty()),
        ("--lengths", !asked.lengths.is_empty()),
        ("--depths", !asked.depths.is_empty()),
        ("--chunk-tokens", !asked.chunk_tokens.is_empty()),
        ("--essays", asked.essays.is_some()),
        ("--squad", asked.squad.is_some()),
    ];
    if let Some((option, _)) = given.iter().find(|(option, is_given)| *is_given && !known.takes.contains(option)) {
        let takes = if known.takes.is_empty() { "none of these".to_owned() } else { known.takes.join(", ") };
        return Err(Error::usage(format!("{option}: the suite {} does not take it; it takes {takes}", known.name)));
    }
    asked.check()?;
    let suite = sized(known, asked)?;
    Ok((design(asked, known.shape, suite.as_ref()), suite))
}

/// A suite, or one for each size of chunks where there are several.
fn sized(known: &Known, asked: &Asked) -> Result<Box<dyn Suite>> {
    let chunks = numbers(&asked.chunk_tokens, &[]);
    let documents = numbers(&asked.document_tokens, &[]);
    let of = |size: usize| {
        let [chunk_tokens, document_tokens] =
            [&chunks, &documents].map(|sizes| if sizes.len() > 1 { vec![size] } else { sizes.clone() });
        Ok((size, (known.open)(&Asked { chunk_tokens, document_tokens, ..asked.clone() })?))
    };
    match [&chunks, &documents].into_iter().find(|sizes| sizes.len() > 1) {
        Some(sizes) => Ok(Box::new(ChunkSizes(sizes.iter().map(|&size| of(size)).collect::<Result<_>>()?))),
        None => (known.open)(asked),
    }
}

/// The number that was asked for, if it is one and no other.
fn only(asked: &[usize]) -> Option<usize> {
    asked.first().copied().filter(|first| asked.iter().all(|number| number == first))
}

fn design(asked: &Asked, shape: Option<Shape>, suite: &dyn Suite) -> Design {
    let cells = suite.cells();
    let mut tasks: Vec<String> = Vec::new();
    let (mut lengths, mut depths, mut chunk_sizes) = (Vec::new(), Vec::new(), Vec::new());
    for cell in cells {
        lengths.extend(cell.length.filter(|length| !lengths.contains(length)));
        depths.extend(cell.depth.filter(|depth| !depths.contains(depth)));
        chunk_sizes.extend(cell.chunk_tokens.filter(|size| !chunk_sizes.contains(size)));
        if !tasks.contains(&cell.task) {
            tasks.push(cell.task);
        }
    }
    Design {
        suite: asked.suite.clone(),
        made_of: suite.made_of(),
        tasks,
        samples: asked.samples,
        seed: asked.seed,
        documents: shape.map(|shape| asked.documents.unwrap_or(shape.documents)),
        document_tokens: shape.and_then(|shape| match asked.document_tokens.is_empty() {
            true => Some(shape.document_tokens),
            false => only(&asked.document_tokens),
        }),
        lengths,
        depths,
        chunk_tokens: only(&asked.chunk_tokens),
        chunk_sizes,
        world: asked.world,
        threads: asked.threads,
        reproduces: asked.reproduces.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(suite: &str, tasks: &[&str]) -> Asked {
        Asked {
            suite: suite.to_owned(),
            tasks: tasks.iter().map(|task| (*task).to_owned()).collect(),
            samples: 2,
            world: 1,
            threads: 1,
            ..Asked::default()
        }
    }

    #[test]
    fn tasks_are_those_asked_for_or_all() {
        let tasks = |asked: &Asked| open(asked).unwrap().0.tasks;
        assert_eq!(tasks(&asked("hops", &[])).len(), 17);
        assert_eq!(tasks(&asked("hops", &["vt3", "single", "vt3"])), ["vt3", "single"]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let said = |asked: Asked| open(&asked).err().expect("it is refused").to_string();
        assert!(said(asked("bench", &[])).starts_with("--suite bench: unknown; known are hops"));
        assert!(said(asked("hops", &["vt9"])).starts_with("--tasks vt9: unknown; hops has single, multikey"));
        let hops = || asked("hops", &["vt4"]);
        assert_eq!(said(Asked { documents: Some(3), ..hops() }), "--documents 3: must be at least 4");
        assert!(said(Asked { samples: 0, ..hops() }).starts_with("--samples 0"));
        assert!(said(Asked { document_tokens: vec![9], ..hops() }).starts_with("--document-tokens 9"));
        assert!(said(Asked { samples: 200_000_000, ..hops() }).ends_with("at most 100000000"));
        let lengths = said(Asked { lengths: vec![4096], ..hops() });
        assert_eq!(lengths, "--lengths: the suite hops does not take it; it takes --documents, --document-tokens");
    }
}
