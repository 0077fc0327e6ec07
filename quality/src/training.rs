//! A training on the ranks of this run: a suite's requests become samples, each rank learns, rank 0
//! writes.

use std::path::{Path, PathBuf};

use tributary_comm::Communicator;
use tributary_coordinator::{ChunkPrefix, Chunking, Join, Prefix, TEXT_CHUNK_TOKENS, TemplateValues, Tiling};
use tributary_engine::{Config, IntakeConfig, KvDtype, ModelFolder, Ranks, Seat, TemplateUse};
use tributary_protocol::Phase;
use tributary_system::memory;
use tributary_system::size::rounded;
use tributary_train::{Job, Need, Sample, Settings, StepRow, Summary, TOP_SHARE, Wish, on_threads};

use crate::design::Asked;
use crate::error::{Error, Result};
use crate::lessons::lessons;

/// Something to be learned.
#[derive(Debug, Clone)]
pub struct Training {
    /// The suite that samples come from, and how many in all.
    pub asked: Asked,
    /// Texts before the first chunk; each round of the tasks has the next.
    pub prefixes: Vec<Prefix>,
    /// The same in the prompt that the teacher reads, where it is not the sample's own.
    pub teacher_prefix: Option<Prefix>,
    /// Settings that determine the numbers.
    pub settings: Settings,
    /// Student, and its sizes.
    pub wish: Wish,
    /// Folder of the result.
    pub out: PathBuf,
    /// Whether it resumes from the folder's checkpoint.
    pub resume: bool,
    /// Ends it after this number of steps in all.
    pub stop_after: Option<u64>,
    /// Whether the training is only predicted, not run.
    pub dry_run: bool,
}

/// Result of a training.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// Summary of the training; none of a dry run.
    pub summary: Option<Summary>,
    /// Samples.
    pub samples: usize,
    /// Steps of all epochs.
    pub steps: u64,
    /// Predicted memory of one process beside the model.
    pub predicted_bytes: u64,
    /// Folder of the result.
    pub out: PathBuf,
    /// Largest measured memory beside the loaded model, where the system reports it.
    pub measured_bytes: Option<u64>,
}

/// Intake of training requests: a document a chunk.
pub fn intake() -> IntakeConfig {
    let (chunking, tiling, text_chunk_tokens) = (Chunking::Documents, Tiling::default(), TEXT_CHUNK_TOKENS);
    // Suites put the separators of documents into their texts.
    let (join, template_kwargs) = (Join::nothing(), TemplateValues::new());
    let template = TemplateUse::Auto;
    let (prefix, chunk_prefix) = (Prefix::Bos, ChunkPrefix::System);
    IntakeConfig {
        synthetic: None,
        max_image_pixels: None,
        chunking,
        tiling,
        text_chunk_tokens,
        prefix,
        chunk_prefix,
        template,
        join,
        template_kwargs,
    }
}

impl Training {
    /// Trains on all ranks: every process calls it. `tell` gets each step on rank 0, with the
    /// number of all steps.
    ///
    /// # Errors
    /// Returns an error if the suite, the settings or the model refuse, or if a rank fails.
    pub fn run(&self, config: &Config, ranks: &mut Ranks, tell: &(dyn Fn(&StepRow, u64) + Sync)) -> Result<Trained> {
        self.settings.check()?;
        self.wish.check()?;
        let folder = ModelFolder::open(&config.model, &config.intake)?;
        same_tokenizer(&folder)?;
        let samples = self.samples(&folder, config)?;
        self.wish.fits(&folder.config, &samples)?;
        let world = ranks.world();
        let need = Need::of(&folder.config, &samples, &self.wish, std::mem::size_of::<f32>())?;
        let trained = Trained {
            summary: None,
            samples: samples.len(),
            steps: self.settings.steps(samples.len()),
            out: self.out.clone(),
            predicted_bytes: need.bytes(ranks.in_process(world)),
            measured_bytes: None,
        };
        if self.dry_run {
            ranks.leave()?;
            return Ok(trained);
        }
        if config.model.kv_dtype != KvDtype::Auto {
            return Err(Error::usage("--kv-dtype fp8: rounded keys and values have no gradient; train with auto"));
        }
        let device = ranks.open_device(&config.model, &config.group)?;
        let carrier = ranks.carrier(&config.group, &device, world)?;
        let (model, base_model) = (folder.load(&device)?, folder.hash().get()?);
        let before = memory::resident_bytes();
        let (settings, resume, stop_after) = (&self.settings, self.resume, self.stop_after);
        let job = Job { settings, samples: &samples, out: &self.out, resume, stop_after, base_model };
        let one = |seat: Seat| -> Result<Summary> {
            let mut comm = seat.take(&carrier, model.device()).map_err(tributary_train::Error::from)?;
            comm.set_deadline(Phase::Idle, config.group.collective_timeout);
            let learn = |comm: &mut dyn Communicator| {
                let pupil = self.wish.pupil(&*model, settings.seed)?;
                tributary_train::train(&job, &*model, &*pupil, comm, tell)
            };
            // A rank that leaves without a word would be taken for done.
            let done = learn(&mut *comm).inspect_err(|error| comm.abort(&error.to_string(), error.exit_code()))?;
            comm.leave();
            Ok(done)
        };
        let summary = on_threads(ranks.seats(world)?, config.group.threads, one, Error::is_told_elsewhere)?;
        let measured = memory::peak_bytes().zip(before).map(|(peak, before)| peak.saturating_sub(before));
        Ok(Trained { summary: Some(summary), measured_bytes: measured, ..trained })
    }

    fn samples(&self, folder: &ModelFolder, config: &Config) -> Result<Vec<Sample>> {
        let found = lessons(&self.asked, &self.prefixes, folder, &config.intake)?;
        // The same requests after another prefix: the teacher's.
        let taught = match &self.teacher_prefix {
            None => None,
            Some(prefix) => Some(lessons(&self.asked, std::slice::from_ref(prefix), folder, &config.intake)?),
        };
        let sample = |(index, lesson): (usize, crate::Lesson)| Sample {
            prefix: lesson.prepared.prefix,
            chunks: lesson.prepared.chunks.into_iter().map(|chunk| chunk.ids).collect(),
            query: lesson.prepared.query,
            answer_tokens: lesson.answer_tokens,
            taught_behind: taught.as_ref().map(|taught| taught[index].prepared.prefix.clone()),
        };
        Ok(found.into_iter().enumerate().map(sample).collect())
    }
}

/// Samples are token ids: the auxiliary model needs the same vocabulary.
fn same_tokenizer(folder: &ModelFolder) -> Result<()> {
    let Some(beside) = &folder.auxiliary else { return Ok(()) };
    let bytes = |path: &Path| std::fs::read(path.join("tokenizer.json")).ok();
    match bytes(&folder.path) == bytes(&beside.path) {
        true => Ok(()),
        false => Err(Error::usage(format!(
            "--aux-model {}: its tokenizer.json is not that of --model; training wants the same one",
            beside.path.display()
        ))),
    }
}

impl Trained {
    /// It in words.
    pub fn text(&self) -> String {
        let (predicted, samples) = (rounded(self.predicted_bytes), self.samples);
        let Some(summary) = &self.summary else {
            return format!("{samples} samples, {} steps; {predicted} beside the model in a process\n", self.steps);
        };
        let losses: Vec<String> = summary.epoch_losses.iter().map(|loss| format!("{loss:.4}")).collect();
        let measured = self.measured_bytes.map_or_else(|| "not known".to_owned(), rounded);
        let agreement = summary.agreement.map_or_else(String::new, |[first, last]| {
            let share = 100.0 * TOP_SHARE;
            format!("\nthe best {share:.0} % of rows beside the teacher's (Jaccard): {first:.3} before, {last:.3} now")
        });
        format!(
            "{} of {} steps over {samples} samples in {:.0} s; {} numbers are learned\nmean loss of each epoch: {}{agreement}\nmemory beside the model in a process: \
             {predicted} predicted, {measured} measured\n# written to {}\n",
            summary.steps,
            self.steps,
            summary.seconds,
            summary.parameters,
            losses.join(" "),
            self.out.display()
        )
    }
}
