//! The innermost part in tile registers: a strip of 32 rows against a tile of keys, both in pairs
//! of bf16. As [`super::strip`], but scores are written before they are masked, and their maximum
//! is taken when they are read.

use std::ops::Range;

use super::amx::{self, Registers};
use super::lanes::{PANEL, TILE, TILE_PANELS, WIDEST};
use super::level::PairKernel;
use super::micro::Mask;
use super::pairs::Pairs;
use super::sight::Sight;
use super::stored::{halves, pair};
use super::strip::{Strip, Tile};

/// Takes a tile's keys into the result of a strip of up to [`amx::BLOCK`] rows.
pub(super) struct AbsorbInTiles<'a> {
    pub(super) registers: &'a Registers,
    /// Queries have BLOCK rows here, of whole tiles of pairs, and the output too: what stands in
    /// rows beyond the strip's does not count.
    pub(super) strip: Strip<'a>,
    pub(super) tile: &'a Tile<'a>,
    /// As of [`super::strip::Absorb`].
    pub(super) sight: [Sight; TILE_PANELS],
    /// `[BLOCK, TILE]` of scratch.
    pub(super) p: &'a mut [f32],
}

impl PairKernel for AbsorbInTiles<'_> {
    #[inline(always)]
    unsafe fn run<V: Pairs>(mut self) {
        let Tile { depth, padded_dim, .. } = *self.tile;
        let (rows, panels) = (self.strip.places.len(), self.tile.keys.iter().take_while(|&&keys| keys > 0).count());
        assert!((1..=amx::BLOCK).contains(&rows), "rows of a strip");
        assert!(depth.is_multiple_of(amx::SIDE) && padded_dim.is_multiple_of(amx::BLOCK), "whole tiles");
        assert!(self.tile.k.len() >= panels * padded_dim * PANEL && depth <= padded_dim, "packed keys");
        assert!(self.tile.v.len() >= panels * PANEL / 2 * padded_dim, "packed values");
        assert_eq!(self.strip.q.len(), depth * amx::BLOCK, "packed queries");
        assert_eq!(self.strip.out.len(), padded_dim * amx::BLOCK, "room for the result");
        assert_eq!(self.strip.top.len(), rows, "room for the maxima");
        assert_eq!(self.strip.sum.len(), rows * WIDEST, "room for the sums");
        assert_eq!(self.p.len(), amx::BLOCK * TILE, "room for the probabilities");
        let (sight, finite) = (self.sight, self.tile.finite);
        for panel in (0..panels).filter(|&panel| sight[panel] != Sight::Nothing) {
            self.scores(panel);
        }
        for row in 0..rows {
            // SAFETY: the caller promises the instructions; lengths were checked above.
            unsafe { self.exponentials::<V>(row, panels) }
        }
        let mut panel = 0;
        while panel < panels {
            let is_whole = |&next: &usize| match sight[next] {
                Sight::Nothing => false,
                Sight::Some => finite,
                Sight::All => true,
            };
            let end = panel + (panel..panels).take_while(is_whole).count();
            if end > panel {
                self.values(panel..end, &self.tile.v[panel * PANEL / 2 * padded_dim..]);
            } else if sight[panel] == Sight::Some {
                self.careful_values(panel);
            }
            panel = end.max(panel + 1);
        }
    }
}

impl AbsorbInTiles<'_> {
    /// Multiplies blocks that [`run`](PairKernel::run) has checked.
    fn multiply(&self, to: amx::Rows<*mut f32>, factors: amx::Factors, accumulate: bool) {
        // SAFETY: rows are those of a strip, and there are BLOCK columns on both sides.
        unsafe { self.registers.multiply(self.strip.places.len() > amx::SIDE, to, factors, accumulate) }
    }

    /// Scores against a panel, not masked, to its columns of `p`.
    fn scores(&mut self, panel: usize) {
        let Tile { depth, padded_dim, .. } = *self.tile;
        for column in (0..PANEL).step_by(amx::BLOCK) {
            let k = self.tile.k[panel * padded_dim * PANEL..][column..depth * PANEL].as_ptr();
            let p = self.p[panel * PANEL + column..].as_mut_ptr();
            let factors = amx::Factors { a: (self.strip.q.as_ptr(), depth), b: (k, PANEL), depth };
            self.multiply((p, TILE), factors, false);
        }
    }

    /// Masks a row's scores, turns them into 2^(score − top), adds these to its sum and rounds them
    /// to pairs, which stand without gaps between panels; its earlier results fade.
    ///
    /// # Safety
    /// The machine has the instructions of `V`; lengths as checked by [`run`](PairKernel::run);
    /// seen panels of `p` hold scores.
    #[inline(always)]
    unsafe fn exponentials<V: Pairs>(&mut self, row: usize, panels: usize) {
        let padded_dim = self.tile.padded_dim;
        // SAFETY: the caller's promises: a row has TILE scores, WIDEST sums and `padded_dim`
        // outputs, and the lists of a panel's keys PANEL numbers.
        unsafe {
            let p = self.p.as_mut_ptr().add(row * TILE);
            // Several maxima and sums side by side, each of which waits for itself alone.
            let mut tops = [V::splat(self.strip.top[row]); 4];
            for panel in (0..panels).filter(|&panel| self.sight[panel] != Sight::Nothing) {
                let (p, of_keys) = (p.add(panel * PANEL), self.tile.of_keys[panel]);
                if self.sight[panel] == Sight::All {
                    for column in (0..PANEL).step_by(4 * V::N) {
                        for (i, top) in tops.iter_mut().enumerate() {
                            *top = top.max(V::load(p.add(column + i * V::N)));
                        }
                    }
                    continue;
                }
                let mask = Mask::new(of_keys, self.strip.places, !0);
                for column in (0..PANEL).step_by(V::N) {
                    let score = mask.keep_seen(V::load(p.add(column)), column, row);
                    tops[0] = tops[0].max(score);
                    score.store(p.add(column));
                }
            }
            let top = tops[0].max(tops[1]).max(tops[2].max(tops[3]));
            let (old, new) = (self.strip.top[row], top.reduce_max());
            self.strip.top[row] = new;
            let (fade, top) = (V::splat(old - new).exp2(), V::splat(new));
            let mut sums = [V::splat(0.0); 2];
            for panel in (0..panels).filter(|&panel| self.sight[panel] != Sight::Nothing) {
                let (from, to) = (p.add(panel * PANEL), p.add(panel * PANEL / 2));
                for column in (0..PANEL).step_by(2 * V::N) {
                    let first = V::load(from.add(column)).sub(top).exp2();
                    let second = V::load(from.add(column + V::N)).sub(top).exp2();
                    sums = [sums[0].add(first), sums[1].add(second)];
                    first.paired_with(second).store(to.add(column / 2));
                }
            }
            let total = self.strip.sum.as_mut_ptr().add(row * WIDEST);
            V::load(total).mul_add(fade, sums[0].add(sums[1])).store(total);
            if new > old {
                let out = self.strip.out.as_mut_ptr().add(row * padded_dim);
                for column in (0..padded_dim).step_by(V::N) {
                    V::load(out.add(column)).mul(fade).store(out.add(column));
                }
            }
        }
    }

    /// `out = out + p · v` over panels in a row, whose values are the first of `v`.
    fn values(&mut self, panels: Range<usize>, v: &[f32]) {
        let padded_dim = self.tile.padded_dim;
        let (first, depth) = (panels.start * PANEL / 2, panels.len() * PANEL / 2);
        for column in (0..padded_dim).step_by(amx::BLOCK) {
            let out = self.strip.out[column..].as_mut_ptr();
            let v = v[column..][..(depth - 1) * padded_dim + amx::BLOCK].as_ptr();
            let factors = amx::Factors { a: (self.p[first..].as_ptr(), TILE), b: (v, padded_dim), depth };
            self.multiply((out, padded_dim), factors, true);
        }
    }

    /// The same over one panel of which rows see different keys, and of which some values may be
    /// infinite or NaN: those count as 0 first, and rows that see them add them then. So a row's
    /// bits never depend on a key that it does not see.
    fn careful_values(&mut self, panel: usize) {
        let (padded_dim, first) = (self.tile.padded_dim, panel * PANEL / 2);
        let v = &self.tile.v[first * padded_dim..][..PANEL / 2 * padded_dim];
        let finite = |value: f32| if value.is_finite() { value } else { 0.0 };
        let of_pair = |value: &f32| {
            let [first, second] = halves(*value).map(finite);
            pair(first, second)
        };
        self.values(panel..panel + 1, &v.iter().map(of_pair).collect::<Vec<f32>>());
        let rows = self.strip.out.chunks_exact_mut(padded_dim).zip(self.p.chunks_exact(TILE));
        for (out, p) in rows.take(self.strip.places.len()) {
            for (weights, v) in p[first..][..PANEL / 2].iter().zip(v.chunks_exact(padded_dim)) {
                for (out, value) in out.iter_mut().zip(v) {
                    let products = halves(*weights).into_iter().zip(halves(*value));
                    let counted = products.filter(|(weight, value)| *weight != 0.0 && !value.is_finite());
                    *out += counted.map(|(weight, value)| weight * value).sum::<f32>();
                }
            }
        }
    }
}
