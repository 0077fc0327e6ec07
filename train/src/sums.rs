//! Sums over ranks, in f64 and in the order of the ranks: every rank has the same bits.

use tributary_comm::Communicator;

use crate::error::Result;

/// Numbers that go in one message.
const PIECE: usize = 1 << 20;

/// The sum of every rank's numbers, on every rank.
///
/// # Errors
/// Returns an error if the communicator fails.
pub fn summed(comm: &mut dyn Communicator, numbers: &[f64]) -> Result<Vec<f64>> {
    let mut sums = Vec::with_capacity(numbers.len());
    for piece in numbers.chunks(PIECE) {
        let bytes = piece.iter().flat_map(|number| number.to_le_bytes()).collect();
        let parts = comm.gather_bytes(0, bytes)?;
        let whole = (comm.rank() == 0).then(|| {
            let mut sum = vec![0.0; piece.len()];
            for part in parts {
                sum.iter_mut().zip(floats(&part)).for_each(|(sum, number)| *sum += number);
            }
            sum.iter().flat_map(|number: &f64| number.to_le_bytes()).collect()
        });
        sums.extend(floats(&comm.broadcast_bytes(0, whole)?));
    }
    Ok(sums)
}

/// Rank 0's bytes, on every rank.
///
/// # Errors
/// Returns an error if the communicator fails.
pub fn shared(comm: &mut dyn Communicator, bytes: Option<&[u8]>) -> Result<Vec<u8>> {
    let length = bytes.map(|bytes| (bytes.len() as u64).to_le_bytes().to_vec());
    let length = comm.broadcast_bytes(0, length)?;
    let length = length.first_chunk().map_or(0, |length| u64::from_le_bytes(*length) as usize);
    let mut all = Vec::with_capacity(length);
    while all.len() < length {
        let piece = bytes.map(|bytes| bytes[all.len()..length.min(all.len() + 8 * PIECE)].to_vec());
        all.extend(comm.broadcast_bytes(0, piece)?);
    }
    Ok(all)
}

/// Numbers from their bytes.
pub fn floats(bytes: &[u8]) -> impl Iterator<Item = f64> + '_ {
    bytes.chunks_exact(8).map(|eight| f64::from_le_bytes(*eight.first_chunk().expect("eight bytes")))
}
