//! Clients that wait for answers of this process. A failure that ends it first sends them the
//! error, and the process stays for a moment until they have it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tributary_comm::Alarm;
use tributary_comm::mpi::Ender;
use tributary_protocol::Event;

use crate::marker;

/// Time that a failed process stays for its clients. A launcher may leave it less.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Why a group ends whose service was given time to end, and how long processes may take to leave
/// MPI then.
const OVERTIME: &str = "the time to drain is over";
const LEAVE_LIMIT: Duration = Duration::from_millis(500);

/// The waiting clients, and the way to the coordinator, which sends them errors. Clones are of the
/// same audience.
#[derive(Debug, Clone, Default)]
pub struct Audience(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    left: Condvar,
    /// Ends the group, where ranks are processes.
    ender: OnceLock<Ender>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of threads that serve clients.
    present: usize,
    /// The way to the coordinator beside rank 0's own, until it has been used.
    alarm: Option<Alarm>,
}

/// A thread that serves clients: while this is held, the end of this process because of a failure
/// waits for it, for a moment.
#[derive(Debug)]
pub struct Attendance(Audience);

/// The time in which the coordinator can be reached beside rank 0's own way.
#[derive(Debug)]
pub struct Reach(Audience);

impl Audience {
    /// The audience of a process whose group this ends.
    pub fn of(ender: Ender) -> Self {
        let audience = Self::default();
        // It is new.
        let _ = audience.0.ender.set(ender);
        audience
    }

    /// Says that this thread serves clients.
    pub fn attend(&self) -> Attendance {
        self.state().present += 1;
        Attendance(self.clone())
    }

    /// Makes the coordinator reachable until the returned value is dropped: while a second sender
    /// lives, the coordinator does not see that rank 0 is gone.
    pub fn reached_by(&self, alarm: Alarm) -> Reach {
        self.state().alarm = Some(alarm);
        Reach(self.clone())
    }

    /// Notifies the coordinator of the group's end, if a thread serves clients. They must get it
    /// now: rank 0 itself may compute for long before it looks up. Only the first call counts.
    pub fn tell(&self, rank: usize, exit_code: u8, cause: impl FnOnce() -> String) {
        let mut state = self.state();
        if state.present == 0 {
            return;
        }
        let alarm = state.alarm.take();
        drop(state);
        if let Some(alarm) = alarm {
            // The coordinator may have gone: then the message has no receiver.
            let _ = alarm.send(Event::Failed { request: 0, rank, exit_code, cause: cause() });
        }
    }

    /// Waits until no thread serves clients any more, for a moment at most.
    pub fn let_out(&self) {
        let waited = self.0.left.wait_timeout_while(self.state(), LAST_ANSWERS, |state| state.present > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attendance {
    /// Ends this process with exit code 0, and the group with it, without waiting for the ranks'
    /// computation. Clients have got their errors.
    pub fn end_process(&self) -> ! {
        marker::completed();
        if let Some(ender) = self.0.0.ender.get() {
            ender.end_in_order(OVERTIME);
            // Long before this is over the thread of MPI has ended the process, unless another one
            // does not answer.
            std::thread::sleep(LEAVE_LIMIT);
        }
        std::process::exit(0)
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        let Self(audience) = self;
        audience.state().present -= 1;
        audience.0.left.notify_all();
    }
}

impl Drop for Reach {
    fn drop(&mut self) {
        self.0.state().alarm = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tributary_comm::link;

    use super::*;

    #[test]
    fn the_coordinator_hears_the_first_word_if_somebody_serves_clients() {
        let (coordinator, worker) = link(4);
        let audience = Audience::default();
        let reach = audience.reached_by(worker.alarm());
        audience.tell(1, 69, || "it has no receiver".to_owned());
        assert_eq!(coordinator.next(Duration::ZERO), Ok(None));
        let attendance = audience.attend();
        audience.tell(1, 69, || "it has died".to_owned());
        audience.tell(0, 75, || "a consequence".to_owned());
        let told = Event::Failed { request: 0, rank: 1, exit_code: 69, cause: "it has died".to_owned() };
        assert_eq!(coordinator.next(Duration::ZERO), Ok(Some(told)));
        assert_eq!(coordinator.next(Duration::ZERO), Ok(None));
        drop((worker, reach, attendance));
        assert!(coordinator.next(Duration::ZERO).is_err(), "a missing rank 0 is seen");
    }

    #[test]
    fn the_end_waits_for_those_who_serve_clients_and_not_for_ever() {
        let audience = Audience::default();
        audience.let_out();
        let attendance = audience.attend();
        let (ends, began) = (audience.clone(), Instant::now());
        let end = std::thread::spawn(move || {
            ends.let_out();
            began.elapsed()
        });
        let rest = Duration::from_millis(100);
        std::thread::sleep(rest);
        assert!(!end.is_finished(), "a thread serves clients");
        drop(attendance);
        assert!(end.join().expect("it does not panic") >= rest);
        let (_stays, began) = (audience.attend(), Instant::now());
        audience.let_out();
        assert!(began.elapsed() >= LAST_ANSWERS);
    }
}
