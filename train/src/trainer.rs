//! The loop: samples are dealt over ranks, gradients are summed, every rank takes the same step.

use std::path::Path;
use std::time::Instant;

use candle_core::{DType, Tensor};
use serde::Serialize;
use tributary_comm::Communicator;
use tributary_model::{Model, Progress};
use tributary_system::file::write_whole;

use crate::adamw::AdamW;
use crate::checkpoint::{self, FILE, State};
use crate::error::{Error, Result};
use crate::pupil::{Made, Pupil};
use crate::record::{self, StepRow};
use crate::sample::{Sample, digest};
use crate::settings::Settings;
use crate::sums::{shared, summed};

/// A training. The same on every rank.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// Settings that determine its numbers.
    pub settings: &'a Settings,
    /// Training samples.
    pub samples: &'a [Sample],
    /// The folder that rank 0 writes to.
    pub out: &'a Path,
    /// Whether it resumes from the folder's checkpoint.
    pub resume: bool,
    /// Ends it after this number of steps in all, with a checkpoint to resume from.
    pub stop_after: Option<u64>,
    /// The hash of the base model's config and weights.
    pub base_model: [u8; 32],
}

/// Result of a training.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Its settings.
    pub settings: Settings,
    /// Samples.
    pub samples: usize,
    /// A hash of the samples.
    pub samples_hash: String,
    /// Steps taken.
    pub steps: u64,
    /// Whether those are all steps.
    pub is_complete: bool,
    /// Numbers that are learned.
    pub parameters: usize,
    /// Ranks.
    pub world: usize,
    /// The mean loss of each epoch.
    pub epoch_losses: Vec<f64>,
    /// Agreement of its selection with its teacher's, before the first step and after the last one,
    /// if it learns to select.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agreement: Option<[f64; 2]>,
    /// Seconds, its parts before a resume included.
    pub seconds: f64,
}

/// Trains: every rank calls it with the same job and its own `pupil`. `tell` gets each step on
/// rank 0.
///
/// # Errors
/// Returns [`Error::NotFinite`] on every rank alike and [`Error::Write`] on rank 0; the last good
/// checkpoint remains. Also returns an error if a checkpoint is of another training, or if the
/// model or the communicator fails.
pub fn train(
    job: &Job<'_>,
    model: &dyn Model,
    pupil: &dyn Pupil,
    comm: &mut dyn Communicator,
    tell: &dyn Fn(&StepRow, u64),
) -> Result<Summary> {
    let progress = Progress::on(model.device(), comm.liveness())?;
    let _telling = progress.telling();
    let at_first = agreement(job.samples, model, pupil, comm, &progress)?;
    let mut run = Run::begin(job, pupil, comm)?;
    let (steps, per_epoch) = (job.settings.steps(job.samples.len()), job.settings.steps_per_epoch(job.samples.len()));
    let end = job.stop_after.unwrap_or(steps).min(steps);
    while run.optimizer.steps < end {
        let row = run.step(model, comm, &progress)?;
        if comm.rank() == 0 {
            tell(&row, steps);
            if run.optimizer.steps.is_multiple_of(per_epoch) || run.optimizer.steps == end {
                checkpoint::write(job.out, &run.optimizer, &run.state())?;
            }
        }
    }
    let at_last = agreement(job.samples, model, pupil, comm, &progress)?;
    let agreement = at_first.zip(at_last).map(|(first, last)| [first, last]);
    let summary = Summary { agreement, ..run.summary(end == steps, comm.size()) };
    if comm.rank() == 0 {
        run.write(model, &summary)?;
    }
    comm.barrier()?;
    Ok(summary)
}

/// The mean agreement over the samples, which are dealt over the ranks: the same on every rank.
fn agreement(
    samples: &[Sample],
    model: &dyn Model,
    pupil: &dyn Pupil,
    comm: &mut dyn Communicator,
    progress: &Progress,
) -> Result<Option<f64>> {
    let mut sums = [0.0, 0.0];
    for (number, sample) in samples.iter().enumerate().skip(comm.rank()).step_by(comm.size()) {
        match pupil.agreement(model, (number, sample), progress)? {
            Some(agreement) => sums = [sums[0] + agreement, sums[1] + 1.0],
            // It selects nothing, for any sample.
            None => break,
        }
    }
    let sums = summed(comm, &sums)?;
    Ok((sums[1] > 0.0).then(|| sums[0] / sums[1]))
}

/// A training in progress, on one rank.
struct Run<'a> {
    job: &'a Job<'a>,
    pupil: &'a dyn Pupil,
    optimizer: AdamW,
    rows: Vec<StepRow>,
    training: String,
    begun: Instant,
    seconds_before: f64,
}

impl<'a> Run<'a> {
    /// From the beginning, or from the folder's checkpoint, which rank 0 reads.
    fn begin(job: &'a Job<'a>, pupil: &'a dyn Pupil, comm: &mut dyn Communicator) -> Result<Self> {
        let base: String = job.base_model.iter().map(|byte| format!("{byte:02x}")).collect();
        let said = serde_json::json!([job.settings, base, digest(job.samples), pupil.identity()]);
        let (training, values) = (said.to_string(), values(pupil)?);
        let mut run = Self {
            job,
            pupil,
            optimizer: AdamW::new(values),
            rows: Vec::new(),
            training,
            begun: Instant::now(),
            seconds_before: 0.0,
        };
        if comm.rank() == 0 {
            std::fs::create_dir_all(job.out).map_err(|cause| Error::Write { path: job.out.to_owned(), cause })?;
        }
        if job.resume {
            let path = job.out.join(FILE);
            let own = (comm.rank() == 0).then(|| std::fs::read(&path)).transpose();
            let own = own.map_err(|error| Error::Usage(format!("--resume: {}: {error}", path.display())))?;
            let bytes = shared(comm, own.as_deref())?;
            let (optimizer, state) = checkpoint::read(job.out, &bytes, &run.training, run.optimizer.values.len())?;
            run.seconds_before = state.rows.last().map_or(0.0, |row| row.seconds);
            (run.optimizer, run.rows) = (optimizer, state.rows);
            run.show()?;
        }
        Ok(run)
    }

    fn state(&self) -> State {
        State { training: self.training.clone(), steps: self.optimizer.steps, rows: self.rows.clone() }
    }

    /// One step over the samples of a batch: those at this rank's places are its own.
    fn step(&mut self, model: &dyn Model, comm: &mut dyn Communicator, progress: &Progress) -> Result<StepRow> {
        let (settings, samples, step) = (self.job.settings, self.job.samples, self.optimizer.steps);
        let batch = settings.samples_of(step, samples.len());
        let count = self.optimizer.values.len();
        let mut sums = vec![0.0; count + 1];
        for &number in batch.iter().skip(comm.rank()).step_by(comm.size()) {
            let loss = self.pupil.loss(model, (number, &samples[number]), progress)?;
            sums[count] += loss.to_dtype(DType::F64)?.to_scalar::<f64>()?;
            self.add_gradients(&loss, &mut sums[..count])?;
        }
        let mut sums = summed(comm, &sums)?;
        sums.iter_mut().for_each(|sum| *sum /= batch.len() as f64);
        let loss = sums.pop().expect("the loss follows the gradients");
        let norm = sums.iter().map(|gradient| gradient * gradient).sum::<f64>().sqrt();
        if !(loss.is_finite() && norm.is_finite()) {
            return Err(Error::NotFinite { step, kept: self.kept() });
        }
        let shorter = (settings.clip / norm.max(f64::MIN_POSITIVE)).min(1.0);
        sums.iter_mut().for_each(|gradient| *gradient *= shorter);
        let rate = settings.rate(step, settings.steps(samples.len()));
        self.optimizer.step(&sums, rate, settings.decay);
        self.show()?;
        let row = StepRow {
            step: step + 1,
            epoch: step / settings.steps_per_epoch(samples.len()) + 1,
            loss,
            learning_rate: rate,
            gradient_norm: norm,
            seconds: self.seconds(),
        };
        self.rows.push(row);
        Ok(row)
    }

    fn seconds(&self) -> f64 {
        self.seconds_before + self.begun.elapsed().as_secs_f64()
    }

    /// Remaining files when a training stops early, in words.
    fn kept(&self) -> String {
        match self.job.out.join(FILE).exists() {
            true => format!("the last good checkpoint is kept in {}", self.job.out.display()),
            false => "there is no checkpoint yet".to_owned(),
        }
    }

    fn add_gradients(&self, loss: &Tensor, sums: &mut [f64]) -> Result<()> {
        let gradients = loss.backward()?;
        let mut from = 0;
        for parameter in self.pupil.parameters() {
            let count = parameter.elem_count();
            if let Some(gradient) = gradients.get(&parameter) {
                let numbers = gradient.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
                sums[from..from + count].iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
            }
            from += count;
        }
        Ok(())
    }

    /// Sets the student's tensors to the optimizer's values.
    fn show(&self) -> Result<()> {
        let mut from = 0;
        for parameter in self.pupil.parameters() {
            let values = &self.optimizer.values[from..from + parameter.elem_count()];
            let tensor = Tensor::from_slice(values, parameter.dims(), parameter.device())?;
            parameter.set(&tensor.to_dtype(parameter.dtype())?)?;
            from += parameter.elem_count();
        }
        Ok(())
    }

    fn summary(&self, is_complete: bool, world: usize) -> Summary {
        Summary {
            settings: self.job.settings.clone(),
            samples: self.job.samples.len(),
            samples_hash: digest(self.job.samples),
            steps: self.optimizer.steps,
            is_complete,
            parameters: self.optimizer.values.len(),
            world,
            epoch_losses: record::epoch_means(&self.rows),
            agreement: None,
            seconds: self.seconds(),
        }
    }

    /// Writes the result and the record of its training. The checkpoint is removed when no step is
    /// left.
    fn write(&self, model: &dyn Model, summary: &Summary) -> Result<()> {
        let training = serde_json::to_value(summary).expect("a summary is JSON");
        let made = Made { base_model: self.job.base_model, model: model.config(), training: &training };
        self.pupil.write(self.job.out, &made)?;
        let title = format!("Loss of {} over {} samples", self.pupil.name(), summary.samples);
        let mut files = vec![("training.json", serde_json::to_string_pretty(&training).expect("JSON"))];
        if !self.rows.is_empty() {
            files.push(("loss.csv", record::csv(&self.rows)));
            files.push(("loss.svg", record::svg(&self.rows, &title, self.pupil.loss_name())));
        }
        for (name, text) in files {
            let path = self.job.out.join(name);
            write_whole(&path, text.as_bytes()).map_err(|cause| Error::Write { path, cause })?;
        }
        let path = self.job.out.join(FILE);
        if summary.is_complete && path.exists() {
            std::fs::remove_file(&path).map_err(|cause| Error::Write { path, cause })?;
        }
        Ok(())
    }
}

/// Initial values of a student.
fn values(pupil: &dyn Pupil) -> Result<Vec<f64>> {
    let mut values = Vec::new();
    for parameter in pupil.parameters() {
        values.extend(parameter.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?);
    }
    Ok(values)
}
