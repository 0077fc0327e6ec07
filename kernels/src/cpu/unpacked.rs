//! Rows in 8 bits, unpacked a few at a time for the rows that read them at once: keys turned to
//! their positions, in f32 or rounded to bf16.

use std::ops::Range;

use half::bf16;

use super::inputs::{Elements, Matrix};
use super::lanes::Lanes;
use super::level::{Kernel, Level, dispatch};
use super::pack::rotate;
use super::stored::rounded;
use crate::Rope;

/// Unpacked rows `[rows, kv_heads, head_dim]`.
pub(super) struct Unpacked {
    kv_heads: usize,
    head_dim: usize,
    wide: Vec<f32>,
    /// The same rounded, where bf16 is read.
    narrow: Option<Vec<bf16>>,
}

impl Unpacked {
    /// Room for `rows` rows.
    pub(super) fn new([rows, kv_heads, head_dim]: [usize; 3], narrow: bool) -> Self {
        let count = rows * kv_heads * head_dim;
        Self { kv_heads, head_dim, wide: vec![0.0; count], narrow: narrow.then(|| vec![bf16::ZERO; count]) }
    }

    /// Unpacks `rows` of a matrix, and turns each to its position with `rope`.
    pub(super) fn unpack(
        &mut self,
        level: Level,
        matrix: &Matrix<'_>,
        rows: Range<usize>,
        rope: Option<(&Rope, &[u32])>,
    ) {
        dispatch(level, Unpack { to: self, matrix, rows, rope });
    }

    /// The rows, in the type that is read.
    pub(super) fn elements(&self) -> Elements<'_> {
        match &self.narrow {
            Some(narrow) => Elements::Bf16(narrow),
            None => Elements::F32(&self.wide),
        }
    }

    /// The places of the rows' numbers.
    pub(super) fn matrix(&self) -> Matrix<'_> {
        Matrix::of_rows(self.elements(), self.kv_heads, self.head_dim)
    }
}

struct Unpack<'a> {
    to: &'a mut Unpacked,
    matrix: &'a Matrix<'a>,
    rows: Range<usize>,
    rope: Option<(&'a Rope, &'a [u32])>,
}

impl Kernel for Unpack<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let Unpacked { kv_heads, head_dim, wide, narrow } = self.to;
        for (i, row) in self.rows.clone().enumerate() {
            for (head, to) in wide[i * *kv_heads * *head_dim..].chunks_exact_mut(*head_dim).take(*kv_heads).enumerate()
            {
                self.matrix.widen(row, head, to);
                if let Some((rope, positions)) = self.rope {
                    rotate(to, rope, positions[i]);
                }
            }
        }
        if let Some(narrow) = narrow {
            let count = self.rows.len() * *kv_heads * *head_dim;
            for (to, x) in narrow[..count].iter_mut().zip(&wide[..count]) {
                *to = rounded(*x);
            }
        }
    }
}
