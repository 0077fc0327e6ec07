//! Rows of a held sequence for another program: gathered on rank 0, layer by layer, in the order of
//! their positions.

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
        let parts = self.comm.gather_bytes(0, part(&keys)?)?;
        tell(self.link, || {
            let rows = match joined(&parts, wanted) {
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

/// This rank's rows, block by block.
fn part(keys: &[Keys]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for Keys { k, v, at } in keys {
        let (rows, kv_heads, head_dim) = k.dims3()?;
        let row_bytes = kv_heads * head_dim * k.dtype().size_in_bytes();
        bytes.extend([rows as u32, row_bytes as u32].iter().flat_map(|number| number.to_le_bytes()));
        bytes.extend(at.rope().iter().flat_map(|position| position.to_le_bytes()));
        numbers::append(k, &mut bytes)?;
        numbers::append(v, &mut bytes)?;
    }
    Ok(bytes)
}

/// Rows of one block of a rank, as [`part`] writes them: their number, the bytes of a row's keys,
/// their positions, all keys, all values.
struct BlockPart<'a> {
    row_bytes: usize,
    positions: &'a [u8],
    keys: &'a [u8],
    values: &'a [u8],
}

impl<'a> BlockPart<'a> {
    /// The first block of `bytes`, and the bytes after it.
    fn read(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (count, bytes) = bytes.split_first_chunk()?;
        let (row_bytes, bytes) = bytes.split_first_chunk()?;
        let (count, row_bytes) = (u32::from_le_bytes(*count) as usize, u32::from_le_bytes(*row_bytes) as usize);
        let (positions, bytes) = bytes.split_at_checked(4 * count)?;
        let (keys, bytes) = bytes.split_at_checked(count * row_bytes)?;
        let (values, bytes) = bytes.split_at_checked(count * row_bytes)?;
        Some((Self { row_bytes, positions, keys, values }, bytes))
    }
}

/// All ranks' rows in the order of their positions, each with its keys before its values.
fn joined(parts: &[Vec<u8>], HandOver { rows, .. }: &HandOver) -> std::result::Result<Vec<u8>, Lack> {
    let mut found: Vec<Option<[&[u8]; 2]>> = vec![None; rows.len()];
    for part in parts {
        let mut left = &part[..];
        while let Some((block, rest)) = BlockPart::read(left) {
            left = rest;
            let width = block.row_bytes;
            let pairs = block.keys.chunks_exact(width).zip(block.values.chunks_exact(width));
            for (position, (key, value)) in block.positions.chunks_exact(4).zip(pairs) {
                let position = u32::from_le_bytes(position.try_into().expect("four bytes"));
                if found[(position - rows.start) as usize].replace([key, value]).is_some() {
                    return Err(Lack::Twice(position));
                }
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

    /// A block of rows at these positions, with keys and values of two bytes.
    fn block(positions: &[u32]) -> Vec<u8> {
        let head = [positions.len() as u32, 2].into_iter().chain(positions.iter().copied());
        let keys = positions.iter().flat_map(|&position| [position as u8, 1]);
        let values = positions.iter().flat_map(|&position| [position as u8, 2]);
        head.flat_map(u32::to_le_bytes).chain(keys).chain(values).collect()
    }

    #[test]
    fn rows_of_all_ranks_are_joined_by_position_and_each_is_there_once() {
        let wanted = HandOver { request: 1, layer: 3, rows: 4..8 };
        let parts = [[block(&[7, 4]), block(&[])].concat(), Vec::new(), block(&[5, 6])];
        let joined_rows: Vec<u8> = (4..8).flat_map(|row| [row, 1, row, 2]).collect();
        assert_eq!(joined(&parts, &wanted), Ok(joined_rows));
        let why = |parts: &[Vec<u8>]| joined(parts, &wanted).expect_err("refused");
        assert_eq!((why(&parts[..2]), why(&[])), (Lack::Missing(5), Lack::Missing(4)));
        assert_eq!(why(&[block(&[4, 5, 6, 7]), block(&[6])]), Lack::Twice(6));
    }
}
