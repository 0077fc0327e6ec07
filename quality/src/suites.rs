//! All suites, and the options of each.

use crate::chunk_sizes::ChunkSizes;
use crate::design::{Asked, Design, numbers};
use crate::error::{Error, Result};
use crate::hops::{self, Shape};
use crate::joined::Joined;
use crate::split::Part;
use crate::suite::Suite;
use crate::{longbench, niah, own, pages, pairs, ruler};

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
    /// Whether its texts come from sources that can be split.
    has_sources: bool,
}

impl Known {
    /// The task of this suite that a name means among several suites, if it means one.
    fn own_task(&self, task: &str) -> Option<String> {
        task.strip_prefix(self.name)?.strip_prefix('/').map(str::to_owned)
    }
}

/// All of them.
const SUITES: [Known; 6] = [
    Known {
        name: "hops",
        takes: &["--documents", "--document-tokens"],
        shape: Some(hops::SHAPE),
        open: hops::open,
        has_sources: false,
    },
    Known {
        name: "pages",
        takes: &["--documents", "--document-tokens"],
        shape: Some(pages::SHAPE),
        open: pages::open,
        has_sources: false,
    },
    Known {
        name: "ruler",
        takes: &["--lengths", "--chunk-tokens", "--data", "--essays", "--squad"],
        shape: None,
        open: ruler::open,
        has_sources: true,
    },
    Known {
        name: "niah",
        takes: &["--lengths", "--depths", "--chunk-tokens", "--data", "--essays"],
        shape: None,
        open: niah::open,
        has_sources: true,
    },
    Known {
        name: "pairs",
        takes: &["--documents", "--document-tokens"],
        shape: Some(pairs::SHAPE),
        open: pairs::open,
        has_sources: true,
    },
    Known {
        name: "longbench",
        takes: &["--lengths", "--chunk-tokens", "--data"],
        shape: None,
        open: longbench::open,
        has_sources: true,
    },
];

/// A file of rows.
const OWN: Known =
    Known { name: "of a file", takes: &["--chunk-tokens"], shape: None, open: own::open, has_sources: false };

/// The requested suite, or several as one (`pairs,ruler`), and the design of its evaluation. A task
/// of several suites has its suite's name before it: `ruler/vt`.
///
/// # Errors
/// Returns an error if a suite or task is unknown, with the known ones, if no suite takes an
/// option, if a suite has no sources to split, or if a value is out of range.
pub fn open(asked: &Asked) -> Result<(Design, Box<dyn Suite>)> {
    let names: Vec<&str> = match own::is_file(&asked.suite) {
        true => vec![asked.suite.as_str()],
        false => asked.suite.split(',').collect(),
    };
    let known = names.iter().map(|name| known(name)).collect::<Result<Vec<_>>>()?;
    let given = given(asked);
    let is_taken = |option: &str| known.iter().any(|known| known.takes.contains(&option));
    if let Some(option) = given.iter().find(|option| !is_taken(option)) {
        let takes = known.iter().flat_map(|known| known.takes).copied().collect::<Vec<_>>().join(", ");
        let takes = if takes.is_empty() { "none of these".to_owned() } else { takes };
        let name = if names.len() > 1 { names.join(",") } else { known[0].name.to_owned() };
        return Err(Error::usage(format!("{option}: the suite {name} does not take it; it takes {takes}")));
    }
    if let Some(known) = known.iter().find(|known| asked.split.part != Part::All && !known.has_sources) {
        return Err(Error::usage(format!("--split: the suite {} has no sources to split", known.name)));
    }
    asked.check()?;
    let shape = known.iter().find_map(|known| known.shape);
    // Requests of a part are drawn by a seed of its own.
    let own = Asked { seed: asked.split.seed(asked.seed), ..asked.clone() };
    let suite: Box<dyn Suite> = match known.as_slice() {
        [known] => sized(known, &own)?,
        several => joined(several, &own)?,
    };
    Ok((design(asked, shape, suite.as_ref()), suite))
}

/// A suite by its name.
fn known(name: &str) -> Result<&'static Known> {
    let named = SUITES.iter().find(|suite| suite.name == name);
    named.or(own::is_file(name).then_some(&OWN)).ok_or_else(|| {
        let names = SUITES.map(|suite| suite.name).join(", ");
        Error::usage(format!("--suite {name}: unknown; known are {names}, or FILE.jsonl"))
    })
}

/// The options of suites that were given.
fn given(asked: &Asked) -> Vec<&'static str> {
    let all = [
        ("--documents", asked.documents.is_some()),
        ("--document-tokens", !asked.document_tokens.is_empty()),
        ("--lengths", !asked.lengths.is_empty()),
        ("--depths", !asked.depths.is_empty()),
        ("--chunk-tokens", !asked.chunk_tokens.is_empty()),
        ("--essays", asked.essays.is_some()),
        ("--squad", asked.squad.is_some()),
    ];
    all.into_iter().filter(|(_, is_given)| *is_given).map(|(option, _)| option).collect()
}

/// Several suites as one: each has its tasks, and the options that it takes.
fn joined(several: &[&'static Known], asked: &Asked) -> Result<Box<dyn Suite>> {
    if [&asked.chunk_tokens, &asked.document_tokens].iter().any(|sizes| numbers(sizes, &[]).len() > 1) {
        return Err(Error::usage("--suite: several suites have one size of chunks and of documents"));
    }
    if let Some(task) = asked.tasks.iter().find(|task| several.iter().all(|known| known.own_task(task).is_none())) {
        let names: Vec<&str> = several.iter().map(|known| known.name).collect();
        return Err(Error::usage(format!(
            "--tasks {task}: of several suites it is SUITE/TASK, of {}",
            names.join(", ")
        )));
    }
    let of = |known: &&'static Known| -> Result<Option<(String, Box<dyn Suite>)>> {
        let tasks: Vec<String> = asked.tasks.iter().filter_map(|task| known.own_task(task)).collect();
        if tasks.is_empty() && !asked.tasks.is_empty() {
            return Ok(None);
        }
        let takes = |option: &str| known.takes.contains(&option);
        let numbers = |option: &str, given: &Vec<usize>| if takes(option) { given.clone() } else { Vec::new() };
        let own = Asked {
            suite: known.name.to_owned(),
            tasks,
            documents: asked.documents.filter(|_| takes("--documents")),
            document_tokens: numbers("--document-tokens", &asked.document_tokens),
            lengths: numbers("--lengths", &asked.lengths),
            depths: numbers("--depths", &asked.depths),
            chunk_tokens: numbers("--chunk-tokens", &asked.chunk_tokens),
            ..asked.clone()
        };
        Ok(Some((known.name.to_owned(), (known.open)(&own)?)))
    };
    let suites = several.iter().map(of).collect::<Result<Vec<_>>>()?;
    Ok(Box::new(Joined(suites.into_iter().flatten().collect())))
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
        split: asked.split.part,
        split_salt: (asked.split.part != Part::All).then(|| asked.split.salt.clone()),
        warm: asked.warm,
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
    fn several_suites_are_one() {
        let folder = crate::kit::data();
        let asked = |tasks: &[&str]| Asked {
            lengths: vec![1200],
            documents: Some(8),
            data: Some(folder.path().to_owned()),
            ..asked("pairs,longbench,ruler", tasks)
        };
        let (design, suite) = open(&asked(&["ruler/vt", "pairs/refer", "ruler/qa_2"])).unwrap();
        assert_eq!(design.tasks, ["pairs/refer", "ruler/vt", "ruler/qa_2"]);
        assert_eq!(
            (design.suite.as_str(), design.documents, design.lengths),
            ("pairs,longbench,ruler", Some(8), vec![1200])
        );
        let cells: Vec<String> = suite.cells().iter().map(ToString::to_string).collect();
        assert_eq!(cells, ["pairs/refer", "ruler/vt at 1200", "ruler/qa_2 at 1200"]);
        assert_eq!((suite.refers("pairs/refer"), suite.refers("ruler/vt")), (Some(true), None));
        let measure = crate::suite::Measure::new(&crate::kit::count_words);
        let sample = suite.sample(&suite.cells()[2], 1, &measure).unwrap();
        assert!(sample.chunks.iter().all(|chunk| chunk.ends_with("\n\n")), "{:?}", sample.chunks);
        let said = |tasks: &[&str]| open(&asked(tasks)).err().expect("refused").to_string();
        assert!(said(&["vt"]).starts_with("--tasks vt: of several suites it is SUITE/TASK"), "{}", said(&["vt"]));
        assert!(said(&["ruler/x"]).starts_with("--tasks x: unknown; ruler has"), "{}", said(&["ruler/x"]));
        let none = Asked { depths: vec![1], ..asked(&["ruler/vt"]) };
        assert!(
            open(&none).err().expect("refused").to_string().starts_with("--depths: the suite pairs,longbench,ruler")
        );
    }

    #[test]
    fn a_suite_without_sources_is_not_split() {
        let split = crate::split::Split { part: Part::Report, salt: "s".to_owned() };
        let said = |suite: &str, salt: &str| {
            let split = crate::split::Split { salt: salt.to_owned(), ..split.clone() };
            open(&Asked { split, ..asked(suite, &[]) }).err().map(|error| error.to_string())
        };
        assert_eq!(said("hops", "s").as_deref(), Some("--split: the suite hops has no sources to split"));
        assert_eq!(said("pairs", "").as_deref(), Some("--split report: it needs --split-salt TEXT"));
        assert_eq!(said("pairs", "s"), None);
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
