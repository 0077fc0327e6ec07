//! Stands in for the CUDA kernels in builds without the feature `cuda`.
