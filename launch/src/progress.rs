//! Progress on standard error for what takes longer than a second; nothing where that is no terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A line that tells what is going on, until it is dropped.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Starts; the line appears after a second.
    pub fn start(what: &str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_secs(1));
        Self { bar }
    }

    /// Tells what is going on now.
    pub fn now(&self, what: String) {
        self.bar.set_message(what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
