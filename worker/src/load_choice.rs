//! The choice between reading and computing each of a request's stored chunks on a rank. Both run
//! at the same time, and the choice minimises the time until both are done. Pure arithmetic on
//! estimates.

/// Factor by which computing must be expected to win before a chunk is computed in place of being
/// read: estimates are off by as much.
const MARGIN: f64 = 1.1;

/// Expected times of a stored chunk, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// Time to read it.
    pub read_s: f64,
    /// Time to compute it.
    pub computed_s: f64,
}

/// Whether each of these chunks is to be read. Chunks that are stored nowhere take `computed_s` to
/// compute. Reading takes no time from computing: the longer of the two counts.
pub fn read(chunks: &[Expected], computed_s: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..chunks.len()).collect();
    // Chunks that gain most by being read come first.
    let gain = |&index: &usize| chunks[index].computed_s / chunks[index].read_s.max(f64::MIN_POSITIVE);
    order.sort_by(|a, b| gain(b).total_cmp(&gain(a)).then(a.cmp(b)));
    let all_read: f64 = chunks.iter().map(|chunk| chunk.read_s).sum();
    let (mut read_s, mut computing_s) = (all_read, computed_s);
    let (mut best, mut best_s) = (chunks.len(), all_read.max(computed_s) / MARGIN);
    for count in (0..chunks.len()).rev() {
        let chunk = chunks[order[count]];
        (read_s, computing_s) = (read_s - chunk.read_s, computing_s + chunk.computed_s);
        let seconds = read_s.max(computing_s);
        if seconds < best_s {
            (best, best_s) = (count, seconds);
        }
    }
    let mut is_read = vec![false; chunks.len()];
    order[..best].iter().for_each(|&index| is_read[index] = true);
    is_read
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(of: &[(f64, f64)]) -> Vec<Expected> {
        of.iter().map(|&(read_s, computed_s)| Expected { read_s, computed_s }).collect()
    }

    #[test]
    fn reading_and_computing_end_together() {
        let count = |of: &[(f64, f64)], beside: f64| read(&chunks(of), beside).iter().filter(|read| **read).count();
        assert_eq!(count(&[(0.01, 1.0); 8], 0.0), 8, "reading is much faster");
        assert_eq!(count(&[(1.0, 0.01); 8], 0.0), 0, "computing is much faster");
        assert_eq!(count(&[(1.0, 1.0); 8], 0.0), 4, "half each");
        assert_eq!(count(&[(1.0, 3.0); 8], 0.0), 6, "two take as long to compute as six to read");
        assert_eq!(count(&[(1.0, 1.0); 8], 100.0), 8, "computing has enough to do");
        assert_eq!(count(&[(1.0, 0.95)], 0.0), 1, "estimates are not that good");
        assert_eq!(count(&[], 3.0), 0);
    }

    #[test]
    fn those_are_read_that_gain_most() {
        let is_read = read(&chunks(&[(1.0, 1.0), (1.0, 10.0), (1.0, 1.0), (1.0, 10.0)]), 0.0);
        assert!(is_read[1] && is_read[3], "{is_read:?}");
        assert_eq!(is_read.iter().filter(|read| **read).count(), 2);
    }
}
