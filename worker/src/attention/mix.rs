//! Fresh keys and values mixed with the cached ones of the same rows: (1 − θ) · cached + θ · fresh
//! (SAM-KV).

use candle_core::{DType, Tensor};
use tributary_kernels::{DeviceList, add, from_eight_bits, gather_list, is_in_eight_bits, scale, to_eight_bits};

use super::rounds::join;
use crate::error::Result;
use crate::kv::Block;

/// The cached keys and values of some rows, and the share θ of the fresh ones.
pub struct Mix {
    theta: f32,
    /// Blocks that hold some of the rows, and the rows' places in them.
    parts: Vec<(Block, DeviceList)>,
    /// Place of each row among the rows of all parts.
    order: DeviceList,
}

impl Mix {
    /// The mix of `rows`; one of `blocks` holds each of them.
    ///
    /// # Panics
    /// If no block holds a row: only a bug can cause that.
    pub fn new<'a>(theta: f32, blocks: impl Iterator<Item = &'a Block>, rows: &[u32]) -> Self {
        let last = rows.iter().max().map_or(0, |&row| row as usize + 1);
        let mut wanted = vec![false; last];
        rows.iter().for_each(|&row| wanted[row as usize] = true);
        let (mut parts, mut place_of, mut given) = (Vec::new(), vec![None; last], 0);
        for block in blocks {
            let mut places: Vec<u32> = Vec::new();
            for (place, &row) in (0..).zip(block.rows()) {
                if wanted.get(row as usize) == Some(&true) {
                    places.push(place);
                    place_of[row as usize] = Some(given);
                    given += 1;
                }
            }
            if !places.is_empty() {
                parts.push((block.clone(), places.into()));
            }
        }
        let place = |&row: &u32| place_of[row as usize].expect("a block holds every row that is mixed");
        let order: Vec<u32> = rows.iter().map(place).collect();
        Self { theta, parts, order: order.into() }
    }

    /// Keys and values of a layer, mixed with these fresh ones.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn of(&self, layer: usize, (k, v): (Tensor, Tensor)) -> Result<(Tensor, Tensor)> {
        if self.order.is_empty() || self.theta >= 1.0 {
            return Ok((k, v));
        }
        Ok((self.mixed(layer, &k, |pair| &pair.0)?, self.mixed(layer, &v, |pair| &pair.1)?))
    }

    fn mixed(&self, layer: usize, fresh: &Tensor, of: fn(&(Tensor, Tensor)) -> &Tensor) -> Result<Tensor> {
        let part = |(block, places): &(Block, DeviceList)| Ok(gather_list(of(block.layer(layer)), places)?);
        let cached = join(&self.parts.iter().map(part).collect::<Result<Vec<_>>>()?)?;
        let cached = gather_list(&cached, &self.order)?;
        let [cached, wide] = [&cached, fresh].map(|x| from_eight_bits(x, DType::F32));
        let mixed = add(&scale(&cached?, 1.0 - self.theta)?, &scale(&wide?, self.theta)?)?;
        Ok(if is_in_eight_bits(fresh) { to_eight_bits(&mixed)? } else { mixed })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn rows_are_mixed_with_their_own_wherever_they_lie() {
        let rows = |numbers: &[f32]| Tensor::from_slice(numbers, (numbers.len(), 1, 1), &Device::Cpu).expect("rows");
        let block = |held: &[u32], k: &[f32]| Block::of(held.to_vec(), vec![(rows(k), rows(k))]);
        let blocks = [block(&[7, 8, 9], &[70.0, 80.0, 90.0]), block(&[2, 3], &[20.0, 30.0])];
        let mix = Mix::new(0.25, blocks.iter(), &[3, 9, 7]);
        let (k, _) = mix.of(0, (rows(&[4.0, 8.0, 0.0]), rows(&[0.0; 3]))).expect("mixed");
        assert_eq!(k.flatten_all().and_then(|k| k.to_vec1::<f32>()).expect("f32"), [23.5, 69.5, 52.5]);
        let all_fresh = Mix::new(1.0, blocks.iter(), &[2]);
        let (k, _) = all_fresh.of(0, (rows(&[5.0]), rows(&[0.0]))).expect("mixed");
        assert_eq!(k.flatten_all().and_then(|k| k.to_vec1::<f32>()).expect("f32"), [5.0]);
    }

    #[test]
    #[should_panic(expected = "a block holds every row that is mixed")]
    fn a_row_that_is_nowhere_is_a_bug() {
        Mix::new(0.5, [Block::new([1, 2])].iter(), &[3]);
    }
}
