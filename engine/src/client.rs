//! What clients of a running engine hold: they read requests, hand them in, and make reports of what comes back, on threads of
//! their own.

use std::sync::Arc;

use tributary_coordinator::conductor::{Conductor, Desk, Done, Inbox, desk};
use tributary_coordinator::scheduler::Limits;
use tributary_coordinator::{Document, Environment, Intake, ModelShape, Prefix, Prepared, Request, RequestSettings};
use tributary_coordinator::{prepare, prepare_text, report};

use crate::answer::Answered;
use crate::config::IntakeConfig;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::model::ModelFolder;
use crate::question::Question;
use crate::ranks::Pulses;
use crate::run_config::RunConfig;

/// What is asked in one turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    /// The context, in its order; a question may do without.
    pub documents: Vec<Document>,
    /// The system text, which shapes every chunk; the engine's own prefix where absent.
    pub system: Option<String>,
    /// The question.
    pub query: String,
}

/// A way to an engine that is [conducted](Engine::conduct). Clones lead to the same one, which ends its work when the last of
/// them is gone.
#[derive(Clone)]
pub struct Client {
    desk: Desk,
    shared: Arc<Shared>,
}

struct Shared {
    folder: Arc<ModelFolder>,
    intake: IntakeConfig,
    environment: Environment,
    settings: RequestSettings,
    pulses: Pulses,
}

impl Engine<'_> {
    /// A client of this engine, and where its requests arrive. They are answered as `run_config` says where they do not say
    /// otherwise.
    pub fn client(&self, run_config: &RunConfig) -> (Client, Inbox) {
        let (desk, inbox) = desk(self.observed.clone());
        let backend = self.backend_of(run_config.settings.world);
        let environment = Environment { threads: run_config.threads, backend, ..self.environment.clone() };
        let (folder, intake) = (Arc::clone(&self.folder), self.config.intake.clone());
        let (settings, pulses) = (run_config.settings.clone(), self.pulses());
        let shared = Arc::new(Shared { folder, intake, environment, settings, pulses });
        (Client { desk, shared }, inbox)
    }

    /// Answers what clients hand in, on this thread, until the last of them is gone and everything has been answered.
    /// [`start`](Self::start) comes before.
    ///
    /// # Errors
    /// The ranks' failure, of which every client has been told.
    pub fn conduct(&mut self, run_config: &RunConfig, limits: Limits, inbox: Inbox) -> Result<()> {
        let group = run_config.group();
        self.survey(group);
        let Self { ranks, planner, .. } = self;
        let link = ranks.backend().link(group).ok_or(Error::Bug("the ranks were not started"))?;
        match Conductor::new(link, planner, group, limits, inbox).run() {
            Ok(()) => Ok(()),
            Err(error) => Err(self.lost(group, error)),
        }
    }
}

impl Client {
    /// How requests are answered that do not say otherwise.
    pub fn settings(&self) -> &RequestSettings {
        &self.shared.settings
    }

    /// A conversation as token ids.
    ///
    /// # Errors
    /// The template's and the tokenizer's; a piece of text without a token.
    pub fn prepare(&self, conversation: &Conversation) -> Result<Prepared> {
        let Conversation { documents, system, query } = conversation;
        let Shared { folder, intake, .. } = &*self.shared;
        let tokenizer = folder.tokenizer.as_ref().ok_or_else(|| Error::usage("text needs a tokenizer"))?;
        let own = system.clone().filter(|system| !system.trim().is_empty()).map(Prefix::Text);
        let prefix = own.as_ref().unwrap_or(&intake.prefix);
        let (template, chunking, bos) = (folder.template.as_ref(), &intake.chunking, folder.config.bos);
        let intake = Intake { tokenizer, template, chunking, prefix, bos };
        if documents.is_empty() {
            return Ok(prepare_text(query, &intake)?);
        }
        Ok(prepare(&Request::new(documents.clone(), query.clone())?, &intake)?)
    }

    /// A question as token ids.
    ///
    /// # Errors
    /// As [`Question::prepare`].
    pub fn prepare_question(&self, question: &Question) -> Result<Prepared> {
        fail::fail_point!("engine::request");
        question.prepare(&self.shared.folder, &self.shared.intake)
    }

    /// Where requests are handed in, cancelled and counted.
    pub fn desk(&self) -> &Desk {
        &self.desk
    }

    /// Where the ranks' signs of life are read.
    pub fn pulses(&self) -> Pulses {
        self.shared.pulses.clone()
    }

    /// The shape of the model.
    pub fn shape(&self) -> ModelShape {
        self.shared.folder.shape()
    }

    /// Whether a token ends an answer.
    pub fn is_end(&self, token: u32) -> bool {
        self.shared.folder.config.eos.contains(&token)
    }

    /// The text of an answer, token by token.
    pub fn text_stream(&self) -> TextStream {
        TextStream { shared: Arc::clone(&self.shared), stream: tributary_coordinator::TextStream::default() }
    }

    /// What a request came to, with its report.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn answered(&self, done: Done) -> Result<Answered> {
        let Done { prepared, planned, answer } = done;
        let Shared { folder, environment, .. } = &*self.shared;
        let text = folder.text(&answer.outcome.tokens)?;
        let report = report(&planned, &answer, environment, &folder.shape(), text, prepared.notes.clone());
        Ok(Answered { prepared, planned, answer, report })
    }
}

/// The text of an answer, token by token: never a part of a character.
pub struct TextStream {
    shared: Arc<Shared>,
    stream: tributary_coordinator::TextStream,
}

impl TextStream {
    /// The text that a token completes; empty for the token that ends the answer.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn push(&mut self, token: u32) -> Result<String> {
        let folder = &self.shared.folder;
        if folder.config.eos.contains(&token) {
            return Ok(String::new());
        }
        let tokenizer = folder.tokenizer.as_ref().ok_or_else(|| Error::usage("text needs a tokenizer"))?;
        Ok(self.stream.push(token, tokenizer)?)
    }

    /// What is left when the last token has come.
    pub fn rest(&mut self) -> String {
        let tokenizer = self.shared.folder.tokenizer.as_ref();
        tokenizer.and_then(|tokenizer| self.stream.rest(tokenizer).ok()).unwrap_or_default()
    }
}
