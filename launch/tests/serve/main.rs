//! `tributary serve` as its clients see it: answers, plain and streamed, errors, many clients at
//! once, those that leave, and its end. Under mpirun the test is in `launch/tests/mpi.rs`.

mod answers;
mod chunk_prefix;
mod decode_at;
mod ending;
mod errors;
mod fuzz;
mod halts;
mod hand_over;
mod limits;
mod metrics;
mod openai;
mod parameters;
mod picture_files;
mod pictures;
mod ready;
mod reasoning;
mod recorded;
mod streams;
mod tiers;

#[path = "../kit/mod.rs"]
mod kit;
