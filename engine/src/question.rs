//! A request as it comes in, text or random tokens, and how it becomes token ids.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tributary_coordinator::{
    Document, ImageTiles, Intake, PictureFile, PictureRules, Piece, Prepared, ReadingTime, Request, Tiling, prepare,
    prepare_led,
};
use tributary_protocol::SplitMix64;

use crate::config::IntakeConfig;
use crate::error::{Error, Result};
use crate::model::ModelFolder;
use crate::synthetic::Synthetic;

/// A request to be answered.
#[derive(Debug, Clone)]
pub enum Question {
    /// Text.
    Text(Request),
    /// Text with the task's text around it.
    Led(Led),
    /// Random tokens from a seed.
    Random(Synthetic, u64),
    /// Random tokens from a seed, and pictures after them.
    Drawn(Synthetic, u64, Vec<Arc<PictureFile>>),
}

/// A request with the task's text around it.
#[derive(Debug, Clone, PartialEq)]
pub struct Led {
    /// Text before the first document; all chunks see it.
    pub lead: String,
    /// Documents and question.
    pub request: Request,
    /// Beginning of the answer: the model continues it.
    pub begun: String,
    /// Whether the model's chat template is used, where it has one.
    pub uses_template: bool,
    /// Tiles along each side of its pictures; the engine's number where absent.
    pub tiles: Option<ImageTiles>,
}

impl Question {
    /// The same question, whose pictures are not decoded yet: those that a check has decoded are
    /// decoded again while the clock runs.
    pub(crate) fn undecoded(&self) -> Cow<'_, Self> {
        match self {
            Question::Text(request) if request.has_pictures() => Cow::Owned(Question::Text(request.undecoded())),
            Question::Led(led) if led.request.has_pictures() => {
                Cow::Owned(Question::Led(Led { request: led.request.undecoded(), ..led.clone() }))
            }
            Question::Drawn(shape, seed, files) => {
                let files = files.iter().map(|file| Arc::new(file.undecoded())).collect();
                Cow::Owned(Question::Drawn(*shape, *seed, files))
            }
            _ => Cow::Borrowed(self),
        }
    }

    /// A request from files: a JSON file with everything, whose question `query` takes the place
    /// of, or a text file for each document.
    ///
    /// # Errors
    /// Returns an error if both are missing, if there is no question, if a file is unreadable, or
    /// if a question or document is empty.
    pub fn from_files(documents: &[PathBuf], request: Option<&Path>, query: Option<&str>) -> Result<Self> {
        if let Some(path) = request {
            let request = Request::from_file(path)?;
            return Ok(Self::Text(match query {
                Some(query) => Request::new(request.documents, query.to_owned())?,
                None => request,
            }));
        }
        if documents.is_empty() {
            let ways = "--documents FILE.. with --query TEXT, --request FILE.json, or --synthetic";
            return Err(Error::usage(format!("no documents: give {ways}")));
        }
        let Some(query) = query else { return Err(Error::usage("no query: give --query TEXT")) };
        let documents = documents.iter().map(|path| Document::from_file(path)).collect::<Result<_, _>>()?;
        Ok(Self::Text(Request::new(documents, query.to_owned())?))
    }

    /// The request as token ids.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails, or if a piece of text has no token.
    pub fn prepare(&self, folder: &ModelFolder, intake: &IntakeConfig) -> Result<Prepared> {
        match self {
            Question::Random(shape, seed) => random(*shape, *seed, folder),
            Question::Drawn(shape, seed, files) => drawn(random(*shape, *seed, folder)?, files, folder),
            Question::Text(request) => Ok(prepare(request, &folder.reading(intake, &intake.prefix)?)?),
            Question::Led(Led { lead, request, begun, uses_template, tiles }) => {
                let intake = folder.reading(intake, &intake.prefix)?;
                let template = intake.template.filter(|_| *uses_template);
                let tiling = Tiling { tiles: tiles.unwrap_or(intake.tiling.tiles), ..intake.tiling };
                Ok(prepare_led(request, lead, begun, &Intake { template, tiling, ..intake })?)
            }
        }
    }

    /// The expected answer, where the request names one.
    pub fn expected(&self) -> Option<&str> {
        match self {
            Question::Text(request) | Question::Led(Led { request, .. }) => request.answer.as_deref(),
            Question::Random(..) | Question::Drawn(..) => None,
        }
    }
}

/// Token ids drawn uniformly from the vocabulary, but for those that stand for pictures.
fn random(shape: Synthetic, seed: u64, folder: &ModelFolder) -> Result<Prepared> {
    let (limit, vocab) = (folder.config.max_positions, folder.config.vocab);
    if shape.tokens() > limit {
        let tokens = shape.tokens();
        return Err(Error::usage(format!("--synthetic {shape}: {tokens} tokens, the model has {limit} positions")));
    }
    let is_mark = |id: u32| folder.pictures.is_some_and(|PictureRules { marks, .. }| marks.all().contains(&id));
    // Any fixed, well mixed sequence would do; results of earlier versions have this one.
    let mut random = SplitMix64::new(seed ^ 0x9e37_79b9_7f4a_7c15);
    let mut id = || random.below(vocab) as u32;
    let mut ids =
        |count: usize| -> Vec<u32> { std::iter::repeat_with(&mut id).filter(|&id| !is_mark(id)).take(count).collect() };
    let chunk = |ids: Vec<u32>| Piece { ids, ..Piece::default() };
    Ok(Prepared {
        prefix: vec![folder.bos.unwrap_or(0)],
        lead: Vec::new(),
        chunks: (0..shape.chunks).map(|_| chunk(ids(shape.chunk_tokens))).collect(),
        query: ids(shape.query_tokens),
        query_text: None,
        texts: None,
        separated: false,
        is_text: false,
        closing: 0,
        pictures: ReadingTime::default(),
        notes: vec!["synthetic request: random token ids from the seed".to_owned()],
    })
}

/// The same with pictures as its last chunks.
fn drawn(mut prepared: Prepared, files: &[Arc<PictureFile>], folder: &ModelFolder) -> Result<Prepared> {
    let Some(rules) = &folder.pictures else {
        return Err(Error::usage(format!("--images: model {} reads no pictures", folder.given.display())));
    };
    let began = Instant::now();
    for file in files {
        prepared.chunks.push(Piece::of_picture(&*file.read(rules)?, &rules.marks));
    }
    prepared.pictures = ReadingTime(began.elapsed());
    Ok(prepared)
}
