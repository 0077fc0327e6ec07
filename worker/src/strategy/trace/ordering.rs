//! Order of chunks by their needs: ranked pairs (Tideman's rule), then as near to the request's
//! order as the pairs allow.

/// The order of `chunks` chunks in which a chunk stands after those that it needs, unless a
/// stronger need contradicts. `needs` has (chunk, needed chunk, strength).
///
/// Needs above 0 are taken by descending strength, ties the lower chunk and then the lower needed
/// one. "The needed one before the other" is locked unless the locks already imply the opposite,
/// directly or through others. Then, repeatedly, the first chunk of the request's order follows
/// whose needed chunks are all placed.
pub(super) fn ranked_pairs(chunks: usize, needs: &[(u32, u32, f64)]) -> Vec<u32> {
    let mut ranked: Vec<&(u32, u32, f64)> = needs.iter().filter(|need| need.2 > 0.0).collect();
    ranked.sort_by(|a, b| b.2.total_cmp(&a.2).then((a.0, a.1).cmp(&(b.0, b.1))));
    let mut needed: Vec<Vec<u32>> = vec![Vec::new(); chunks]; // by each chunk
    for &&(chunk, before, _) in &ranked {
        if !stands_after(&needed, before, chunk) {
            needed[chunk as usize].push(before);
        }
    }
    let (mut order, mut is_out) = (Vec::with_capacity(chunks), vec![false; chunks]);
    while order.len() < chunks {
        let is_free = |&chunk: &usize| !is_out[chunk] && needed[chunk].iter().all(|&before| is_out[before as usize]);
        let next = (0..chunks).find(is_free).expect("locks make no circle, so that one chunk is free");
        is_out[next] = true;
        order.push(next as u32);
    }
    order
}

/// Whether the locks imply that `chunk` stands after `other`.
fn stands_after(needed: &[Vec<u32>], chunk: u32, other: u32) -> bool {
    let (mut open, mut seen) = (vec![chunk], vec![false; needed.len()]);
    while let Some(next) = open.pop() {
        if next == other {
            return true;
        }
        if !std::mem::replace(&mut seen[next as usize], true) {
            open.extend(&needed[next as usize]);
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chunk, the one that it needs, and the strength of the need.
    type Needed = (u32, u32, f64);

    #[test]
    fn needed_chunks_stand_first_and_the_others_stay() {
        let table: [(&[Needed], &[u32]); 8] = [
            (&[], &[0, 1, 2, 3]),
            (&[(1, 0, 0.5)], &[0, 1, 2, 3]),
            (&[(0, 3, 0.5)], &[1, 2, 3, 0]),
            (&[(0, 1, 0.5), (1, 3, 0.4)], &[2, 3, 1, 0]),
            (&[(0, 3, 0.0), (3, 0, -0.0), (1, 2, -1.0)], &[0, 1, 2, 3]),
            // A circle: the weakest of the three needs gives way.
            (&[(0, 1, 0.5), (1, 2, 0.4), (2, 0, 0.3)], &[2, 1, 0, 3]),
            (&[(0, 1, 0.3), (1, 2, 0.4), (2, 0, 0.5)], &[0, 2, 1, 3]),
            // A tie goes to the lower chunk, then to the lower needed one.
            (&[(1, 0, 0.5), (0, 1, 0.5)], &[1, 0, 2, 3]),
        ];
        for (needs, order) in table {
            assert_eq!(ranked_pairs(4, needs), order, "{needs:?}");
        }
    }
}
