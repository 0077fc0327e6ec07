//! Products of runs of rows with a weight of their own each, in one call to cuBLAS.

use candle_core::{CudaDevice, Tensor};
use cudarc::cublas::sys;

use super::blas::{Matrices, data_type, with_handle};
use super::call::{Input, Output, ours};
use super::failure;
use super::memory::upload_addresses;
use super::rows::contiguous;
use crate::error::Result;

/// Bytes that addresses and rows must be multiples of: cuBLAS reads 16-bit numbers so many at once.
const ALIGNMENT: u64 = 16;

/// Rows that follow one another and meet the same weights.
struct Run {
    weight: usize,
    first: usize,
    rows: usize,
}

/// The products of all runs, in each of some sets of weights.
struct Products {
    runs: Vec<Run>,
    /// Addresses of weight, rows and answer, for each run in each set.
    addresses: Vec<[u64; 3]>,
    sets: usize,
    inputs: usize,
    outputs: usize,
    number: sys::cudaDataType,
    number_bytes: usize,
}

/// The products of runs of the rows of `x` `[rows, inputs]`: `counts[i]` rows meet weight i,
/// `[outputs, inputs]`, of each set, and all counts make `rows`. For each set the answer
/// `[rows, outputs]`. All are of one type, which the answer has too: cuBLAS has no grouped product
/// of 16-bit numbers with an answer in f32. `None` for types or layouts that it does not take.
pub fn grouped(x: &Tensor, counts: &[usize], sets: &[Vec<&Tensor>]) -> Result<Option<Vec<Tensor>>> {
    let weights = || sets.iter().flatten();
    let (Some(one), Some(number)) = (weights().next(), data_type(x.dtype())) else { return Ok(None) };
    let alike = |weight: &&Tensor| weight.dtype() == x.dtype() && weight.dims() == one.dims() && weight.is_contiguous();
    if !ours(&[x]) || !weights().all(|weight| ours(&[weight]) && alike(weight)) {
        return Ok(None);
    }
    let (x, (outputs, inputs)) = (contiguous(x)?, one.dims2()?);
    let runs = runs(counts);
    let of_runs = runs.iter().flat_map(|run| sets.iter().map(|set| Input::new(set[run.weight])));
    let (Some(weights), Some(rows)) = (of_runs.collect::<Option<Vec<_>>>(), Input::new(&x)) else { return Ok(None) };
    let device = rows.device().clone();
    let (stream, shape) = (device.cuda_stream(), (x.dim(0)?, outputs));
    let mut answers = sets.iter().map(|_| Output::new(&device, x.dtype(), shape)).collect::<Result<Vec<_>>>()?;
    let number_bytes = x.dtype().size_in_bytes();
    let (rows_at, rows_held) = rows.address(&stream);
    let weights_at: Vec<_> = weights.iter().map(|weight| weight.address(&stream)).collect();
    let answers_at: Vec<_> = answers.iter_mut().map(|answer| answer.address(&stream)).collect();
    let address = |(i, &(weight, _)): (usize, &(u64, _))| {
        let (first, answer) = (runs[i / sets.len()].first, answers_at[i % sets.len()].0);
        let byte = |width: usize| (first * width * number_bytes) as u64;
        [weight, rows_at + byte(inputs), answer + byte(outputs)]
    };
    let addresses = weights_at.iter().enumerate().map(address).collect();
    let products = Products { addresses, sets: sets.len(), inputs, outputs, number, number_bytes, runs };
    products.multiply(&device)?;
    drop((rows_held, weights_at, answers_at));
    Ok(Some(answers.into_iter().map(Output::tensor).collect()))
}

/// The runs that have rows.
fn runs(counts: &[usize]) -> Vec<Run> {
    let mut first = 0;
    let run = |(weight, &rows): (usize, &usize)| {
        first += rows;
        Run { weight, first: first - rows, rows }
    };
    counts.iter().enumerate().map(run).filter(|run| run.rows > 0).collect()
}

impl Products {
    /// In one call, or one by one where cuBLAS does not take that.
    fn multiply(&self, device: &CudaDevice) -> Result<()> {
        let widths = ((self.inputs | self.outputs) * self.number_bytes) as u64;
        let all = self.addresses.iter().flatten().fold(widths, |all, address| all | address);
        let nothing = self.addresses.is_empty();
        if nothing || (all.is_multiple_of(ALIGNMENT) && self.at_once(device)?) {
            return Ok(());
        }
        self.one_by_one(device)
    }

    /// Whether cuBLAS took them: not what its version has not for these types or this GPU.
    fn at_once(&self, device: &CudaDevice) -> Result<bool> {
        // The addresses of all weights, then of all rows, then of all answers.
        let all = (0..3).flat_map(|which| self.addresses.iter().map(move |one| one[which]));
        let list = upload_addresses(all, device)?;
        let Some(pointers) = Input::new(&list) else { return Ok(false) };
        let (stream, bytes) = (device.cuda_stream(), size_of_val(self.addresses.as_slice()) as u64 / 3);
        let (at, _held) = pointers.address(&stream);
        let groups = self.runs.len();
        let rows: Vec<i32> = self.runs.iter().map(|run| run.rows as i32).collect();
        let all = |count: usize| vec![count as i32; groups];
        let (inputs, outputs, sets) = (all(self.inputs), all(self.outputs), all(self.sets));
        let (one, zero) = (vec![1f32; groups], vec![0f32; groups]);
        let transposed = vec![sys::cublasOperation_t::CUBLAS_OP_T; groups];
        let plain = vec![sys::cublasOperation_t::CUBLAS_OP_N; groups];
        // SAFETY: lists of groups are on the host, those of addresses on the device, and each has
        // as many entries as it should; matrices have these sizes, contiguous, and the caller holds
        // them; no two answers overlap. As for one product, cuBLAS computes weight · rowsᵀ.
        let status = with_handle(device, |handle| unsafe {
            sys::cublasGemmGroupedBatchedEx(
                handle,
                transposed.as_ptr(),
                plain.as_ptr(),
                outputs.as_ptr(),
                rows.as_ptr(),
                inputs.as_ptr(),
                one.as_ptr().cast(),
                at as *const _,
                self.number,
                inputs.as_ptr(),
                (at + bytes) as *const _,
                self.number,
                inputs.as_ptr(),
                zero.as_ptr().cast(),
                (at + 2 * bytes) as *const _,
                self.number,
                outputs.as_ptr(),
                groups as i32,
                sets.as_ptr(),
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            )
        })?;
        match status {
            sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED | sys::cublasStatus_t::CUBLAS_STATUS_ARCH_MISMATCH => {
                Ok(false)
            }
            status => status.result().map(|()| true).map_err(failure::of),
        }
    }

    fn one_by_one(&self, device: &CudaDevice) -> Result<()> {
        for (i, &[weight, rows, answer]) in self.addresses.iter().enumerate() {
            let sizes = (self.runs[i / self.sets].rows, self.inputs, self.outputs);
            let matrices = Matrices {
                x: (rows, self.inputs),
                weight: (weight, self.inputs),
                out: (answer, self.outputs),
                types: (self.number, self.number),
            };
            // SAFETY: the matrices have these sizes, and the caller holds them.
            with_handle(device, |handle| unsafe { matrices.multiply(handle, 0.0, sizes) })??;
        }
        Ok(())
    }
}
