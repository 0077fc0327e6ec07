//! Memory of results, which is written once and not cleared before: of a large result, clearing
//! would take a part of the time that computing it does.

use std::mem::MaybeUninit;

use rayon::prelude::*;

/// Numbers that are not written yet.
pub(super) type Fresh<T = f32> = [MaybeUninit<T>];

/// `count` numbers that `write` writes. It returns whether it has written all of them; if not, as a
/// call that was ended early, they are zeros.
///
/// # Safety
/// `write` returns true only if it has written every number.
pub(super) unsafe fn written<T: Copy + Default>(count: usize, write: impl FnOnce(&mut Fresh<T>) -> bool) -> Vec<T> {
    let mut numbers = Vec::with_capacity(count);
    if !write(&mut numbers.spare_capacity_mut()[..count]) {
        return vec![T::default(); count];
    }
    // SAFETY: there is room for them, and all are written.
    unsafe { numbers.set_len(count) };
    numbers
}

/// `count` numbers in pieces of `piece`, which threads write beside each other. `write` gets the
/// index of a piece's first number, and the piece.
///
/// # Safety
/// `write` writes every number of its piece.
pub(super) unsafe fn written_in_pieces<T: Copy + Default + Send>(
    count: usize,
    piece: usize,
    write: impl Fn(usize, &mut Fresh<T>) + Sync,
) -> Vec<T> {
    let all = |out: &mut Fresh<T>| {
        out.par_chunks_mut(piece).enumerate().for_each(|(index, out)| write(index * piece, out));
        true
    };
    // SAFETY: the caller's promise, for each of the pieces, which are the whole.
    unsafe { written(count, all) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_that_were_written_or_zeros() {
        let all = |out: &mut Fresh| {
            out.iter_mut().enumerate().for_each(|(at, out)| _ = out.write(at as f32));
            true
        };
        // SAFETY: all are written.
        assert_eq!(unsafe { written(3, all) }, [0.0, 1.0, 2.0]);
        // SAFETY: it says that it has left some out.
        assert_eq!(unsafe { written::<f32>(3, |_| false) }, [0.0; 3]);
        let write = |from: usize, out: &mut Fresh<u32>| {
            out.iter_mut().enumerate().for_each(|(at, out)| _ = out.write((from + at) as u32));
        };
        // SAFETY: every piece is written.
        assert_eq!(unsafe { written_in_pieces(1000, 7, write) }, (0..1000).collect::<Vec<u32>>());
    }
}
