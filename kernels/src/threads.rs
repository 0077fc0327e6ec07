//! Threads of a rank for additional work.

use crate::error::Result;

/// A pool of threads, as many as the pool of the thread that made it.
pub struct Threads(rayon::ThreadPool);

impl Threads {
    /// A pool in addition to this thread's, of the same size.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub fn beside(name: &'static str) -> Result<Self> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(rayon::current_num_threads())
            .thread_name(move |index| format!("{name}-{index}"));
        Ok(Self(pool.build().map_err(|error| candle_core::Error::Msg(format!("no threads for `{name}`: {error}")))?))
    }

    /// Runs `work` on these threads, kernels included, and waits for it.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.0.install(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_on_as_many_threads_as_there_are_here() {
        let own = rayon::ThreadPoolBuilder::new().num_threads(3).build().expect("a pool");
        let found = own.install(|| {
            let beside = Threads::beside("beside").expect("threads");
            let name = || std::thread::current().name().unwrap_or_default().to_owned();
            beside.run(|| (rayon::current_num_threads(), name()))
        });
        assert_eq!(found.0, 3);
        assert!(found.1.starts_with("beside-"), "{}", found.1);
    }
}
