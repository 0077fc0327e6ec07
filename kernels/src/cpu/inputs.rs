//! The tensors of a call as slices, widened to f32 a row at a time.

use std::ops::Range;

use candle_core::{CpuStorage, DType, Layout, Storage, StorageRef, Tensor};
use half::{bf16, f16, slice::HalfFloatSliceExt};

use super::eight_bits;
use super::lanes::{LINE, Lanes};
use crate::Keys;
use crate::eight_bits::SCALE_BYTES;
use crate::error::{Error, Result};

/// The tensors of a call, each with contiguous heads and of a type that [`Matrix`] reads. No copy
/// where that is so.
#[derive(Debug)]
pub(super) struct Inputs {
    q: Tensor,
    blocks: Vec<(Tensor, Tensor)>,
}

/// The same, held for reading.
pub(super) struct Held<'a> {
    q: (StorageRef<'a>, &'a Layout),
    blocks: Vec<[(StorageRef<'a>, &'a Layout); 2]>,
}

impl Inputs {
    pub(super) fn new(q: &Tensor, keys: &[Keys]) -> Result<Self> {
        let blocks = keys.iter().map(|block| Ok((readable(&block.k)?, readable(&block.v)?)));
        Ok(Self { q: readable(q)?, blocks: blocks.collect::<Result<_>>()? })
    }

    pub(super) fn hold(&self) -> Held<'_> {
        let blocks = self.blocks.iter().map(|(k, v)| [k.storage_and_layout(), v.storage_and_layout()]);
        Held { q: self.q.storage_and_layout(), blocks: blocks.collect() }
    }
}

impl Held<'_> {
    pub(super) fn queries(&self) -> Result<Matrix<'_>> {
        Matrix::new(&self.q.0, self.q.1)
    }

    /// Keys and values of each block.
    pub(super) fn blocks(&self) -> Result<Vec<(Matrix<'_>, Matrix<'_>)>> {
        self.blocks.iter().map(|[k, v]| Ok((Matrix::new(&k.0, k.1)?, Matrix::new(&v.0, v.1)?))).collect()
    }
}

fn readable(x: &Tensor) -> Result<Tensor> {
    let x = match x.dtype() {
        DType::F32 | DType::BF16 | DType::F16 | DType::U8 => x.clone(),
        _ => x.to_dtype(DType::F32)?,
    };
    Ok(if x.stride()[2] == 1 { x } else { x.contiguous()? })
}

/// A `[rows, heads, head_dim]` tensor on the CPU, any strides but the last. In 8 bits, a head has
/// a byte of scale after its numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a> {
    elements: Elements<'a>,
    from: usize,
    row_step: usize,
    head_step: usize,
    head_dim: usize,
}

/// Numbers as they are stored.
#[derive(Debug, Clone, Copy)]
pub(super) enum Elements<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
    Eight(&'a [u8]),
}

impl<'a> Matrix<'a> {
    fn new(storage: &'a Storage, layout: &Layout) -> Result<Self> {
        let elements = match storage {
            Storage::Cpu(CpuStorage::F32(list)) => Elements::F32(list),
            Storage::Cpu(CpuStorage::BF16(list)) => Elements::Bf16(list),
            Storage::Cpu(CpuStorage::F16(list)) => Elements::F16(list),
            Storage::Cpu(CpuStorage::U8(list)) => Elements::Eight(list),
            other => {
                let (expected, found) = ("f32, bf16, f16 or 8 bits on the CPU".into(), format!("{:?}", other.dtype()));
                return Err(Error::Shape { op: "attend", what: "storage", expected, found });
            }
        };
        let scale = if matches!(elements, Elements::Eight(_)) { SCALE_BYTES } else { 0 };
        let (stride, head_dim) = (layout.stride(), layout.dims()[2].saturating_sub(scale));
        Ok(Self { elements, from: layout.start_offset(), row_step: stride[0], head_step: stride[1], head_dim })
    }

    /// Rows `[.., kv_heads, head_dim]` that follow one another.
    pub(super) fn of_rows(elements: Elements<'a>, kv_heads: usize, head_dim: usize) -> Self {
        Self { elements, from: 0, row_step: kv_heads * head_dim, head_step: head_dim, head_dim }
    }

    /// All numbers in the tensor's storage, which other tensors may share.
    pub(super) fn elements(&self) -> Elements<'a> {
        self.elements
    }

    /// Numbers of a head.
    pub(super) fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// One row of one head, if numbers are stored in bf16.
    #[inline(always)]
    pub(super) fn bf16_row(&self, row: usize, head: usize) -> Option<&'a [bf16]> {
        let Elements::Bf16(list) = self.elements else { return None };
        Some(&list[self.place(row, head)..][..self.head_dim])
    }

    /// Number of elements from a row to the next.
    pub(super) fn row_step(&self) -> usize {
        self.row_step
    }

    /// The index in that storage at which a row of a head begins.
    #[inline(always)]
    pub(super) fn place(&self, row: usize, head: usize) -> usize {
        self.from + row * self.row_step + head * self.head_step
    }

    /// Asks for some heads of a row to come into the second-level cache.
    #[inline(always)]
    pub(super) fn prefetch<V: Lanes>(&self, row: usize, heads: Range<usize>) {
        let from = self.place(row, heads.start);
        let (first, bytes) = match self.elements {
            Elements::F32(list) => (list.as_ptr().wrapping_add(from).cast::<u8>(), 4),
            Elements::Bf16(list) => (list.as_ptr().wrapping_add(from).cast(), 2),
            Elements::F16(list) => (list.as_ptr().wrapping_add(from).cast(), 2),
            Elements::Eight(list) => (list.as_ptr().wrapping_add(from), 1),
        };
        for line in (0..heads.len() * self.head_step * bytes).step_by(size_of::<[f32; LINE]>()) {
            V::prefetch(first.wrapping_add(line));
        }
    }

    /// Writes one row of one head into `to` `[head_dim]`, as f32.
    #[inline(always)]
    pub(super) fn widen(&self, row: usize, head: usize, to: &mut [f32]) {
        let from = self.place(row, head);
        let range = from..from + self.head_dim;
        match self.elements {
            Elements::F32(list) => copy(&list[range], to),
            Elements::Bf16(list) => {
                for (to, from) in to.iter_mut().zip(&list[range]) {
                    *to = f32::from_bits(u32::from(from.to_bits()) << 16);
                }
            }
            Elements::F16(list) => list[range].convert_to_f32_slice(to),
            Elements::Eight(list) => eight_bits::unpack(&list[from..=from + self.head_dim], to),
        }
    }
}

/// A copy in steps of a cache line, which the compiler turns into vector moves: rows are too short
/// to call the library's copy for each.
#[inline(always)]
fn copy(from: &[f32], to: &mut [f32]) {
    const STEP: usize = 16;
    let (from, from_rest) = from.as_chunks::<STEP>();
    let (to, to_rest) = to.as_chunks_mut::<STEP>();
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
    for (to, from) in to_rest.iter_mut().zip(from_rest) {
        *to = *from;
    }
}
