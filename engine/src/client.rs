//! Clients of a running engine: they read requests, hand them in, and make reports of the answers,
//! on their own threads.

use std::sync::Arc;

use tributary_coordinator::conductor::{Conductor, Desk, Done, Inbox, desk};
use tributary_coordinator::harmony::Marks;
use tributary_coordinator::scheduler::Limits;
use tributary_coordinator::{ChatOptions, ChunkPrefix, Document, Environment, Intake, Message, PictureRules};
use tributary_coordinator::{Prefix, Prepared, prepare_documents, prepare_ids, prepare_text, prepare_turns, report};
use tributary_planner::forecast::Profile;
use tributary_planner::{Machine, ModelShape, RequestSettings};
use tributary_protocol::{Method, Packets, Requirement, Sampling};

use crate::answered::Answered;
use crate::config::IntakeConfig;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::model::ModelFolder;
use crate::question::Question;
use crate::ranks::Pulses;
use crate::run_config::RunConfig;

/// Question of a conversation, with its earlier messages.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    /// The context, in its order; a question may do without.
    pub documents: Vec<Document>,
    /// Messages. System messages in front shape every chunk; where there are none, the engine's own
    /// prefix does. Turns follow the documents, so that these stay warm from one turn to the next.
    pub messages: Vec<Message>,
    /// Options of the chat template.
    pub options: ChatOptions,
}

/// A text that is to be continued, without a chat template.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// The context, in its order; a text may do without.
    pub documents: Vec<Document>,
    /// Text after the documents.
    pub text: PromptText,
}

/// A text, or its tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptText {
    /// Text, to which the engine's own prefix is added.
    Text(String),
    /// Tokens, to which nothing is added.
    Ids(Vec<u32>),
}

/// A way to an engine that is [conducted](Engine::conduct). Clones lead to the same one, which ends
/// its work when the last of them is gone.
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
    machine: Machine,
    profile: Option<Profile>,
    has_store: bool,
}

impl Engine<'_> {
    /// A client of this engine, and where its requests arrive. They are answered as `run_config`
    /// says where they do not say otherwise.
    pub fn client(&self, run_config: &RunConfig) -> (Client, Inbox) {
        self.observed.warned_by(|line| tracing::warn!("{line}"));
        let (desk, inbox) = desk(self.observed.clone());
        let backend = self.backend_of(run_config.settings.world);
        let environment = Environment { threads: run_config.threads, backend, ..self.environment.clone() };
        let (folder, intake) = (Arc::clone(&self.folder), self.config.intake.clone());
        let (settings, pulses) = (run_config.settings.clone(), self.pulses());
        let (_, machine) = self.machine(run_config.group());
        let profile = self.planner.profile().cloned();
        let has_store = self.config.group.chunk_store.is_some();
        let shared = Arc::new(Shared { folder, intake, environment, settings, pulses, machine, profile, has_store });
        (Client { desk, shared }, inbox)
    }

    /// Answers requests of clients, on this thread, until the last of them is gone and everything
    /// has been answered. [`start`](Self::start) comes before.
    ///
    /// # Errors
    /// Returns the ranks' failure; every client has been told of it.
    pub fn conduct(&mut self, run_config: &RunConfig, limits: Limits, inbox: Inbox) -> Result<()> {
        let group = run_config.group();
        self.survey(group);
        let Self { ranks, planner, readers, .. } = self;
        let link = ranks.backend().link(group).ok_or(Error::Bug("the ranks were not started"))?;
        match Conductor::new(link, planner, group, limits, inbox).with_readers(readers).run() {
            Ok(()) => Ok(()),
            Err(error) => Err(self.lost(group, error)),
        }
    }
}

impl Client {
    /// Default settings of requests.
    pub fn settings(&self) -> &RequestSettings {
        &self.shared.settings
    }

    /// Whether requests may ask for a method: a model or an adapter that it cannot be without must
    /// be there.
    pub fn offers(&self, method: &Method) -> bool {
        let folder = &self.shared.folder;
        let lacks_model = folder.auxiliary.is_none() && method.needs(Requirement::AuxiliaryModel);
        let lacks_rows = folder.adapters.around().is_none() && method.needs(Requirement::Adapter);
        !(lacks_model || lacks_rows)
    }

    /// The model's rules for pictures, if it reads some.
    pub fn pictures(&self) -> Option<&PictureRules> {
        self.shared.folder.pictures.as_ref()
    }

    /// Part of a prompt's prefix that chunks are prefilled after.
    pub fn chunk_prefix(&self) -> ChunkPrefix {
        self.shared.intake.chunk_prefix
    }

    /// Whether the chunk caches have a store.
    pub fn has_store(&self) -> bool {
        self.shared.has_store
    }

    /// The machine of the ranks, as they see it.
    pub fn machine(&self) -> &Machine {
        &self.shared.machine
    }

    /// The profile by which exchanges are chosen, if one was given.
    pub fn profile(&self) -> Option<&Profile> {
        self.shared.profile.as_ref()
    }

    /// A conversation as token ids.
    ///
    /// # Errors
    /// Returns an error if the template or the tokenizer fails, or if a piece of text has no token.
    pub fn prepare(&self, conversation: &Conversation) -> Result<Prepared> {
        let Conversation { documents, messages, options } = conversation;
        let prefix = self.prefix(None);
        let intake = self.intake(&prefix)?;
        if documents.is_empty() {
            return Ok(prepare_text(messages, options, self.shared.intake.text_chunk_tokens, &intake)?);
        }
        Ok(prepare_turns(documents, messages, options, &intake)?)
    }

    /// A text that is to be continued as token ids.
    ///
    /// # Errors
    /// Fails as [`prepare`](Self::prepare) does.
    pub fn prepare_prompt(&self, prompt: &Prompt) -> Result<Prepared> {
        let prefix = self.prefix(None);
        let intake = Intake { template: None, ..self.intake(&prefix)? };
        let (documents, chunk_tokens) = (&prompt.documents, self.shared.intake.text_chunk_tokens);
        match &prompt.text {
            PromptText::Text(text) => {
                let (messages, options) = ([Message::new("user", text.as_str())], ChatOptions::default());
                Ok(match documents.as_slice() {
                    [] => prepare_text(&messages, &options, chunk_tokens, &intake)?,
                    documents => prepare_turns(documents, &messages, &options, &intake)?,
                })
            }
            PromptText::Ids(ids) => Ok(prepare_ids(documents, ids.clone(), chunk_tokens, &intake)?),
        }
    }

    /// Documents after a system text as token ids, to be prefilled ahead of use.
    ///
    /// # Errors
    /// Fails as [`prepare`](Self::prepare) does.
    pub fn prepare_documents(&self, documents: &[Document], system: Option<&str>) -> Result<Prepared> {
        let prefix = self.prefix(system);
        Ok(prepare_documents(documents, &self.intake(&prefix)?)?)
    }

    /// The text before the first chunk: the system text, or the engine's own prefix where there is
    /// none.
    fn prefix(&self, system: Option<&str>) -> Prefix {
        let own = system.filter(|system| !system.trim().is_empty()).map(|system| Prefix::Text(system.to_owned()));
        own.unwrap_or_else(|| self.shared.intake.prefix.clone())
    }

    fn intake<'a>(&'a self, prefix: &'a Prefix) -> Result<Intake<'a>> {
        fail::fail_point!("engine::prepare");
        let Shared { folder, intake, .. } = &*self.shared;
        folder.reading(intake, prefix)
    }

    /// The texts of tokens one by one, as far as they are whole characters: where tokens share one,
    /// the last has it.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    pub fn texts(&self, ids: &[u32]) -> Result<Vec<String>> {
        let (tokenizer, mut stream) = (self.shared.folder.tokenizer()?, tributary_coordinator::TextStream::default());
        Ok(ids.iter().map(|&id| stream.push(id, tokenizer)).collect::<tributary_coordinator::Result<_>>()?)
    }

    /// The text of a prompt's last tokens; empty where there is no tokenizer.
    pub fn text_of_prompt(&self, ids: &[u32]) -> String {
        let tokenizer = self.shared.folder.tokenizer.as_ref();
        tokenizer.and_then(|tokenizer| tokenizer.decode(ids).ok()).unwrap_or_default()
    }

    /// The id of the token with this text; none without a tokenizer.
    pub fn token(&self, text: &str) -> Option<u32> {
        self.shared.folder.tokenizer.as_ref()?.id_of(text)
    }

    /// The marks of channels, if the chat template writes one and the tokenizer has them.
    pub fn channels(&self) -> Option<Marks> {
        self.shared.folder.channels()
    }

    /// A question as token ids.
    ///
    /// # Errors
    /// Fails as [`Question::prepare`] does.
    pub fn prepare_question(&self, question: &Question) -> Result<Prepared> {
        fail::fail_point!("engine::request");
        question.prepare(&self.shared.folder, &self.shared.intake)
    }

    /// The queue, where requests are handed in, cancelled and counted.
    pub fn desk(&self) -> &Desk {
        &self.desk
    }

    /// Reader of the ranks' signs of life.
    pub fn pulses(&self) -> Pulses {
        self.shared.pulses.clone()
    }

    /// The shape of the model.
    pub fn shape(&self) -> ModelShape {
        self.shared.folder.shape()
    }

    /// Hash of the model's weights and config. The first caller may have to wait until the weights
    /// are read.
    ///
    /// # Errors
    /// Returns an error if a file of the model cannot be read.
    pub fn model_hash(&self) -> Result<[u8; 32]> {
        self.shared.folder.hash().get()
    }

    /// Type of the numbers of weights, keys and values: `f32`, `bf16` or `f16`.
    pub fn dtype(&self) -> &str {
        &self.shared.environment.dtype
    }

    /// Size of the vocabulary: token ids are below it.
    pub fn vocabulary(&self) -> usize {
        self.shared.folder.config.vocab
    }

    /// The tokens that end an answer whose tokens are drawn like this.
    pub fn ends(&self, sampling: &Sampling) -> Vec<u32> {
        sampling.ends(self.shared.folder.config.eos.clone())
    }

    /// Rows of a prompt before the first token of its answer: its tokens, and the rows of an
    /// adapter around its chunks.
    pub fn prompt_rows(&self, prepared: &Prepared, settings: &RequestSettings) -> usize {
        let wants = settings.chunk_packets() == Packets::On;
        let around = self.shared.folder.adapters.around().filter(|_| wants);
        let rows = around.map_or(0, |around| (around.head + around.tail) as usize);
        prepared.token_count() + rows * prepared.chunks.len()
    }

    /// The text of an answer after the end of its prompt, token by token.
    pub fn text_stream(&self, prompt: &[u32]) -> TextStream {
        let tokenizer = self.shared.folder.tokenizer.as_ref();
        let stream = tokenizer.and_then(|tokenizer| tributary_coordinator::TextStream::behind(prompt, tokenizer).ok());
        TextStream { shared: Arc::clone(&self.shared), stream: stream.unwrap_or_default() }
    }

    /// Result of a request, with its report.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    pub fn answered(&self, done: Done) -> Result<Answered> {
        let Done { prepared, planned, answer } = done;
        let Shared { folder, environment, .. } = &*self.shared;
        let said = folder.said(&prepared.query, &answer.outcome.tokens)?;
        let report = report(&planned, &answer, environment, &folder.shape(), said, &prepared);
        Ok(Answered { prepared, planned, answer, report })
    }
}

/// The text of an answer, token by token: never a part of a character.
pub struct TextStream {
    shared: Arc<Shared>,
    stream: tributary_coordinator::TextStream,
}

impl TextStream {
    /// The text that a token would bring if it came next. A part of a character is the replacement
    /// character, or empty.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    pub fn would_bring(&self, token: u32) -> Result<String> {
        Ok(self.stream.would_bring(token, self.shared.folder.tokenizer()?)?)
    }

    /// Bytes of a single token; none where they depend on its neighbours.
    pub fn bytes_of(&self, token: u32) -> Option<Vec<u8>> {
        self.shared.folder.tokenizer.as_ref()?.bytes_of(token)
    }

    /// The text that a token completes; empty for the token that ends the answer.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    pub fn push(&mut self, token: u32) -> Result<String> {
        let folder = &self.shared.folder;
        if folder.config.eos.contains(&token) {
            return Ok(String::new());
        }
        Ok(self.stream.push(token, folder.tokenizer()?)?)
    }

    /// The rest, when the last token has come.
    pub fn rest(&mut self) -> String {
        let tokenizer = self.shared.folder.tokenizer.as_ref();
        tokenizer.and_then(|tokenizer| self.stream.rest(tokenizer).ok()).unwrap_or_default()
    }
}
