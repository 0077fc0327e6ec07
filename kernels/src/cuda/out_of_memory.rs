//! Which failures of the tensor library mean that a GPU's memory did not suffice.

use candle_core::cuda::CudaError;
use cudarc::cublas::sys::cublasStatus_t;
use cudarc::driver::{DriverError, sys};

/// Whether a failure means that a device's memory did not suffice.
pub fn is_out_of_memory(error: &candle_core::Error) -> bool {
    use candle_core::Error;
    match error {
        Error::WithBacktrace { inner, .. } | Error::Context { inner, .. } | Error::WithPath { inner, .. } => {
            is_out_of_memory(inner)
        }
        Error::Cuda(cause) | Error::WrappedContext { wrapped: cause, .. } => {
            let cause = &**cause as &(dyn std::error::Error + 'static);
            let of_driver = |refused: &DriverError| refused.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
            match cause.downcast_ref() {
                Some(CudaError::Cuda(refused)) => of_driver(refused),
                Some(CudaError::Cublas(refused)) => refused.0 == cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED,
                Some(_) => false,
                None => {
                    cause.downcast_ref().is_some_and(of_driver) || cause.downcast_ref().is_some_and(is_out_of_memory)
                }
            }
        }
        _ => false,
    }
}
