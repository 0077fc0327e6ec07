//! Rows of a block in one layer, and the numbers by which they are sent and stored.

use std::sync::Arc;

/// Rows of a block in one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerRows {
    /// The same in every KV head.
    AllHeads(Arc<[u32]>),
    /// Different in each KV head, of one length.
    PerHead(Arc<[Arc<[u32]>]>),
}

impl LayerRows {
    /// The rows of every KV head; stored once if they are the same in all.
    ///
    /// # Panics
    /// If there is no head, or if their lengths differ: only a bug can cause that.
    pub fn of_heads(heads: Vec<Vec<u32>>) -> Self {
        let first = heads.first().expect("a layer has a KV head");
        assert!(heads.iter().all(|rows| rows.len() == first.len()), "rows of {} KV heads", heads.len());
        match heads.iter().all(|rows| rows == first) {
            true => LayerRows::AllHeads(first[..].into()),
            false => LayerRows::PerHead(heads.into_iter().map(Arc::from).collect()),
        }
    }

    /// Number of rows (of each KV head).
    pub fn len(&self) -> usize {
        match self {
            LayerRows::AllHeads(rows) => rows.len(),
            LayerRows::PerHead(heads) => heads.first().map_or(0, |rows| rows.len()),
        }
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows of one KV head.
    pub fn of_head(&self, head: usize) -> &[u32] {
        match self {
            LayerRows::AllHeads(rows) => rows,
            LayerRows::PerHead(heads) => &heads[head],
        }
    }

    /// The same with every number mapped to another one.
    #[must_use]
    pub fn renumbered(&self, number: impl Fn(u32) -> u32) -> Self {
        let of = |rows: &Arc<[u32]>| -> Arc<[u32]> { rows.iter().map(|&row| number(row)).collect() };
        match self {
            LayerRows::AllHeads(rows) => LayerRows::AllHeads(of(rows)),
            LayerRows::PerHead(heads) => LayerRows::PerHead(heads.iter().map(of).collect()),
        }
    }

    /// Bytes that the numbers take in memory.
    pub fn bytes(&self) -> usize {
        match self {
            LayerRows::AllHeads(rows) => 4 * rows.len(),
            LayerRows::PerHead(heads) => heads.iter().map(|rows| 4 * rows.len()).sum(),
        }
    }

    /// The numbers of `kv_heads` KV heads, head by head.
    pub fn numbers(&self, kv_heads: usize) -> Vec<u32> {
        (0..kv_heads).flat_map(|head| self.of_head(head).iter().copied()).collect()
    }

    /// The rows of `kv_heads` KV heads from their [numbers](Self::numbers).
    pub fn of_numbers(numbers: &[u32], kv_heads: usize) -> Self {
        let count = numbers.len() / kv_heads;
        Self::of_heads((0..kv_heads).map(|head| numbers[head * count..(head + 1) * count].to_vec()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_from_their_numbers() {
        for heads in [vec![vec![1, 4], vec![2, 3], vec![1, 4]], vec![vec![5, 6, 7]; 3], vec![Vec::new(); 3]] {
            let rows = LayerRows::of_heads(heads.clone());
            assert_eq!(LayerRows::of_numbers(&rows.numbers(3), 3), rows);
            assert_eq!(matches!(rows, LayerRows::AllHeads(_)), heads[0] == heads[1]);
            let moved = rows.renumbered(|row| row + 10);
            assert!((0..3).all(|head| moved.of_head(head).iter().zip(&heads[head]).all(|(a, b)| *a == b + 10)));
        }
    }
}
