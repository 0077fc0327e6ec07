//! The whole stack on GPUs, or emulated ones: beside the CPU, with our kernels and with plain ones,
//! its memory, and ranks on a GPU each.

mod beside_cpu;
mod between_gpus;
mod memory;
mod plain_kernels;
mod whole_requests;
