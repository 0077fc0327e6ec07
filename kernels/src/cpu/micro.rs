//! Register-blocked products: a few rows against a few vectors, all sums in registers.

// Loops over register blocks count, so that they read like the products they are and unroll whole.
#![allow(clippy::needless_range_loop)]

use super::lanes::{CausalPosition, Lanes, PANEL, PART, STRIP, TILE};
use super::stored::Factor;

/// The orders, segments and rotary positions that mask a panel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mask<'a> {
    keys: [&'a [u32]; 3],
    places: &'a [CausalPosition],
    /// A bit for each part of the panel of which some row does not see some key.
    parts: u32,
}

impl<'a> Mask<'a> {
    /// The numbers of the panel's keys ([`KeyList::of_panel`](super::sight::KeyList::of_panel)),
    /// `places` of the strip's rows, and `parts` that are masked.
    pub(super) fn new(keys: [&'a [u32]; 3], places: &'a [CausalPosition], parts: u32) -> Self {
        assert!(keys.iter().all(|list| list.len() == PANEL), "keys of a panel");
        Self { keys, places, parts }
    }

    /// Keeps the scores of a row from `column` on for the keys that it sees, −∞ for others.
    ///
    /// # Safety
    /// From `column` on there are as many keys as a vector has lanes.
    #[inline(always)]
    pub(super) unsafe fn keep_seen<V: Lanes>(&self, scores: V, column: usize, row: usize) -> V {
        debug_assert!(column + V::N <= PANEL, "keys of a panel");
        if self.parts >> (column / PART) & 1 == 0 {
            return scores;
        }
        // SAFETY: the lists have PANEL numbers, and the caller's promise.
        unsafe { scores.keep_seen(self.keys.map(|list| list.as_ptr().add(column)), self.places[row]) }
    }
}

/// A packed strip of queries and a packed panel of keys.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    /// `[ROWS, depth]`.
    pub(super) q: *const f32,
    /// `[depth, PANEL]`.
    pub(super) k: *const f32,
    /// Numbers of a head, or pairs of them.
    pub(super) depth: usize,
    /// Nothing where every row sees every key.
    pub(super) mask: Option<Mask<'a>>,
}

/// Room for rows of numbers, `step` apart.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) at: *mut f32,
    pub(super) step: usize,
}

/// Scores of a strip against a panel or `part` of it, −∞ where masked, to these columns of the ROWS
/// rows of `to`; `top` takes in their maximum. A strip of [`STRIP`] rows has blocks of half and a
/// quarter of the width for what is left of a part; others take whole panels.
///
/// # Safety
/// The machine has the instructions of `V`; `q` is valid for `depth · ROWS` reads, `k` for
/// `depth · PANEL`, `to` for ROWS rows of PANEL writes; a mask has ROWS places; a part begins and
/// ends at a multiple of [`PART`] up to PANEL, and is the whole panel for fewer rows than a
/// strip's.
#[inline(always)]
pub(super) unsafe fn scores<V: Lanes, F: Factor<V>, const ROWS: usize>(
    operands: Operands<'_>,
    part: Option<(usize, usize)>,
    to: Room,
    top: &mut [V; ROWS],
) {
    let (mut column, end) = part.unwrap_or((0, PANEL));
    while column < end {
        // SAFETY: the caller's promises; `width` vectors from `column` on end at `end` at most,
        // since the width of every block divides PART or, with more than two vectors, PANEL.
        unsafe {
            let operands = Operands { k: operands.k.add(column), ..operands };
            let to = Room { at: to.at.add(column), ..to };
            let left = (end - column) / V::N;
            let width = match V::BLOCK {
                4.. if ROWS == STRIP && part.is_some() && left < 4 => left.min(2),
                block => block,
            };
            match width {
                1 => score_block::<V, F, ROWS, 1>(operands, column, to, top),
                2 => score_block::<V, F, ROWS, 2>(operands, column, to, top),
                _ => score_block::<V, F, ROWS, 4>(operands, column, to, top),
            }
            column += width * V::N;
        }
    }
}

/// # Safety
/// As [`scores`], for the columns from `column` on; `k` and `to` point at their first.
#[inline(always)]
unsafe fn score_block<V: Lanes, F: Factor<V>, const ROWS: usize, const WIDTH: usize>(
    operands: Operands<'_>,
    column: usize,
    to: Room,
    top: &mut [V; ROWS],
) {
    let Operands { q, k, depth, mask } = operands;
    // SAFETY: the caller's promises; a mask has PANEL keys, and `column` leaves room for WIDTH
    // vectors.
    unsafe {
        let mut acc = [[V::splat(0.0); WIDTH]; ROWS];
        product::<V, F, ROWS, WIDTH>(&mut acc, (q, depth, 1), (k, PANEL), depth);
        for r in 0..ROWS {
            for i in 0..WIDTH {
                let mut score = acc[r][i];
                if let Some(mask) = mask {
                    score = mask.keep_seen(score, column + i * V::N, r);
                }
                top[r] = top[r].max(score);
                score.store(to.at.add(r * to.step + i * V::N));
            }
        }
    }
}

/// `acc += a · b`. `a` is (pointer, step from row to row, step from depth to depth), `b` (pointer,
/// step from depth to depth); all of `acc` stays in registers.
///
/// # Safety
/// The machine has the instructions of `V`; `a` is valid for ROWS × `depth` reads, `b` for `depth`
/// rows of WIDTH vectors.
#[inline(always)]
pub(super) unsafe fn product<V: Lanes, F: Factor<V>, const ROWS: usize, const WIDTH: usize>(
    acc: &mut [[V; WIDTH]; ROWS],
    (a, a_row, a_step): (*const f32, usize, usize),
    (b, b_step): (*const f32, usize),
    depth: usize,
) {
    // SAFETY: the caller's promises; d < depth, r < ROWS, i < WIDTH.
    unsafe {
        for d in 0..depth {
            let mut right = [V::splat(0.0); WIDTH];
            for i in 0..WIDTH {
                right[i] = V::load(b.add(d * b_step + i * V::N));
            }
            for r in 0..ROWS {
                let left = V::splat(*a.add(r * a_row + d * a_step));
                for i in 0..WIDTH {
                    acc[r][i] = F::multiply(left, right[i], acc[r][i]);
                }
            }
        }
    }
}

/// As [`product`] with probabilities on the left, but a probability of 0 adds nothing, even where
/// the value is infinite or NaN: a row's result never depends on a key that it does not see.
///
/// # Safety
/// As [`product`]; `p` has ROWS rows, TILE apart.
#[inline(always)]
pub(super) unsafe fn careful_product<V: Lanes, F: Factor<V>, const ROWS: usize, const WIDTH: usize>(
    acc: &mut [[V; WIDTH]; ROWS],
    p: *const f32,
    (v, v_step): (*const f32, usize),
    depth: usize,
) {
    // SAFETY: the caller's promises; d < depth, r < ROWS, i < WIDTH.
    unsafe {
        for d in 0..depth {
            for r in 0..ROWS {
                let weight = *p.add(r * TILE + d);
                for i in 0..WIDTH {
                    acc[r][i] = F::add_weighted(weight, V::load(v.add(d * v_step + i * V::N)), acc[r][i]);
                }
            }
        }
    }
}
