//! The meaning of a failure of NCCL: a rank lost, memory that does not suffice, a bug.
//!
//! NCCL has no code for a lack of memory. In 2.28 to 2.30 (`alloc.h`, `checks.h`) the GPU's answers
//! `ncclUnhandledCudaError`, and the last line of its log is "Failed to CUDA malloc N bytes" (or
//! calloc), or "Cuda failure 'out of memory'" where nothing follows it; the host's answers
//! `ncclSystemError` with "Failed to malloc N bytes", or with the system's words. A context that a
//! failed kernel has poisoned gives no memory either: then the driver does not answer, and memory
//! is not short. NCCL keeps one line for all its communicators and does not clear it: after a lack
//! that it survived, a later failure may be mistaken for one. A refusal of multicast between GPUs
//! has the same codes, and the words of a lack of memory where memory for multicast is refused.

use candle_core::cuda::CudaError;
use cudarc::driver::sys::CUresult;
use cudarc::nccl::sys::ncclResult_t as Code;
use tributary_protocol::exit;
use tributary_system::size::rounded;

use crate::Error;

/// NCCL's words where the GPU's memory does not suffice, in lower case.
const OF_GPU: [&str; 3] = ["failed to cuda malloc", "failed to cuda calloc", "out of memory"];

/// NCCL's words where the host's memory does not suffice: plain memory, pinned memory, `/dev/shm`.
const OF_HOST: [&str; 5] = [
    "failed to malloc",
    "allocation failed",
    "cannot allocate memory",
    "failed to cuda host alloc",
    "no space left on device",
];

/// NCCL's words where the switches between GPUs refuse multicast (NVLS). NCCL uses it on every GPU
/// that has it, and fails without it, as in a virtual machine or a container that cannot reach the
/// fabric manager.
const OF_MULTICAST: [&str; 2] = ["nvls", "multicast"];

/// The way to find out how much memory is free on the GPU.
#[derive(Clone, Copy)]
pub enum Ask {
    /// The driver, which may let the thread wait.
    Driver(fn() -> Option<u64>),
    Nobody,
}

/// The exit code of a failure, and its remedy.
pub fn classify(code: Code, said: &str, ask: Ask) -> (u8, String) {
    let said = said.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|words| said.contains(words));
    let other = match code {
        // Another rank or the way to it.
        Code::ncclRemoteError | Code::ncclSystemError => exit::RANK_LOST,
        // Two ranks on one GPU are such a case.
        Code::ncclInvalidUsage => exit::CONFIGURATION,
        _ => exit::BUG,
    };
    if !matches!(code, Code::ncclUnhandledCudaError | Code::ncclSystemError) {
        return (other, String::new());
    }
    if has(&OF_MULTICAST) {
        return (
            exit::CONFIGURATION,
            "; multicast in the switches between GPUs is not to be had here and is not needed: set NCCL_NVLS_ENABLE=0"
                .to_owned(),
        );
    }
    if has(&OF_HOST) {
        return (
            exit::OUT_OF_MEMORY,
            "; the host has no memory for NCCL's buffers, look at /dev/shm and the limits of the job".to_owned(),
        );
    }
    if !has(&OF_GPU) {
        return (other, String::new());
    }
    let what = "; the GPU has no memory for NCCL's buffers";
    let then = "give ranks less with --device-memory";
    match ask {
        Ask::Nobody => (exit::OUT_OF_MEMORY, format!("{what}: {then}")),
        Ask::Driver(free_bytes) => match free_bytes() {
            Some(bytes) => (exit::OUT_OF_MEMORY, format!("{what} ({} are free): {then}", rounded(bytes))),
            None => (other, String::new()),
        },
    }
}

/// A failure of CUDA.
pub fn cuda(error: impl std::fmt::Debug) -> Error {
    Error::Tensor(format!("CUDA: {error:?}"))
}

/// The failure to get memory for the data that a call receives.
pub fn received(error: candle_core::Error, bytes: usize) -> Error {
    let mut inner = &error;
    while let candle_core::Error::WithBacktrace { inner: cause, .. } = inner {
        inner = cause;
    }
    let lacks = |cause: &CudaError| matches!(cause, CudaError::Cuda(refused) if refused.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    match inner {
        candle_core::Error::Cuda(cause) if cause.downcast_ref().is_some_and(lacks) => Error::OutOfMemory { bytes },
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Option<u64> = Some(100 << 20);

    fn classified(code: Code, said: &str) -> (u8, String) {
        classify(code, said, Ask::Driver(|| FREE))
    }

    #[test]
    fn a_lack_of_memory_is_told_from_other_failures() {
        for said in
            ["Failed to CUDA calloc 4194304 bytes", "Cuda failure 'out of memory'", "Cuda failure 2 'out of memory'"]
        {
            let (exit_code, advice) = classified(Code::ncclUnhandledCudaError, said);
            assert_eq!(exit_code, 71, "{said}");
            assert!(advice.contains("(100.0 MiB are free): give ranks less with --device-memory"), "{advice}");
            let spoilt = classify(Code::ncclUnhandledCudaError, said, Ask::Driver(|| None));
            assert_eq!(spoilt, (70, String::new()), "a spoilt context");
            let unasked = classify(Code::ncclUnhandledCudaError, said, Ask::Nobody);
            assert_eq!(unasked.0, 71, "{said}: {}", unasked.1);
        }
        for said in ["Failed to malloc 64 bytes", "Call to mmap failed: Cannot allocate memory"] {
            assert_eq!(classified(Code::ncclSystemError, said).0, 71, "{said}");
        }
        assert_eq!(classified(Code::ncclUnhandledCudaError, "Failed to CUDA host alloc 64 bytes").0, 71);
        assert_eq!(
            classified(Code::ncclSystemError, "Call to connect failed: Connection refused"),
            (69, String::new())
        );
        assert_eq!(classified(Code::ncclUnhandledCudaError, "Cuda failure 'invalid argument'"), (70, String::new()));
        assert_eq!(classified(Code::ncclInternalError, "out of memory"), (70, String::new()));
        assert_eq!(classified(Code::ncclInvalidUsage, "Duplicate GPU detected"), (78, String::new()));
    }

    #[test]
    fn a_refusal_of_multicast_says_what_to_set() {
        for (code, said) in [
            (Code::ncclUnhandledCudaError, "Failed to bind NVLink SHARP (NVLS) Multicast memory : CUDA error 401"),
            (
                Code::ncclUnhandledCudaError,
                "Failed to bind NVLink SHARP (NVLS) Multicast memory : CUDA error 2 'out of memory'",
            ),
            (Code::ncclSystemError, "Call to cuMulticastCreate failed"),
        ] {
            let (exit_code, advice) = classified(code, said);
            assert_eq!(exit_code, 78, "{said}");
            assert!(advice.ends_with("set NCCL_NVLS_ENABLE=0"), "{said}: {advice}");
        }
        let elsewhere =
            classified(Code::ncclUnhandledCudaError, "Cuda failure 'an illegal memory access was encountered'");
        assert_eq!(elsewhere, (70, String::new()));
    }
}
