//! Documents are prefilled ahead of use by an engine that does nothing else: what its store has is passed over, so that a run that was
//! interrupted goes on where it was.

use tributary_coordinator::conductor::Prefilled;
use tributary_coordinator::{Document, Intake, Prefix, dispatch, prepare_documents};
use tributary_protocol::exit;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::run_config::RunConfig;

/// What came of some documents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Warmed {
    /// Chunks that the documents were cut into.
    pub chunks: usize,
    /// Tokens of those.
    pub tokens: usize,
    /// Chunks that the store had.
    pub there: usize,
    /// Rows that were computed, all ranks together, those of prefixes included.
    pub computed_rows: usize,
}

impl Warmed {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            chunks: self.chunks + other.chunks,
            tokens: self.tokens + other.tokens,
            there: self.there + other.there,
            computed_rows: self.computed_rows + other.computed_rows,
        }
    }
}

impl Engine<'_> {
    /// Prefills documents behind a system text (the engine's own prefix where there is none), and leaves them in the chunk caches and
    /// in the store behind them. [`start`](Self::start) comes before.
    ///
    /// # Errors
    /// The documents', and the ranks': after such a failure the group is gone.
    pub fn warm(&mut self, documents: &[Document], system: Option<&str>, run_config: &RunConfig) -> Result<Warmed> {
        let group = run_config.group();
        self.survey(group);
        let mut prepared = {
            let (folder, intake) = (&self.folder, &self.config.intake);
            let prefix = system.map_or_else(|| intake.prefix.clone(), |system| Prefix::Text(system.to_owned()));
            let (template, chunking, bos) = (folder.template.as_ref(), &intake.chunking, folder.config.bos);
            let intake = Intake { tokenizer: folder.tokenizer()?, template, chunking, prefix: &prefix, bos };
            prepare_documents(documents, &intake)?
        };
        let chunks = prepared.chunks.len();
        let tokens = prepared.chunks.iter().map(|chunk| chunk.ids.len()).sum();
        let prefix = prepared.prefix.clone();
        prepared.chunks.retain(|chunk| !self.planner.stores(group, &prefix, &chunk.ids));
        let warmed = Warmed { chunks, tokens, there: chunks - prepared.chunks.len(), computed_rows: 0 };
        if prepared.chunks.is_empty() {
            return Ok(warmed);
        }
        let planned = self.planner.plan_chunks(&prepared, &run_config.settings, run_config.threads)?;
        let link = self.ranks.backend().link(group).ok_or(Error::Bug("the ranks were not started"))?;
        match dispatch::keep(link, &planned.plan) {
            Ok(reports) => {
                let stores = self.planner.note(group, &reports);
                let prefilled = Prefilled::new(Some(&planned.plan), &reports, &stores);
                self.observed.tell(|observer| prefilled.tell(observer));
                let computed_rows = reports.iter().map(|report| report.prefilled_rows).sum();
                Ok(Warmed { computed_rows, ..warmed })
            }
            Err(error) => {
                self.observed.tell(|observer| observer.failed(error.exit_code()));
                Err(self.lost(group, error))
            }
        }
    }

    /// Prefills documents together; one by one where they are too long together, or one of them is at fault. What came of them, or of
    /// each.
    pub fn warm_each(
        &mut self,
        documents: &[Document],
        system: Option<&str>,
        run_config: &RunConfig,
    ) -> Vec<Result<Warmed>> {
        match self.warm(documents, system, run_config) {
            Err(error) if error.exit_code() == exit::USAGE && documents.len() > 1 => {
                documents.iter().map(|one| self.warm(std::slice::from_ref(one), system, run_config)).collect()
            }
            warmed => vec![warmed],
        }
    }
}
