//! Record of a training: the loss of each step as a table and as a chart.

use serde::{Deserialize, Serialize};
use tributary_charts::svg::{Axis, Legend, Plot, Scale};

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepRow {
    /// The step, from 1.
    pub step: u64,
    /// The epoch it belongs to, from 1.
    pub epoch: u64,
    /// The mean loss of its samples.
    pub loss: f64,
    /// Its learning rate.
    pub learning_rate: f64,
    /// The norm of its gradient, before it was shortened.
    pub gradient_norm: f64,
    /// Seconds from the training's beginning, its parts before a resume included.
    pub seconds: f64,
}

impl StepRow {
    /// The step of `steps` steps, in words.
    pub fn text(&self, steps: u64) -> String {
        format!("step {} of {steps}, epoch {}, loss {:.4}", self.step, self.epoch, self.loss)
    }
}

/// Height of the chart's place for values.
const HEIGHT: f64 = 260.0;

/// The table, a line a step.
pub fn csv(rows: &[StepRow]) -> String {
    let mut text = "step,epoch,loss,learning_rate,gradient_norm,seconds\n".to_owned();
    for StepRow { step, epoch, loss, learning_rate, gradient_norm, seconds } in rows {
        text += &format!("{step},{epoch},{loss},{learning_rate},{gradient_norm},{seconds:.3}\n");
    }
    text
}

/// The mean loss of each epoch, from the first.
pub fn epoch_means(rows: &[StepRow]) -> Vec<f64> {
    let last = rows.iter().map(|row| row.epoch).max().unwrap_or(0);
    let mean = |epoch: u64| {
        let own: Vec<f64> = rows.iter().filter(|row| row.epoch == epoch).map(|row| row.loss).collect();
        own.iter().sum::<f64>() / own.len().max(1) as f64
    };
    (1..=last).map(mean).collect()
}

/// The chart: every step's loss, named `loss`, and each epoch's mean.
pub fn svg(rows: &[StepRow], title: &str, loss: &str) -> String {
    let last = rows.last().map_or(1, |row| row.step) as f64;
    let per_epoch = last / rows.last().map_or(1, |row| row.epoch).max(1) as f64;
    let legend = [(0, "a step".to_owned()), (1, "mean of an epoch".to_owned())];
    let mut plot = Plot::new(title, loss, &legend, Legend::Mark, HEIGHT);
    let across = Scale::linear(last, plot.across());
    let up = Scale::log(rows.iter().map(|row| row.loss), plot.up());
    plot.horizontal(&across, &Axis::new("step"));
    plot.vertical(&up, &Axis::new("loss [nats]"));
    let means = epoch_means(rows);
    let steps = rows.iter().map(|row| (row.step as f64, row.loss)).collect();
    let epochs = means.iter().enumerate().map(|(epoch, &loss)| ((epoch as f64 + 0.5) * per_epoch, loss)).collect();
    for (series, points) in [steps, epochs].into_iter().enumerate() {
        let points: Vec<(f64, f64)> = points;
        let seen = points.iter().filter(|(_, loss)| *loss > 0.0);
        let places: Vec<(f64, f64)> = seen.map(|&(x, loss)| (across.at(x), up.at(loss))).collect();
        plot.drawing.path(&places, false, &format!("curve s{series}"));
    }
    plot.finish("loss").alone()
}
