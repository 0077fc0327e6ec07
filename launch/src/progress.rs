//! Progress on standard error for work that takes longer than a second; nothing where that is no
//! terminal.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time before the line is shown, and interval at which it is drawn anew.
const SECOND: Duration = Duration::from_secs(1);

/// A line that shows the current work, until it is dropped.
pub struct Progress {
    bar: ProgressBar,
    /// Dropping it ends the waiting for the line's first appearance.
    end: Option<Sender<()>>,
    waiter: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts; the line appears after a second.
    pub fn start(what: &str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        let (end, ended) = channel();
        let line = bar.clone();
        let show = move || {
            if ended.recv_timeout(SECOND) == Err(RecvTimeoutError::Timeout) {
                line.set_draw_target(ProgressDrawTarget::stderr());
                line.enable_steady_tick(SECOND);
            }
        };
        // Without a thread there is no progress to be seen, and nothing else is wrong.
        let waiter = std::thread::Builder::new().name("progress".to_owned()).spawn(show).ok();
        Self { bar, end: Some(end), waiter }
    }

    /// Sets the current work.
    pub fn now(&self, what: String) {
        self.bar.set_message(what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end.take();
        if let Some(waiter) = self.waiter.take() {
            // It does not panic; and if it did, there would be no line to take away.
            let _ = waiter.join();
        }
        self.bar.finish_and_clear();
    }
}
