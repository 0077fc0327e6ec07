//! The innermost part: a strip of six rows against a tile of keys. Scores, their maximum,
//! exponential and sum, and the product with the values, all while the strip's probabilities stay
//! in the nearest cache.
//!
//! A row is one head of one query; the heads that share a KV head are stacked, so a packed key
//! serves all of them.

// Loops over register blocks count, so that they read like the products they are and unroll whole.
#![allow(clippy::needless_range_loop)]

use super::lanes::{CausalPosition, Lanes, PANEL, PART, STRIP, TILE, TILE_PANELS, WIDEST};
use super::level::EitherKernel;
use super::micro::{Mask, Operands, Room, careful_product, product, scores};
use super::sight::{Seen, Sight};
use super::stored::Factor;

/// log₂ e: scores are kept in units of log₂, so that the exponential is a power of two.
pub(super) const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// A row that has seen no key yet: so low that every score is above it, and finite, so that −∞
/// minus it is −∞.
pub(super) const LOWEST: f32 = f32::MIN;

/// Up to [`TILE_PANELS`] packed panels of keys and values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tile<'a> {
    /// A panel after the other, each `[depth, PANEL]` in room for `[padded_dim, PANEL]`.
    pub(super) k: &'a [f32],
    /// `[panels · PANEL, padded_dim]`, half as many rows of pairs.
    pub(super) v: &'a [f32],
    /// Order, segment and rotary position of the keys, PANEL a panel.
    pub(super) of_keys: [[&'a [u32]; 3]; TILE_PANELS],
    /// Keys in each panel that are there; 0 for panels beyond the last.
    pub(super) keys: [usize; TILE_PANELS],
    /// Numbers of a head, or pairs of them.
    pub(super) depth: usize,
    pub(super) padded_dim: usize,
    /// Whether all values are finite: 0 · v is then 0, and a key that is not seen may take part
    /// with weight 0.
    pub(super) finite: bool,
}

/// Up to [`STRIP`] rows, and their softmax and output so far; in tile registers more, in whole
/// blocks ([`super::strip_amx::AbsorbInTiles`]).
pub(super) struct Strip<'a> {
    /// `[rows, depth]`: rotated, multiplied by scale · log₂ e.
    pub(super) q: &'a [f32],
    /// `[rows]`.
    pub(super) places: &'a [CausalPosition],
    /// `[rows]`: largest score so far, [`LOWEST`] at first.
    pub(super) top: &'a mut [f32],
    /// `[rows, WIDEST]`: parts of the sum of 2^(score − top).
    pub(super) sum: &'a mut [f32],
    /// `[rows, padded_dim]`: sum of 2^(score − top) · value.
    pub(super) out: &'a mut [f32],
}

/// Takes a tile's keys into a strip's result.
pub(super) struct Absorb<'a> {
    pub(super) strip: Strip<'a>,
    pub(super) tile: &'a Tile<'a>,
    /// Part of each panel that the strip sees; nothing of panels beyond the last.
    pub(super) seen: [Seen; TILE_PANELS],
    /// `[STRIP, TILE]` of scratch, and a panel that is read and not used.
    pub(super) p: &'a mut [f32],
}

impl Absorb<'_> {
    /// The keys of a panel that are multiplied, if there are any. Strips of fewer rows are rare:
    /// they take whole panels, so that they need no code for parts.
    #[inline(always)]
    fn keys<const ROWS: usize>(&self, panel: usize) -> Option<(usize, usize)> {
        let seen = &self.seen[panel];
        match seen.sight {
            Sight::Nothing => None,
            Sight::Some if ROWS == STRIP => Some((seen.keys.start, seen.keys.end)),
            Sight::Some | Sight::All => Some((0, PANEL)),
        }
    }
}

impl EitherKernel for Absorb<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes, F: Factor<V>>(mut self) {
        // SAFETY: the caller promises the instructions, and `absorb` checks every length against
        // ROWS.
        unsafe {
            match self.strip.places.len() {
                1 => absorb::<V, F, 1>(&mut self),
                2 => absorb::<V, F, 2>(&mut self),
                3 => absorb::<V, F, 3>(&mut self),
                4 => absorb::<V, F, 4>(&mut self),
                5 => absorb::<V, F, 5>(&mut self),
                rows => {
                    assert_eq!(rows, STRIP, "rows of a strip");
                    absorb::<V, F, STRIP>(&mut self);
                }
            }
        }
    }
}

/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn absorb<V: Lanes, F: Factor<V>, const ROWS: usize>(work: &mut Absorb<'_>) {
    let Tile { depth, padded_dim, .. } = *work.tile;
    let panels = work.tile.keys.iter().take_while(|&&keys| keys > 0).count();
    assert!(work.tile.k.len() >= panels * padded_dim * PANEL, "packed keys");
    assert!(work.tile.v.len() >= panels * PANEL / F::NUMBERS * padded_dim, "packed values");
    assert!(depth <= padded_dim, "packed keys");
    assert_eq!(work.strip.q.len(), depth * ROWS, "packed queries");
    assert_eq!(work.strip.out.len(), padded_dim * ROWS, "room for the result");
    assert_eq!(work.strip.top.len(), ROWS, "room for the maxima");
    assert_eq!(work.strip.sum.len(), ROWS * WIDEST, "room for the sums");
    assert_eq!(work.p.len(), STRIP * TILE + PANEL, "room for the probabilities");
    for Seen { keys, weighed, .. } in &work.seen {
        assert!(keys.start <= weighed.start && weighed.end <= keys.end, "keys of a part");
        assert!(weighed.start.is_multiple_of(2), "pairs of keys");
        assert!(keys.start.is_multiple_of(PART) && keys.end.is_multiple_of(PART), "whole parts");
        assert!(keys.start <= keys.end && keys.end <= PANEL, "keys of a panel");
    }

    // SAFETY: the caller promises the instructions. Lengths were checked above: panel `i` lies
    // within `k`, and ROWS rows of TILE probabilities within `p`.
    unsafe {
        let mut top = [V::splat(LOWEST); ROWS];
        for i in 0..panels {
            let Some(keys) = work.keys::<ROWS>(i) else { continue };
            let Seen { sight, masked, .. } = work.seen[i];
            let mask = (sight == Sight::Some).then(|| Mask::new(work.tile.of_keys[i], work.strip.places, masked));
            let k = work.tile.k.as_ptr().add(i * padded_dim * PANEL);
            let p = work.p.as_mut_ptr().add(i * PANEL);
            let operands = Operands { q: work.strip.q.as_ptr(), k, depth, mask };
            scores::<V, F, ROWS>(operands, Some(keys), Room { at: p, step: TILE }, &mut top);
        }
        let fade = exponentials::<V, F, ROWS>(work, panels, top);
        values::<V, F, ROWS>(work, panels, &fade);
    }
}

/// Turns scores into 2^(score − top), packed as values are, and adds them to the sums. Returns by
/// how much each row's earlier results fade.
///
/// # Safety
/// The machine has the instructions of `V`; lengths as checked by [`absorb`]; seen panels of `p`
/// hold scores.
#[inline(always)]
unsafe fn exponentials<V: Lanes, F: Factor<V>, const ROWS: usize>(
    work: &mut Absorb<'_>,
    panels: usize,
    top: [V; ROWS],
) -> [V; ROWS] {
    // SAFETY: the caller's promises; ROWS rows of TILE probabilities and of WIDEST sums.
    unsafe {
        let mut fade = [V::splat(1.0); ROWS];
        for r in 0..ROWS {
            let old = work.strip.top[r];
            let new = old.max(top[r].reduce_max());
            work.strip.top[r] = new;
            fade[r] = V::splat(old - new).exp2();
            let new = V::splat(new);
            let mut sum = V::splat(0.0);
            for i in 0..panels {
                let Some((from, to)) = work.keys::<ROWS>(i) else { continue };
                let p = work.p.as_mut_ptr().add(r * TILE + i * PANEL);
                for column in (from..to).step_by(2 * V::N) {
                    let first = V::load(p.add(column)).sub(new).exp2();
                    sum = sum.add(first);
                    let place = p.add(from + (column - from) / F::NUMBERS);
                    if column + V::N == to {
                        F::store_one(first, place);
                        continue;
                    }
                    let second = V::load(p.add(column + V::N)).sub(new).exp2();
                    sum = sum.add(second);
                    F::store(first, second, place);
                }
            }
            let total = work.strip.sum.as_mut_ptr().add(r * WIDEST);
            V::load(total).mul_add(fade[r], sum).store(total);
        }
        fade
    }
}

/// `out = out · fade + p · v` over the panels that are seen.
///
/// # Safety
/// The machine has the instructions of `V`; lengths as checked by [`absorb`]; seen panels of `p`
/// hold probabilities.
#[inline(always)]
unsafe fn values<V: Lanes, F: Factor<V>, const ROWS: usize>(work: &mut Absorb<'_>, panels: usize, fade: &[V; ROWS]) {
    let vectors = work.tile.padded_dim / V::N;
    let groups = vectors.div_ceil(V::BLOCK);
    let mut from = 0;
    for group in 0..groups {
        let to = vectors * (group + 1) / groups; // widths differ by one at most
        // SAFETY: the caller's promises; vectors `from..to` lie within a packed row, and to − from
        // ≤ V::BLOCK ≤ 4.
        unsafe {
            match to - from {
                1 => value_block::<V, F, ROWS, 1>(work, panels, from * V::N, fade),
                2 if V::BLOCK >= 2 => value_block::<V, F, ROWS, 2>(work, panels, from * V::N, fade),
                3 if V::BLOCK >= 3 => value_block::<V, F, ROWS, 3>(work, panels, from * V::N, fade),
                _ if V::BLOCK >= 4 => value_block::<V, F, ROWS, 4>(work, panels, from * V::N, fade),
                width => unreachable!("{width} vectors in a block of {}", V::BLOCK),
            }
        }
        from = to;
    }
}

/// # Safety
/// As [`values`]; WIDTH vectors from `column` on lie within a packed row.
#[inline(always)]
unsafe fn value_block<V: Lanes, F: Factor<V>, const ROWS: usize, const WIDTH: usize>(
    work: &mut Absorb<'_>,
    panels: usize,
    column: usize,
    fade: &[V; ROWS],
) {
    let padded_dim = work.tile.padded_dim;
    // SAFETY: the caller's promises; key `first + count` is at most the number of packed keys.
    unsafe {
        let out = work.strip.out.as_mut_ptr().add(column);
        let mut acc = [[V::splat(0.0); WIDTH]; ROWS];
        for r in 0..ROWS {
            for i in 0..WIDTH {
                acc[r][i] = V::load(out.add(r * padded_dim + i * V::N)).mul(fade[r]);
            }
        }
        for panel in 0..panels {
            let Some((packed, _)) = work.keys::<ROWS>(panel) else { continue };
            let weighed = &work.seen[panel].weighed;
            let p = work.p.as_ptr().add(panel * PANEL + packed + (weighed.start - packed) / F::NUMBERS);
            let v = work.tile.v.as_ptr().add((panel * PANEL + weighed.start) / F::NUMBERS * padded_dim + column);
            let end = work.tile.keys[panel].min(weighed.end);
            let depth = end.saturating_sub(weighed.start).div_ceil(F::NUMBERS);
            match work.seen[panel].sight {
                Sight::Some if !work.tile.finite => {
                    careful_product::<V, F, ROWS, WIDTH>(&mut acc, p, (v, padded_dim), depth);
                }
                _ => product::<V, F, ROWS, WIDTH>(&mut acc, (p, TILE, 1), (v, padded_dim), depth),
            }
        }
        for r in 0..ROWS {
            for i in 0..WIDTH {
                acc[r][i].store(out.add(r * padded_dim + i * V::N));
            }
        }
    }
}
