//! Signals that end a service.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Exit code of a process that got two signals to end: that of SIGTERM.
const TERMINATED: i32 = 143;

/// Ends the service at the first signal, and the process at a second one. SIGUSR1, which launchers
/// pass to every rank, never ends the process. It must be called inside the runtime that listens.
///
/// # Errors
/// Returns an error if no signal handler can be installed.
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
            // The service may have ended already.
            let _ = drain.send(true);
        }
    });
    Ok(())
}
