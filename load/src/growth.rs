//! Whether a queue grows over a window: requests in flight over time, and the slope of their
//! number.

use schemars::JsonSchema;
use serde::Serialize;

use crate::sample::{Outcome, Sample};

/// Number of parts of a window, each with its mean number of requests in flight.
const PARTS: usize = 20;

/// Share of a window that is left out at its beginning: the first requests find the server idle.
const LEFT_OUT: f64 = 0.1;

/// Number of its standard errors that the slope must exceed.
const STANDARD_ERRORS: f64 = 3.0;

/// Least growth of the number of requests in flight from the first quarter to the last.
const MORE_IN_FLIGHT: f64 = 1.0;

/// The share of requests that were turned away, not sent or out of time from which on a server has
/// more than it can take: a queue that is full does not grow.
const TURNED_AWAY: f64 = 0.01;

/// Whether requests came faster than they were answered.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Growth {
    /// Slope of the number of requests in flight, in requests a second, by least squares.
    pub slope_per_second: f64,
    /// Its standard error, with regard to the part of a deviation that lasts into the next part of
    /// the window.
    pub standard_error: f64,
    /// Mean number of requests in flight in the first quarter of the examined time.
    pub first_in_flight: f64,
    /// In the last quarter.
    pub last_in_flight: f64,
    /// Share of requests that got no whole answer: turned away, failed, or not sent.
    pub turned_away: f64,
    /// Whether the queue grows.
    pub grows: bool,
}

/// The rule, for a reader.
pub const RULE: &str = "the slope of requests in flight over the last nine tenths of a window, in 20 parts, is above 0 by more than three of \
    its standard errors (with lag-one autocorrelation), and one request more is in flight in the last quarter than in the first; or one \
    request in a hundred gets no whole answer: it is turned away, fails, or is not sent";

/// Mean number of requests in flight, and of those of them that wait for their first text, between
/// two times in seconds.
pub fn in_flight(samples: &[Sample], from: f64, to: f64) -> (f64, f64) {
    let overlap = |begin: f64, end: f64| (end.min(to) - begin.max(from)).max(0.0);
    let sent = samples.iter().filter(|sample| sample.sent.is_some());
    let (all, waiting) = sent.fold((0.0, 0.0), |(all, waiting), sample| {
        let first = sample.parts.first().copied().unwrap_or(sample.ended);
        (all + overlap(sample.planned, sample.ended), waiting + overlap(sample.planned, first))
    });
    (all / (to - from), waiting / (to - from))
}

/// Growth in a window in which requests were sent for `seconds` seconds.
pub fn growth(samples: &[Sample], seconds: f64) -> Growth {
    // One request alone is no time.
    let seconds = seconds.max(1e-3);
    let part = seconds * (1.0 - LEFT_OUT) / PARTS as f64;
    let from = |index: usize| seconds * LEFT_OUT + index as f64 * part;
    let numbers: Vec<f64> = (0..PARTS).map(|index| in_flight(samples, from(index), from(index + 1)).0).collect();
    let (slope, standard_error) = slope(&numbers);
    let quarter = PARTS / 4;
    let mean = |numbers: &[f64]| numbers.iter().sum::<f64>() / numbers.len() as f64;
    let (first, last) = (mean(&numbers[..quarter]), mean(&numbers[PARTS - quarter..]));
    let lost = samples.iter().filter(|sample| sample.outcome != Outcome::Answered).count();
    let turned_away = lost as f64 / samples.len().max(1) as f64;
    let rises = slope > STANDARD_ERRORS * standard_error && last - first >= MORE_IN_FLIGHT;
    Growth {
        slope_per_second: slope / part,
        standard_error: standard_error / part,
        first_in_flight: first,
        last_in_flight: last,
        turned_away,
        grows: rises || turned_away >= TURNED_AWAY,
    }
}

/// Slope of numbers from one to the next by least squares, and its standard error. Deviations are
/// correlated: with r the correlation of a deviation with the next, the error is larger by √((1 +
/// r) / (1 − r)) than that of independent numbers.
fn slope(numbers: &[f64]) -> (f64, f64) {
    let count = numbers.len() as f64;
    let (middle, mean) = ((count - 1.0) / 2.0, numbers.iter().sum::<f64>() / count);
    let centred = || numbers.iter().enumerate().map(|(index, number)| (index as f64 - middle, number - mean));
    let squares: f64 = centred().map(|(x, _)| x * x).sum();
    let slope = centred().map(|(x, y)| x * y).sum::<f64>() / squares;
    let deviations: Vec<f64> = centred().map(|(x, y)| y - slope * x).collect();
    let square_sum: f64 = deviations.iter().map(|deviation| deviation * deviation).sum();
    if square_sum <= 0.0 {
        return (slope, 0.0);
    }
    let lasting = deviations.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / square_sum;
    let lasting = lasting.clamp(0.0, 0.9);
    let error = (square_sum / (count - 2.0) / squares).sqrt();
    (slope, error * ((1.0 + lasting) / (1.0 - lasting)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draws::Arrivals;
    use crate::window::Window;

    /// Requests with these times of beginning and end.
    fn samples(times: impl Iterator<Item = (f64, f64)>) -> Vec<Sample> {
        let sample = |(number, (planned, ended))| Sample {
            sent: Some(planned),
            ended,
            outcome: Outcome::Answered,
            ..Sample::new(number, planned)
        };
        times.enumerate().map(sample).collect()
    }

    /// Samples of Poisson arrivals of a rate at a server that takes one request at a time, for a
    /// second each.
    fn queue(seed: u64, rate: f64, seconds: f64) -> Vec<Sample> {
        let mut free = 0.0f64;
        let arrivals = Arrivals::new(seed, rate).map(|time| time.as_secs_f64()).take_while(|time| *time < seconds);
        samples(arrivals.map(|planned| {
            free = free.max(planned) + 1.0;
            (planned, free)
        }))
    }

    #[test]
    fn requests_in_flight_are_counted_by_their_time() {
        let mut all = samples([(0.0, 4.0), (1.0, 2.0), (3.0, 9.0)].into_iter());
        all[2].parts = vec![3.5];
        assert_eq!(in_flight(&all, 0.0, 2.0), (1.5, 1.5));
        assert_eq!(in_flight(&all, 3.0, 5.0), (1.5, 0.75));
        all[0].sent = None;
        assert_eq!(in_flight(&all, 0.0, 2.0).0, 0.5, "what is not sent is not in flight");
    }

    #[test]
    fn a_queue_that_grows_is_told_from_one_that_does_not() {
        const SEEDS: u64 = 200;
        let growing = |rate: f64| {
            (0..SEEDS).filter(|&seed| growth(&queue(seed, rate, 300.0), 300.0).grows).count() as f64 / SEEDS as f64
        };
        let (half, most, more, twice) = (growing(0.5), growing(0.8), growing(1.3), growing(2.0));
        println!("found to grow: {half} at half of saturation, {most} at 0.8, {more} at 1.3, {twice} at 2 times");
        assert!(half <= 0.04, "at half of saturation: {half}");
        assert!(most <= 0.15, "at 0.8: {most}");
        assert!(more >= 0.9, "at 1.3: {more}");
        assert!(twice >= 0.99, "at twice: {twice}");
    }

    #[test]
    fn a_queue_that_empties_behind_the_last_request_has_grown() {
        let all = queue(1, 2.0, 300.0);
        let (count, last_end) = (all.len(), all.iter().map(|sample| sample.ended).fold(0.0, f64::max));
        let window = Window::of(all, None, Some(count));
        assert_eq!(window.seconds, last_end);
        assert!(last_end > 500.0 && window.sent_seconds < 300.0, "{} of {last_end}", window.sent_seconds);
        let found = growth(&window.samples, window.sent_seconds);
        assert!(found.grows && (found.slope_per_second - 1.0).abs() < 0.2, "{found:?}");
        let one = growth(&queue(1, 1.0, 300.0)[..1], 0.0);
        assert!(one.slope_per_second.is_finite() && !one.grows, "{one:?}");
    }

    #[test]
    fn series_that_are_made_up_are_told_apart() {
        let of = |gap: f64, held: fn(f64) -> f64| {
            let times = (0..(100.0 / gap) as usize).map(|index| index as f64 * gap);
            growth(&samples(times.map(|planned| (planned, planned + held(planned)))), 100.0)
        };
        let flat = of(0.1, |_| 2.0);
        assert!(!flat.grows && flat.slope_per_second.abs() < 1e-6, "{flat:?}");
        let noisy = of(0.1, |planned| 2.0 + (planned * 7.0).sin());
        assert!(!noisy.grows, "{noisy:?}");
        let growing = of(0.1, |planned| 2.0 + planned / 4.0);
        assert!(growing.grows && growing.slope_per_second > 1.0, "{growing:?}");
        let falling = of(0.1, |planned| 8.0 - planned / 20.0);
        assert!(falling.slope_per_second < 0.0 && !falling.grows, "{falling:?}");
        // A rise that is certain and too small to matter.
        let hardly = of(1.0, |planned| 2.0 + planned / 200.0);
        assert!(!hardly.grows, "{hardly:?}");
    }

    #[test]
    fn a_full_queue_does_not_grow_and_is_too_much_all_the_same() {
        let mut all = queue(1, 0.5, 300.0);
        assert!(!growth(&all, 300.0).grows);
        let every = all.len() / 3;
        all.iter_mut().step_by(every).for_each(|sample| sample.outcome = Outcome::Status(429));
        let full = growth(&all, 300.0);
        assert!(full.grows && full.turned_away >= 0.02, "{full:?}");
        // A server that is gone ends every request at once, and has no queue.
        all.iter_mut().for_each(|sample| (sample.outcome, sample.ended) = (Outcome::Connect, sample.planned));
        let gone = growth(&all, 300.0);
        assert!(gone.grows && gone.turned_away == 1.0, "{gone:?}");
    }
}
