//! NVIDIA GPUs: devices, and the kernels of our own that run on them. Sources are in `kernels/cu`, one file an operation;
//! `kernels/build.rs` compiles them.
