//! Products of matrices in slices with any strides, f32 or f64, on the current rayon pool: for
//! gradients, which need a matrix and its transpose.

use std::borrow::Cow;

use gemm::{Parallelism, gemm};

use super::level::Level;
use super::many_rows::Weight;
use super::multiply::Added;
use crate::tiles;

/// A matrix in a slice, from its first number on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<Numbers> {
    numbers: Numbers,
    rows: usize,
    columns: usize,
    /// From one row to the next.
    row_step: usize,
    /// From one column to the next.
    column_step: usize,
}

impl<Numbers> Matrix<Numbers> {
    /// Row by row.
    pub(crate) fn new(numbers: Numbers, rows: usize, columns: usize) -> Self {
        Self { numbers, rows, columns, row_step: columns, column_step: 1 }
    }

    /// The same matrix turned over.
    pub(crate) fn turned(self) -> Self {
        let Self { numbers, rows, columns, row_step, column_step } = self;
        Self { numbers, rows: columns, columns: rows, row_step: column_step, column_step: row_step }
    }

    /// Panics if the matrix, which is not empty, does not fit into `length` numbers.
    fn check(&self, length: usize) {
        let last = (self.rows - 1) * self.row_step + (self.columns - 1) * self.column_step;
        assert!(last < length, "a matrix of {} x {} ends at {last} of {length}", self.rows, self.columns);
    }
}

impl<'a, T: Copy> Matrix<&'a [T]> {
    /// Its numbers row by row.
    fn in_order(self) -> Cow<'a, [T]> {
        let Self { numbers, rows, columns, row_step, column_step } = self;
        if column_step == 1 && row_step == columns {
            return Cow::Borrowed(&numbers[..rows * columns]);
        }
        let mut all = Vec::with_capacity(rows * columns);
        for row in 0..rows {
            all.extend((0..columns).map(|column| numbers[row * row_step + column * column_step]));
        }
        Cow::Owned(all)
    }
}

/// Writes `factor · a · b` into `out`.
///
/// # Panics
/// Panics if sizes do not fit or a matrix exceeds its slice: only a bug can do that.
pub(crate) fn multiply<T: num_like::Number>(factor: T, a: Matrix<&[T]>, b: Matrix<&[T]>, out: Matrix<&mut [T]>) {
    let (rows, columns, inner) = (out.rows, out.columns, a.columns);
    assert_eq!(a.rows, rows, "rows of a product");
    assert_eq!(b.columns, columns, "columns of a product");
    assert_eq!(b.rows, inner, "numbers that meet in a product");
    if rows * columns * inner == 0 {
        return;
    }
    a.check(a.numbers.len());
    b.check(b.numbers.len());
    out.check(out.numbers.len());
    T::multiply(factor, a, b, out);
}

/// The product of f32 by kernels of our own.
fn multiply_f32(factor: f32, a: Matrix<&[f32]>, b: Matrix<&[f32]>, out: Matrix<&mut [f32]>) {
    let (rows, columns, inner) = (out.rows, out.columns, a.columns);
    assert_eq!((out.row_step, out.column_step), (columns, 1), "a result row by row");
    let turned = b.turned().in_order();
    let product = Weight::of(Level::best(), &turned, inner).product(&a.in_order(), Added::default());
    out.numbers[..rows * columns].iter_mut().zip(product).for_each(|(value, product)| *value = factor * product);
}

/// The product of f64, which only tests make.
fn multiply_f64(factor: f64, a: Matrix<&[f64]>, b: Matrix<&[f64]>, out: Matrix<&mut [f64]>) {
    let (rows, columns, inner) = (out.rows, out.columns, a.columns);
    let threads = rayon::current_num_threads();
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    // SAFETY: each matrix is within its slice, as was checked above, and `out` borrows its slice
    // exclusively.
    unsafe {
        gemm(
            rows,
            columns,
            inner,
            out.numbers.as_mut_ptr(),
            out.column_step as isize,
            out.row_step as isize,
            false,
            a.numbers.as_ptr(),
            a.column_step as isize,
            a.row_step as isize,
            b.numbers.as_ptr(),
            b.column_step as isize,
            b.row_step as isize,
            1.0,
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

    use super::{Matrix, multiply_f32, multiply_f64};

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
        /// See [`super::multiply`]; sizes fit, and no matrix is empty.
        fn multiply(factor: Self, a: Matrix<&[Self]>, b: Matrix<&[Self]>, out: Matrix<&mut [Self]>);
    }

    macro_rules! number {
        ($type:ty, $multiply:path) => {
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
                fn multiply(factor: Self, a: Matrix<&[Self]>, b: Matrix<&[Self]>, out: Matrix<&mut [Self]>) {
                    $multiply(factor, a, b, out);
                }
            }
        };
    }
    number!(f32, multiply_f32);
    number!(f64, multiply_f64);
}
