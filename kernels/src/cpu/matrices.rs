//! Products of matrices in slices with any strides, f32 or f64, on the current rayon pool: for
//! gradients, which need a matrix and its transpose.

use gemm::{Parallelism, gemm};

use crate::tiles;

/// Place of a matrix in a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lie {
    /// The place of its first number.
    pub at: usize,
    /// From one row to the next.
    pub row_step: usize,
    /// From one column to the next.
    pub column_step: usize,
}

impl Lie {
    /// Row by row from the slice's beginning, `columns` numbers a row.
    pub(crate) fn rows_of(columns: usize) -> Self {
        Self { at: 0, row_step: columns, column_step: 1 }
    }

    /// The same matrix turned over.
    pub(crate) fn turned(self) -> Self {
        Self { row_step: self.column_step, column_step: self.row_step, ..self }
    }

    /// Panics if a matrix of this size does not fit into `length` numbers.
    fn check(self, rows: usize, columns: usize, length: usize) {
        let last = self.at + (rows - 1) * self.row_step + (columns - 1) * self.column_step;
        assert!(last < length, "a matrix of {rows} x {columns} ends at {last} of {length}");
    }
}

/// Writes `factor · a · b` into `out`, added to existing values with `accumulate`. `a` is
/// `[rows, inner]`, `b` `[inner, columns]`, `out` `[rows, columns]`; `size` is (rows, columns,
/// inner).
///
/// # Panics
/// Panics if a matrix exceeds its slice: only a bug can do that.
pub(crate) fn multiply<T: num_like::Number>(
    (rows, columns, inner): (usize, usize, usize),
    factor: T,
    (a, lie_a): (&[T], Lie),
    (b, lie_b): (&[T], Lie),
    (out, lie_out): (&mut [T], Lie),
    accumulate: bool,
) {
    if rows * columns * inner == 0 {
        return;
    }
    lie_a.check(rows, inner, a.len());
    lie_b.check(inner, columns, b.len());
    lie_out.check(rows, columns, out.len());
    let threads = rayon::current_num_threads();
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    // SAFETY: each matrix is within its slice, as was checked above, and `out` borrows its slice
    // exclusively.
    unsafe {
        gemm(
            rows,
            columns,
            inner,
            out.as_mut_ptr().add(lie_out.at),
            lie_out.column_step as isize,
            lie_out.row_step as isize,
            accumulate,
            a.as_ptr().add(lie_a.at),
            lie_a.column_step as isize,
            lie_a.row_step as isize,
            b.as_ptr().add(lie_b.at),
            lie_b.column_step as isize,
            lie_b.row_step as isize,
            T::ONE,
            factor,
            false,
            false,
            false,
            parallelism,
        );
    }
    tiles::done();
}

/// The numbers that gradients are computed in.
pub(crate) mod num_like {
    use candle_core::WithDType;

    /// f32 or f64.
    pub(crate) trait Number: WithDType + std::ops::Neg<Output = Self> {
        /// 1.
        const ONE: Self;
        /// e to this power.
        fn exp(self) -> Self;
        /// The natural logarithm.
        fn ln(self) -> Self;
        /// The square root.
        fn sqrt(self) -> Self;
    }

    macro_rules! number {
        ($type:ty) => {
            impl Number for $type {
                const ONE: Self = 1.0;
                fn exp(self) -> Self {
                    <$type>::exp(self)
                }
                fn ln(self) -> Self {
                    <$type>::ln(self)
                }
                fn sqrt(self) -> Self {
                    <$type>::sqrt(self)
                }
            }
        };
    }
    number!(f32);
    number!(f64);
}
