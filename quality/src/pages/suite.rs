//! The suite as an evaluation takes it.

use tributary_coordinator::{ImageTiles, Tokenizer};
use tributary_pictures::png;

use super::draw::Cells;
use crate::design::{Asked, at_least, chosen};
use crate::error::{Error, Result};
use crate::hops::{self, LEAST_DOCUMENT_TOKENS, Shape, Task};
use crate::random::Random;
use crate::score::Metric;
use crate::suite::{Cell, Measure, Page, Sample, Scoring, Suite};

/// Default shape of requests.
pub const SHAPE: Shape = Shape { documents: 8, document_tokens: 64 };

/// Passages in a row and in a column of a large page, and tokens of each at most.
const SHEET: usize = 4;
const SHEET_TOKENS: usize = 40;

/// The form of a task's passages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Each is a page.
    Pages,
    /// The first, third and so on is a page, the others are text.
    Mixed,
    /// All are on one large page, which is cut into a grid with this number of tiles a side.
    Tiles(u8),
}

/// Every task: a question of `hops` and the form of its passages.
const TASKS: [(&str, &str, Form); 14] = [
    ("single_pages", "single", Form::Pages),
    ("hop2_pages", "hop2", Form::Pages),
    ("vt2_pages", "vt2", Form::Pages),
    ("vt3_pages", "vt3", Form::Pages),
    ("single_mixed", "single", Form::Mixed),
    ("hop2_mixed", "hop2", Form::Mixed),
    ("vt2_mixed", "vt2", Form::Mixed),
    ("vt3_mixed", "vt3", Form::Mixed),
    ("single_tiles2", "single", Form::Tiles(2)),
    ("hop2_tiles2", "hop2", Form::Tiles(2)),
    ("vt2_tiles2", "vt2", Form::Tiles(2)),
    ("single_tiles4", "single", Form::Tiles(4)),
    ("hop2_tiles4", "hop2", Form::Tiles(4)),
    ("vt2_tiles4", "vt2", Form::Tiles(4)),
];

/// Tasks of a shape, from a seed.
struct Pages {
    tasks: Vec<String>,
    shape: Shape,
    seed: u64,
}

/// The suite as it was asked for.
///
/// # Errors
/// Returns an error if a task is unknown, with the known tasks, or if there are too few documents
/// or tokens.
pub fn open(asked: &Asked) -> Result<Box<dyn Suite>> {
    let tasks = chosen("pages", &asked.tasks, &TASKS.map(|(name, ..)| name))?;
    let documents = asked.documents.unwrap_or(SHAPE.documents);
    let document_tokens = asked.document_tokens.first().copied().unwrap_or(SHAPE.document_tokens);
    let least = tasks.iter().map(|name| of_name(name).0.least_documents()).max().unwrap_or(1);
    at_least("--documents", documents, least)?;
    at_least("--document-tokens", document_tokens, LEAST_DOCUMENT_TOKENS)?;
    Ok(Box::new(Pages { tasks, shape: Shape { documents, document_tokens }, seed: asked.seed }))
}

/// The question and the form of a task.
fn of_name(name: &str) -> (&'static Task, Form) {
    let known = TASKS.iter().find(|(known, ..)| *known == name);
    let task = known.and_then(|(_, task, form)| Some((Task::find(task)?, *form)));
    task.expect("tasks have been checked")
}

/// Blocks of a large page for the facts of a task, ascending, each in a tile of its own for every
/// cut into `tiles` x `tiles`. A fact stands above all that refer to it.
fn blocks(facts: usize, tiles: usize, random: &mut Random) -> Vec<usize> {
    let tile = |block: usize| (block / SHEET * tiles / SHEET, block % SHEET * tiles / SHEET);
    let all: Vec<usize> = (0..SHEET * SHEET).collect();
    loop {
        let mut blocks = random.some_of(&all, facts);
        blocks.sort_unstable();
        let apart = |pair: &[usize]| pair[0] / SHEET < pair[1] / SHEET && tile(pair[0]) != tile(pair[1]);
        if blocks.windows(2).all(apart) {
            return blocks;
        }
    }
}

impl Pages {
    /// A task's sample, and its pages.
    fn made(&self, name: &str, number: usize) -> (hops::Sample, Vec<Page>) {
        let (task, form) = of_name(name);
        let Shape { documents, document_tokens } = self.shape;
        let mut random = Random::of(&format!("pages {} {name} {documents}x{document_tokens} {number}", self.seed));
        let shape = match form {
            Form::Tiles(_) => Shape { documents: SHEET * SHEET, document_tokens: SHEET_TOKENS },
            Form::Pages | Form::Mixed => self.shape,
        };
        let facts = task.least_documents();
        let sample = hops::drawn(task, shape, &mut random, &|random| match form {
            Form::Tiles(tiles) => blocks(facts, usize::from(tiles), random),
            Form::Pages | Form::Mixed => hops::places(task, documents, random),
        });
        let tiles = match form {
            Form::Tiles(tiles) => ImageTiles::new(tiles).expect("tasks have numbers of tiles that there are"),
            Form::Pages | Form::Mixed => ImageTiles::default(),
        };
        let mut page = |chunk, cells: Cells<'_>| Page { chunk, tiles, png: png(&cells.drawn(&mut random)) };
        let pages = match form {
            Form::Tiles(_) => vec![page(0, Cells::of_sheet(&sample.documents, SHEET))],
            Form::Pages | Form::Mixed => {
                let texts = sample.documents.iter().enumerate();
                let drawn = texts.step_by(if form == Form::Mixed { 2 } else { 1 });
                drawn.map(|(chunk, text)| page(chunk, Cells::of_passage(text))).collect()
            }
        };
        (sample, pages)
    }
}

impl Suite for Pages {
    fn made_of(&self) -> Vec<String> {
        let Shape { documents, document_tokens } = self.shape;
        vec![format!(
            "the demo language drawn word by word; {documents} passages of {document_tokens} tokens a request, or {} of {SHEET_TOKENS} on one page",
            SHEET * SHEET
        )]
    }

    fn cells(&self) -> Vec<Cell> {
        self.tasks.iter().map(|task| Cell::of(task)).collect()
    }

    fn refers(&self, task: &str) -> Option<bool> {
        of_name(task).0.refers()
    }

    fn check(&self, model: &str, tokenizer: &Tokenizer) -> Result<()> {
        match hops::unknown_word(tokenizer)? {
            None => Ok(()),
            Some((word, count)) => Err(Error::usage(format!(
                "--suite pages: the tokenizer of {model} does not know {count} of its words, such as `{word}`; examples/models/demo-vlm has one that does"
            ))),
        }
    }

    /// As many tokens are generated as the expected answer has, and one that ends it.
    fn sample(&self, cell: &Cell, number: usize, measure: &Measure<'_>) -> Result<Sample> {
        let (made, pages) = self.made(&cell.task, number);
        let on_one = matches!(of_name(&cell.task).1, Form::Tiles(_));
        Ok(Sample {
            lead: String::new(),
            chunks: if on_one { vec![made.documents.join(" ")] } else { made.documents },
            pages,
            query: made.query,
            begun: String::new(),
            uses_template: false,
            answer_tokens: measure.tokens(&made.answer)? + 1,
            id: None,
            scoring: Scoring::new(Metric::BeginsWith, vec![made.answer]),
        })
    }
}
