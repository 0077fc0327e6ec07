//! Transfer of a pass's rows over a distributed cache: fresh keys and values go to the rank of
//! their chunk, queries to all ranks.

use candle_core::Tensor;
use tributary_comm::{Communicator, Start};
use tributary_kernels::{DeviceList, gather_list};
use tributary_protocol::deal::Homes;

use super::rounds::{all_queries, join, start_all};
use crate::error::Result;

/// Destinations of this rank's rows, and the rows that arrive here.
pub struct Delivery {
    /// For each rank, this rank's rows whose chunk it keeps.
    send: Vec<DeviceList>,
    /// For each rank, the rows of this rank's chunks that it computes.
    arriving: Vec<Vec<u32>>,
    /// Number of those rows.
    receive: Vec<usize>,
}

impl Delivery {
    /// The transfer of the context rows of `homes`. `rank_of` gives the rank that keeps a context
    /// row.
    pub fn new(rank: usize, homes: &Homes, rank_of: &dyn Fn(u32) -> usize) -> Self {
        let mine = &homes.context[rank];
        let places = |to: usize| -> DeviceList {
            let kept_there = (0..mine.len() as u32).filter(|&i| rank_of(mine[i as usize]) == to);
            kept_there.collect::<Vec<u32>>().into()
        };
        let kept_here =
            |rows: &Vec<u32>| -> Vec<u32> { rows.iter().copied().filter(|&r| rank_of(r) == rank).collect() };
        let send: Vec<DeviceList> = (0..homes.context.len()).map(places).collect();
        assert_eq!(send.iter().map(|places| places.len()).sum::<usize>(), mine.len(), "rows sent to their keepers");
        let arriving: Vec<Vec<u32>> = homes.context.iter().map(kept_here).collect();
        Self { send, receive: arriving.iter().map(Vec::len).collect(), arriving }
    }

    /// The fresh rows of this rank's chunks, in the order of their arrival.
    pub fn arriving(&self) -> Vec<u32> {
        self.arriving.concat()
    }

    /// Sends fresh keys and values to the rank of their chunk, and queries, `counts[r]` of rank r,
    /// to all. Returns all queries, and the fresh keys and values of this rank's chunks.
    ///
    /// # Errors
    /// Returns an error if the communicator fails.
    pub fn deliver(
        &self,
        comm: &mut dyn Communicator,
        counts: &[usize],
        (q, queries): (&Tensor, &Tensor),
        (k, v): (&Tensor, &Tensor),
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let parts = |x: &Tensor| self.send.iter().map(|places| Ok(gather_list(x, places)?)).collect::<Result<Vec<_>>>();
        let (k, v) = (parts(k)?, parts(v)?);
        let starts = [
            Start::AllGather { send: queries, rows: counts },
            Start::AllToAll { send: &k, rows: &self.receive },
            Start::AllToAll { send: &v, rows: &self.receive },
        ];
        let [queries, sending_k, sending_v] = start_all(comm, starts)?;
        let k = comm.wait(sending_k)?;
        let v = comm.wait(sending_v)?;
        Ok((all_queries(comm, queries, q)?, join(&k)?, join(&v)?))
    }
}
