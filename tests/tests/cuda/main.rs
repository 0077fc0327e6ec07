//! The whole stack on a GPU, or an emulated one: beside the CPU, with our kernels and with plain
//! ones, and its memory.

mod beside_cpu;
mod memory;
mod plain_kernels;
mod whole_requests;
