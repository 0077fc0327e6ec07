//! Where rows stand: the position their rotary embedding takes, their causal order, and the segment they belong to.

use std::sync::Arc;

use crate::DeviceList;

/// The order of a row that nobody sees and that sees nothing: it is in everybody's future.
pub const PAD: u32 = u32::MAX;

/// The segment of keys that every segment sees (the prefix of packed chunks).
pub const SHARED: u32 = u32::MAX;

/// One entry a row in each list. Cheap to clone.
///
/// Query `i` sees key `j` iff `order_k[j] <= order_q[i]`, neither is [`PAD`], and the segments are equal or the key's is
/// [`SHARED`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Positions {
    rope: DeviceList,
    order: Arc<[u32]>,
    segment: Arc<[u32]>,
}

impl Positions {
    /// Positions from their three lists.
    ///
    /// # Panics
    /// If the lists differ in length: only a bug can do that.
    pub fn new(rope: impl Into<DeviceList>, order: impl Into<Arc<[u32]>>, segment: impl Into<Arc<[u32]>>) -> Self {
        let (rope, order, segment) = (rope.into(), order.into(), segment.into());
        assert_eq!(rope.len(), order.len(), "rope and order");
        assert_eq!(order.len(), segment.len(), "order and segment");
        Self { rope, order, segment }
    }

    /// `count` rows one after the other from `start`, rotary position and order alike, all in segment 0.
    pub fn run(start: u32, count: usize) -> Self {
        let run: Arc<[u32]> = (start..start + count as u32).collect();
        Self { rope: run.clone().into(), order: run, segment: vec![0; count].into() }
    }

    /// Rows in one segment with the given rotary positions and orders.
    pub fn in_sequence(rope: impl Into<DeviceList>, order: impl Into<Arc<[u32]>>) -> Self {
        let (rope, order): (DeviceList, Arc<[u32]>) = (rope.into(), order.into());
        let segment = vec![0; rope.len()];
        Self::new(rope, order, segment)
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rope.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rope.is_empty()
    }

    /// Rotary position of each row.
    pub fn rope(&self) -> &[u32] {
        &self.rope
    }

    /// The same, to be kept on a device.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn rope_list(&self) -> &DeviceList {
        &self.rope
    }

    /// Causal order of each row.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// Segment of each row.
    pub fn segment(&self) -> &[u32] {
        &self.segment
    }

    /// Whether query `i` of these positions sees key `j` of `keys`.
    pub fn sees(&self, i: usize, keys: &Positions, j: usize) -> bool {
        let (order_q, order_k) = (self.order[i], keys.order[j]);
        let (segment_q, segment_k) = (self.segment[i], keys.segment[j]);
        order_q != PAD && order_k != PAD && order_k <= order_q && (segment_k == segment_q || segment_k == SHARED)
    }

    /// Whether these are the very lists of the other positions, not only equal ones.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn is_same(&self, other: &Positions) -> bool {
        self.rope.is_same(&other.rope)
            && Arc::ptr_eq(&self.order, &other.order)
            && Arc::ptr_eq(&self.segment, &other.segment)
    }

    /// The rows at `indices`, in that order.
    pub fn select(&self, indices: &[u32]) -> Self {
        let pick = |list: &[u32]| -> Arc<[u32]> { indices.iter().map(|&i| list[i as usize]).collect() };
        Self { rope: pick(&self.rope).into(), order: pick(&self.order), segment: pick(&self.segment) }
    }

    /// The same rows with those at `hidden` taken out of everybody's sight.
    pub fn without(&self, hidden: &[u32]) -> Self {
        let mut order = self.order.to_vec();
        for &row in hidden {
            order[row as usize] = PAD;
        }
        Self { rope: self.rope.clone(), order: order.into(), segment: self.segment.clone() }
    }

    /// The rows of `parts` one after the other.
    pub fn concat(parts: &[&Positions]) -> Self {
        let join = |list: fn(&Positions) -> &[u32]| -> Arc<[u32]> {
            parts.iter().flat_map(|part| list(part).iter().copied()).collect()
        };
        Self { rope: join(Positions::rope).into(), order: join(Positions::order), segment: join(Positions::segment) }
    }
}
