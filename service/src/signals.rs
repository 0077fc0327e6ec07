//! What tells a service to end.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Exit code of a process that was told twice to end: that of SIGTERM.
const TERMINATED: i32 = 143;

/// Tells the service to end when the process is told to; a second time ends the process. SIGUSR1 only asks: it is what launchers pass
/// to every rank. It must be called inside the runtime that listens.
///
/// # Errors
/// The system has no signal handler to give.
pub fn listen(drain: watch::Sender<bool>) -> std::io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut asked = signal(SignalKind::user_defined1())?;
    tokio::spawn(async move {
        let mut already = false;
        loop {
            let demands = tokio::select! {
                _ = terminate.recv() => true,
                _ = interrupt.recv() => true,
                _ = asked.recv() => false,
            };
            if already && demands {
                std::process::exit(TERMINATED);
            }
            already = true;
            // A service that has ended need not be told.
            let _ = drain.send(true);
        }
    });
    Ok(())
}
