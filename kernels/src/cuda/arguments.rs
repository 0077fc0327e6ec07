//! The attention kernels' arguments as the words of 8 bytes that the structs of
//! `kernels/cu/attention.cuh` and of the kernels' own files consist of. Addresses are those of the
//! device; two numbers of 32 bits share a word.

use super::call::{Call, Input};
use super::rope_tables::DeviceTables;
use super::sight::MAX_BLOCKS;
use crate::{Pairing, Rope};

/// Two numbers in one word, the first in the low half.
pub(super) fn pair(first: usize, second: usize) -> u64 {
    u64::from(first as u32) | u64::from(second as u32) << 32
}

/// A number and an f32 in one word.
pub(super) fn pair_real(first: usize, second: f32) -> u64 {
    u64::from(first as u32) | u64::from(second.to_bits()) << 32
}

/// `Turn`: a rotary embedding whose tables are on the device.
pub(super) fn turn<'a>(call: &mut Call<'a>, rope: &Rope, tables: &'a DeviceTables) -> [u64; 3] {
    let (cosine, sine) = (call.address_of_slice(&tables.cosine), call.address_of_slice(&tables.sine));
    [cosine, sine, pair(rope.rotary_dims() / 2, usize::from(rope.pairing() == Pairing::Interleaved))]
}

/// `Turn`: none.
pub(super) const NO_TURN: [u64; 3] = [0; 3];

/// `Blocks`: where blocks of keys and values begin; `inputs` has keys and values in turn.
pub(super) fn blocks<'a>(call: &mut Call<'a>, inputs: &'a [Input<'a>]) -> Vec<u64> {
    let mut words = vec![0; 2 * MAX_BLOCKS];
    for (index, input) in inputs.iter().enumerate() {
        words[index / 2 + index % 2 * MAX_BLOCKS] = call.address_of(input);
    }
    words
}
