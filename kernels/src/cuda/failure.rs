//! Answers of the driver and of cuBLAS, as errors of this crate.

use candle_core::cuda::CudaError;
use cudarc::driver::DriverError;

use crate::error::Error;

/// A refusal of the driver or of cuBLAS.
pub fn of(error: impl Into<CudaError>) -> Error {
    let error: CudaError = error.into();
    Error::Candle(error.into())
}

/// The driver's own words for a refusal.
pub fn words(error: DriverError) -> String {
    let text = |found: Result<&std::ffi::CStr, DriverError>| {
        found.map_or_else(|_| "unknown".to_owned(), |text| text.to_string_lossy().into_owned())
    };
    format!("{} ({})", text(error.error_string()), text(error.error_name()))
}
