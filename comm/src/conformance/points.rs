//! Checks of control points: every rank gets the same word at each, and a cancelled request ends at
//! one point on all of them.

use candle_core::{DType, Device, Tensor};
use tributary_protocol::Word;

use super::outcome::{Check, count_of, said};
use crate::{Communicator, Signals};

/// Points of a request.
const POINTS: u64 = 5;

/// Points while calls are in flight, then a request that rank 0 cancels at some point, with a call
/// that no rank waits for. Resets the counters.
pub(super) fn points(comm: &mut dyn Communicator, device: &Device) -> Check {
    let (points, signals, rows) = (comm.points(), Signals::default(), vec![1; comm.size()]);
    if comm.rank() == 0 {
        points.listen(&signals);
    }
    let mine = said(
        Tensor::ones((1, 3), DType::F32, &Device::Cpu)
            .and_then(|ones| ones.to_device(device))
            .map_err(crate::Error::from),
    )?;
    // Requests have the number 0, the number of an order that nothing followed.
    points.begin(0);
    for _ in 0..POINTS {
        let pending = said(comm.start_all_gather_v(&mine, &rows))?;
        told(said(points.pass())?, Word::Continue)?;
        said(comm.wait(pending))?;
    }
    if points.count() != POINTS {
        return Err(format!("{} points of {POINTS}", points.count()));
    }
    points.begin(0);
    let mut passed = 0;
    let pending = said(comm.start_all_gather_v(&mine, &rows))?;
    drop(pending);
    loop {
        if comm.rank() == 0 && passed == 2 {
            signals.cancel(0);
        }
        if said(points.pass())? == Word::Cancel {
            break;
        }
        passed += 1;
    }
    if (passed, points.count()) != (2, 3) {
        return Err(format!("cancelled after {passed} points, of which {} were counted", points.count()));
    }
    said(comm.finish_started())?;
    let gathered = said(comm.all_gather_v(&mine, &rows))?;
    comm.reset_traffic();
    count_of("a gather after one that no rank waited for", gathered.len(), comm.size())
}

fn told(word: Word, wanted: Word) -> Check {
    if word == wanted { Ok(()) } else { Err(format!("{word:?} at a point, not {wanted:?}")) }
}
