//! Documents are prefilled ahead of use by an engine that does nothing else: chunks that its store
//! has are skipped, so that an interrupted run resumes.

use std::time::Duration;

use tributary_coordinator::conductor::Prefilled;
use tributary_coordinator::{Document, Intake, Prefix, dispatch, prepare_documents};
use tributary_protocol::{StoreError, StoreReport, Tier, exit};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::run_config::RunConfig;

/// Result for some documents.
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
    /// Number of chunks that could not be written, as far as ranks have reported.
    pub lost: u64,
}

/// Chunks that could not be written to the folder.
fn lost<'a>(reports: impl Iterator<Item = &'a StoreReport>) -> u64 {
    let is_lost = |(tier, error, _): &&(Tier, StoreError, u64)| {
        let of_writing =
            [StoreError::Busy, StoreError::Full, StoreError::Denied, StoreError::Unreadable, StoreError::Down];
        *tier == Tier::Disk && of_writing.contains(error)
    };
    reports.flat_map(|report| &report.errors).filter(is_lost).map(|(_, _, count)| count).sum()
}

/// Result for many documents.
#[derive(Debug, Clone)]
pub struct WarmedAll {
    /// Documents.
    pub documents: usize,
    /// Sum over the accepted documents.
    pub sum: Warmed,
    /// Why others were not.
    pub refused: Vec<String>,
    /// Seconds that all took.
    pub seconds: f64,
}

impl WarmedAll {
    /// It in words.
    pub fn text(&self) -> String {
        let Warmed { chunks, tokens, there, computed_rows, .. } = self.sum;
        let text =
            format!("{} documents: {chunks} chunks of {tokens} tokens, {there} of them were there; ", self.documents);
        let rate = computed_rows as f64 / self.seconds.max(1e-9);
        format!("{text}{computed_rows} rows computed in {:.1} s ({rate:.0} a second)\n", self.seconds)
    }

    /// The loss in words; none where all chunks are stored.
    pub fn loss(&self) -> Option<String> {
        let room = || format!("{} chunks could not be written: run it again when there is room", self.sum.lost);
        let refused =
            |first: &String| format!("{} of the documents cannot be stored; the first: {first}", self.refused.len());
        self.refused.first().map(refused).or_else(|| (self.sum.lost > 0).then(room))
    }
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
            lost: self.lost + other.lost,
        }
    }
}

impl Engine<'_> {
    /// Prefills documents after a system text (the engine's own prefix where there is none), and
    /// keeps them in the chunk caches and their store. [`start`](Self::start) comes before.
    ///
    /// # Errors
    /// Returns an error if the documents are refused, or if a rank fails: after that the group is
    /// gone.
    pub fn warm(&mut self, documents: &[Document], system: Option<&str>, run_config: &RunConfig) -> Result<Warmed> {
        let group = run_config.group();
        self.survey(group);
        let mut prepared = {
            let (folder, intake) = (&self.folder, &self.config.intake);
            let prefix = system.map_or_else(|| intake.prefix.clone(), |system| Prefix::Text(system.to_owned()));
            // Documents that a user stores ahead of use have no limit of length.
            let intake = Intake { most_tokens: usize::MAX, ..folder.reading(intake, &prefix)? };
            prepare_documents(documents, &intake)?
        };
        let chunks = prepared.chunks.len();
        let tokens = prepared.chunks.iter().map(|chunk| chunk.ids.len()).sum();
        let head = prepared.head().to_vec();
        prepared
            .leave_out(|chunk| self.planner.stores(group, &head, (&chunk.ids, &chunk.pictures), &run_config.settings));
        let warmed = Warmed { chunks, tokens, there: chunks - prepared.chunks.len(), ..Warmed::default() };
        if prepared.chunks.is_empty() {
            return Ok(warmed);
        }
        let tokens_of_chunks = self.readers.chunk_tokens(&prepared, &run_config.settings)?;
        let planned = self.planner.plan_chunks(tokens_of_chunks, &run_config.settings, run_config.threads)?;
        let link = self.ranks.backend().link(group).ok_or(Error::Bug("the ranks were not started"))?;
        match dispatch::keep(link, &planned.plan) {
            Ok(reports) => {
                let stores = self.planner.note(group, &reports);
                let prefilled = Prefilled::new(Some(&planned.plan), &reports, &stores);
                self.observed.tell(|observer| prefilled.tell(observer));
                let computed_rows = reports.iter().map(|report| report.prefilled_rows).sum();
                let lost = lost(reports.iter().filter_map(|report| report.chunk_cache.store.as_ref()));
                Ok(Warmed { computed_rows, lost, ..warmed })
            }
            Err(error) => {
                self.observed.tell(|observer| observer.failed(error.exit_code()));
                Err(self.lost(group, error))
            }
        }
    }

    /// Waits until this process's store has written its queue. Gives the chunks that could not be
    /// written since the ranks' last report.
    pub fn written(&self, within: Duration) -> Warmed {
        let Some(store) = self.store() else { return Warmed::default() };
        let in_time = store.flush(within);
        Warmed { lost: lost(std::iter::once(&store.report())) + u64::from(!in_time), ..Warmed::default() }
    }

    /// Prefills documents together; one by one where they are too long together, or one of them is
    /// at fault. Gives the result of all, or of each.
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
