//! Rows of a held sequence for another program: gathered on rank 0, layer by layer, in the order of
//! their positions.

use candle_core::Tensor;
use tributary_comm::Communicator;
use tributary_kernels::Keys;
use tributary_protocol::{Event, HandOver, Phase, Refusal, exit};

use super::decoding::Decoding;
use super::messages::tell;
use crate::error::Result;
use crate::handing;
use crate::numbers;
use crate::sequence::{Sequence, Turned};

impl Decoding<'_, '_> {
    /// Gathers rows of a layer on rank 0, which hands them to the coordinator.
    pub(super) fn hand_over(&mut self, wanted: &HandOver) -> Result<()> {
        self.comm.set_deadline(Phase::Decode, self.timeout);
        let (request, layer) = (wanted.request, wanted.layer as usize);
        let is_filling = handing::fills(request);
        let keys = match self.sequences.get_mut(&request).and_then(Sequence::turned) {
            _ if is_filling => handing::keys(layer, &wanted.rows)?,
            Some(Turned { own, rest, .. }) => {
                let keys = handing::standing(&[own.keys(layer), rest.keys(layer)].concat(), &wanted.rows)?;
                let layers = self.models.main.layer_attention(wanted.rows.end as usize)?;
                handing::as_read(keys, &layers[layer])?
            }
            None => Vec::new(),
        };
        let tensors: Vec<&Tensor> = keys.iter().flat_map(|Keys { k, v, .. }| [k, v]).collect();
        let rows = numbers::with_bytes(&tensors, |bytes| -> Result<_> {
            let own = blocks(&keys, bytes);
            if self.comm.rank() > 0 {
                self.comm.gather_bytes(0, part(&own))?;
                return Ok(Ok(Vec::new()));
            }
            // Its own rows are copied once, to their places.
            let others = self.comm.gather_bytes(0, Vec::new())?;
            Ok(joined(own.into_iter().chain(others.iter().flat_map(|part| read(part))), wanted))
        })??;
        tell(self.link, || {
            let rows = match rows {
                // Some rank has not come to this layer.
                Err(Lack::Missing(_)) if is_filling => Ok(None),
                Err(lack) => Err(Refusal { exit_code: exit::BUG, cause: lack.to_string() }),
                Ok(rows) => Ok(Some(rows)),
            };
            Event::HandedOver { request, rows }
        })
    }
}

/// Why rows cannot be joined.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Lack {
    #[error("a bug: row {0} is missing")]
    Missing(u32),
    #[error("a bug: row {0} is there twice")]
    Twice(u32),
}

/// Rows of one block of a rank.
#[derive(Debug, Clone, Copy)]
struct Block<'a> {
    /// Bytes of a row's keys, and of its values.
    row_bytes: usize,
    /// Positions, four bytes each.
    positions: &'a [u8],
    keys: &'a [u8],
    values: &'a [u8],
}

/// Keys and their bytes: those of each block's keys, then those of its values.
fn blocks<'a>(keys: &'a [Keys], bytes: &[&'a [u8]]) -> Vec<Block<'a>> {
    let block = |(Keys { at, .. }, bytes): (&'a Keys, &[&'a [u8]])| Block {
        row_bytes: bytes[0].len() / at.len(),
        positions: bytemuck::cast_slice(at.rope()),
        keys: bytes[0],
        values: bytes[1],
    };
    keys.iter().zip(bytes.chunks_exact(2)).filter(|(keys, _)| !keys.at.is_empty()).map(block).collect()
}

/// A message of blocks: of each the number of rows, the bytes of a row's keys, the positions, all
/// keys, all values.
fn part(blocks: &[Block]) -> Vec<u8> {
    let length = |block: &Block| 8 + block.positions.len() + block.keys.len() + block.values.len();
    let mut bytes = Vec::with_capacity(blocks.iter().map(length).sum());
    for Block { row_bytes, positions, keys, values } in blocks {
        let rows = positions.len() / 4;
        bytes.extend([rows as u32, *row_bytes as u32].iter().flat_map(|number| number.to_le_bytes()));
        [positions, keys, values].into_iter().for_each(|numbers| bytes.extend_from_slice(numbers));
    }
    bytes
}

/// The blocks of a message.
fn read(mut bytes: &[u8]) -> impl Iterator<Item = Block<'_>> {
    std::iter::from_fn(move || {
        let (count, rest) = bytes.split_first_chunk()?;
        let (row_bytes, rest) = rest.split_first_chunk()?;
        let (count, row_bytes) = (u32::from_le_bytes(*count) as usize, u32::from_le_bytes(*row_bytes) as usize);
        let (positions, rest) = rest.split_at_checked(4 * count)?;
        let (keys, rest) = rest.split_at_checked(count * row_bytes)?;
        let (values, rest) = rest.split_at_checked(count * row_bytes)?;
        bytes = rest;
        Some(Block { row_bytes, positions, keys, values })
    })
}

/// All ranks' rows in the order of their positions, each with its keys before its values.
fn joined<'a>(
    blocks: impl Iterator<Item = Block<'a>>,
    HandOver { rows, .. }: &HandOver,
) -> std::result::Result<Vec<u8>, Lack> {
    let mut found: Vec<Option<[&[u8]; 2]>> = vec![None; rows.len()];
    for Block { row_bytes, positions, keys, values } in blocks {
        let pairs = keys.chunks_exact(row_bytes).zip(values.chunks_exact(row_bytes));
        for (position, (key, value)) in positions.chunks_exact(4).zip(pairs) {
            let position = u32::from_le_bytes(position.try_into().expect("four bytes"));
            if found[(position - rows.start) as usize].replace([key, value]).is_some() {
                return Err(Lack::Twice(position));
            }
        }
    }
    let row_bytes = found.first().and_then(|row| row.as_ref()).map_or(0, |[key, _]| 2 * key.len());
    let mut joined = Vec::with_capacity(row_bytes * rows.len());
    for (position, row) in rows.clone().zip(found) {
        let [key, value] = row.ok_or(Lack::Missing(position))?;
        joined.extend_from_slice(key);
        joined.extend_from_slice(value);
    }
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message with a block of rows at these positions, with keys and values of two bytes.
    fn block(positions: &[u32]) -> Vec<u8> {
        let numbers = |second: u8| positions.iter().flat_map(|&at| [at as u8, second]).collect::<Vec<u8>>();
        let (keys, values) = (numbers(1), numbers(2));
        part(&[Block { row_bytes: 2, positions: bytemuck::cast_slice(positions), keys: &keys, values: &values }])
    }

    #[test]
    fn rows_of_all_ranks_are_joined_by_position_and_each_is_there_once() {
        let wanted = HandOver { request: 1, layer: 3, rows: 4..8 };
        let parts = [[block(&[7, 4]), block(&[])].concat(), Vec::new(), block(&[5, 6])];
        let joined = |parts: &[Vec<u8>]| joined(parts.iter().flat_map(|part| read(part)), &wanted);
        let joined_rows: Vec<u8> = (4..8).flat_map(|row| [row, 1, row, 2]).collect();
        assert_eq!(joined(&parts), Ok(joined_rows));
        let why = |parts: &[Vec<u8>]| joined(parts).expect_err("refused");
        assert_eq!((why(&parts[..2]), why(&[])), (Lack::Missing(5), Lack::Missing(4)));
        assert_eq!(why(&[block(&[4, 5, 6, 7]), block(&[6])]), Lack::Twice(6));
    }
}
