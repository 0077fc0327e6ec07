//! The ranks of a process, each on its own threads.

/// Calls `work` with each of `seats` on its own thread, whose kernels have `threads` threads. Gives
/// the first answer, or the first failure that no other failure caused.
///
/// # Errors
/// Returns an error if a rank fails, or if no thread can be started.
///
/// # Panics
/// Panics if there is no seat, or if a rank panics.
pub fn on_threads<S, T, E>(
    seats: Vec<S>,
    threads: usize,
    work: impl Fn(S) -> Result<T, E> + Sync,
    is_consequence: impl Fn(&E) -> bool,
) -> Result<T, E>
where
    S: Send,
    T: Send,
    E: Send + From<rayon::ThreadPoolBuildError>,
{
    let one = |seat: S| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        pool.install(|| work(seat))
    };
    let found: Vec<Result<T, E>> = std::thread::scope(|scope| {
        let one = &one;
        let ranks: Vec<_> = seats.into_iter().map(|seat| scope.spawn(move || one(seat))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let (mut first, mut failures) = (None, Vec::new());
    for one in found {
        match one {
            Ok(answer) => first = first.or(Some(answer)),
            Err(error) => failures.push(error),
        }
    }
    let cause = failures.iter().position(|error| !is_consequence(error)).unwrap_or(0);
    match failures.is_empty() {
        true => Ok(first.expect("there is a rank at least")),
        false => Err(failures.swap_remove(cause)),
    }
}
