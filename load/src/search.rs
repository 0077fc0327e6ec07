//! The search for the rate at which a queue begins to grow.

/// Maximum ratio of the two rates at the search's end: the one at which the queue grows, over the
/// other.
const NEAR: f64 = 1.05;

/// Number of doublings, or halvings, of the rate before the search gives up.
const STEPS: usize = 10;

/// Two rates, in requests a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Found {
    /// The least rate at which the queue grew; absent where it grew at none.
    pub growing: Option<f64>,
    /// The largest rate below at which it did not; absent where it grew at all.
    pub steady: Option<f64>,
}

/// Doubles the rate until the queue grows, or halves it until it does not, then tries the geometric
/// mean of the two until they are near.
///
/// # Errors
/// Fails as the trial of a rate does.
pub fn search<E>(first: f64, mut grows: impl FnMut(f64) -> Result<bool, E>) -> Result<Found, E> {
    let mut found = Found::default();
    let mut rate = first;
    for _ in 0..=STEPS {
        if grows(rate)? {
            found.growing = Some(rate);
            rate /= 2.0;
        } else {
            found.steady = Some(rate);
            rate *= 2.0;
        }
        if let (Some(_), Some(_)) = (found.growing, found.steady) {
            break;
        }
    }
    while let (Some(growing), Some(steady)) = (found.growing, found.steady) {
        if growing <= steady * NEAR {
            break;
        }
        let between = (growing * steady).sqrt();
        if grows(between)? { found.growing = Some(between) } else { found.steady = Some(between) }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result, and the number of tried rates, for a server with this saturation.
    fn found(first: f64, saturation: f64) -> (Found, usize) {
        let mut tried = 0;
        let grows = |rate| {
            tried += 1;
            Ok::<_, ()>(rate >= saturation)
        };
        let found = search(first, grows).unwrap();
        (found, tried)
    }

    #[test]
    fn the_saturation_is_between_two_near_rates() {
        for (first, saturation) in [(1.0, 5.3), (16.0, 0.7), (1.0, 1.0), (3.0, 3.01), (1.0, 900.0)] {
            let (found, tried) = found(first, saturation);
            let (growing, steady) = (found.growing.unwrap(), found.steady.unwrap());
            assert!(steady < saturation && saturation <= growing, "{saturation}: {found:?}");
            assert!(growing <= steady * NEAR, "{saturation}: {found:?}");
            assert!(tried <= 16, "{saturation}: {tried} windows");
        }
    }

    #[test]
    fn what_is_not_found_is_left_open() {
        let (never, tried) = found(1.0, f64::INFINITY);
        assert_eq!((never, tried), (Found { growing: None, steady: Some(1024.0) }, 11));
        assert_eq!(found(1.0, 0.0).0, Found { growing: Some(1.0 / 1024.0), steady: None });
        assert_eq!(search(1.0, |_| Err::<bool, _>("no")), Err("no"));
    }
}
