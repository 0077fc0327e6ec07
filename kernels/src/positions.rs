//! Positions of rows: the position for their rotary embedding, their causal order, and their
//! segment. Evicted keys differ between KV heads: positions may be one list for all heads, or one a
//! head.
//!
//! A rotary position is the number of a row in a table of rotations ([`Rope`](crate::Rope)). The
//! first rows are those of the plain positions 0, 1, ..; a place on three axes, where a picture's
//! row stands, has a row after these. Only plain numbers can be compared, as a window does.

use std::sync::{Arc, Weak};

use crate::DeviceList;

/// The order of a row that no row sees and that sees none: it is in the future of all rows.
pub const PAD: u32 = u32::MAX;

/// The segment of keys that every segment sees (the prefix of packed chunks).
pub const SHARED: u32 = u32::MAX;

/// The keys that query rows see. A row whose order is [`PAD`] is never seen and sees nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rule {
    /// Query `i` sees key `j` iff `order_k[j] <= order_q[i]`, and the segments are equal or the
    /// key's is [`SHARED`].
    #[default]
    Causal,
    /// Query `i` sees key `j` iff the segments differ or the key's is [`SHARED`]; order does not
    /// count.
    Others,
}

/// Positions of rows: one entry a row in each list, the same for all KV heads or separate for each.
/// Cheap to clone. As queries they see keys by a [`Rule`], the causal one unless said otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Positions(Arc<HeadPositions>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum HeadPositions {
    /// Every KV head has the same rows.
    Same(Lists),
    /// One entry a KV head, none of them per head itself.
    PerHead(Vec<Positions>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Lists {
    rope: DeviceList,
    order: Arc<[u32]>,
    segment: Arc<[u32]>,
    rule: Rule,
    window: Option<u32>,
}

/// Identity of positions, held without keeping them alive: no others take their place in memory as
/// long as this exists.
#[derive(Debug, Clone)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(crate) struct Identity {
    lists: [Weak<[u32]>; 3],
    rule: Rule,
    window: Option<u32>,
}

#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
impl Identity {
    /// Whether it is that of these very lists, not only of equal ones.
    pub(crate) fn is_of(&self, positions: &Positions) -> bool {
        let Lists { rope, order, segment, rule, window } = positions.lists();
        let theirs = [rope.numbers(), order, segment];
        let same = |(ours, theirs): (&Weak<[u32]>, &Arc<[u32]>)| Weak::ptr_eq(ours, &Arc::downgrade(theirs));
        (self.rule, self.window) == (*rule, *window) && self.lists.iter().zip(theirs).all(same)
    }

    /// Whether the lists are still in use.
    pub(crate) fn is_there(&self) -> bool {
        self.lists.iter().all(|list| list.strong_count() > 0)
    }
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
        Self(Arc::new(HeadPositions::Same(Lists { rope, order, segment, rule: Rule::Causal, window: None })))
    }

    /// The same rows, which as queries see keys by `rule`; the same for all KV heads.
    #[must_use]
    pub fn seeing(&self, rule: Rule) -> Self {
        Self(Arc::new(HeadPositions::Same(Lists { rule, ..self.lists().clone() })))
    }

    /// The same rows, which as queries see only the last `window` positions (sliding-window
    /// attention; Beltagy et al. 2020, "Longformer", section 3.1): query `i` sees key `j` only
    /// if `rope_q[i] − rope_k[j] < window`, beside their [`Rule`]. Rotary positions decide, so
    /// that a chunk that has been moved is seen as the model would see it there.
    #[must_use]
    pub fn within(&self, window: Option<u32>) -> Self {
        match window == self.lists().window {
            true => self.clone(),
            false => Self(Arc::new(HeadPositions::Same(Lists { window, ..self.lists().clone() }))),
        }
    }

    /// The window in which these rows see keys, in positions.
    pub fn window(&self) -> Option<u32> {
        self.lists().window
    }

    /// The lowest rotary position that query `i` sees.
    pub fn lowest(&self, i: usize) -> u32 {
        let Lists { rope, window, .. } = self.lists();
        window.map_or(0, |window| (rope.numbers()[i] + 1).saturating_sub(window))
    }

    /// The rule by which these rows see keys.
    pub fn rule(&self) -> Rule {
        self.lists().rule
    }

    /// Rows with other positions in each KV head: an entry a head, all of one length. For keys
    /// only.
    ///
    /// # Panics
    /// Panics if there is no head, if the lengths differ, or if an entry is per head itself: only a
    /// bug can do that.
    pub fn per_head(heads: Vec<Positions>) -> Self {
        assert!(!heads.is_empty(), "positions of no KV head");
        for head in &heads {
            assert!(head.heads().is_none(), "positions per KV head within one");
            assert_eq!(head.len(), heads[0].len(), "rows of every KV head");
        }
        Self(Arc::new(HeadPositions::PerHead(heads)))
    }

    /// `count` rows one after the other from `start`, rotary position and order alike, all in
    /// segment 0.
    pub fn run(start: u32, count: usize) -> Self {
        let run: Arc<[u32]> = (start..start + count as u32).collect();
        Self::new(run.clone(), run, vec![0; count])
    }

    /// Rows in one segment with the given rotary positions and orders.
    pub fn in_sequence(rope: impl Into<DeviceList>, order: impl Into<Arc<[u32]>>) -> Self {
        let (rope, order): (DeviceList, Arc<[u32]>) = (rope.into(), order.into());
        let segment = vec![0; rope.len()];
        Self::new(rope, order, segment)
    }

    /// Number of KV heads, where each has its own positions.
    pub fn heads(&self) -> Option<usize> {
        match &*self.0 {
            HeadPositions::Same(_) => None,
            HeadPositions::PerHead(heads) => Some(heads.len()),
        }
    }

    /// Positions of the rows of one KV head: these very positions where all heads have the same.
    pub fn of_head(&self, head: usize) -> &Positions {
        match &*self.0 {
            HeadPositions::Same(_) => self,
            HeadPositions::PerHead(heads) => &heads[head],
        }
    }

    /// The lists that all heads share.
    ///
    /// # Panics
    /// If each KV head has its own: then the caller must go head by head.
    fn lists(&self) -> &Lists {
        match &*self.0 {
            HeadPositions::Same(lists) => lists,
            HeadPositions::PerHead(heads) => panic!("positions of {} KV heads are read as one", heads.len()),
        }
    }

    /// Number of rows (of each KV head).
    pub fn len(&self) -> usize {
        self.of_head(0).lists().rope.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rotary position of each row, the same for all KV heads.
    pub fn rope(&self) -> &[u32] {
        &self.lists().rope
    }

    /// The same, to be kept on a device.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn rope_list(&self) -> &DeviceList {
        &self.lists().rope
    }

    /// Causal order of each row, the same for all KV heads.
    pub fn order(&self) -> &[u32] {
        &self.lists().order
    }

    /// Segment of each row, the same for all KV heads.
    pub fn segment(&self) -> &[u32] {
        &self.lists().segment
    }

    /// Whether query `i` of these positions sees key `j` of `keys`.
    pub fn sees(&self, i: usize, keys: &Positions, j: usize) -> bool {
        let (queries, keys) = (self.lists(), keys.lists());
        let (order_q, order_k) = (queries.order[i], keys.order[j]);
        let (segment_q, segment_k) = (queries.segment[i], keys.segment[j]);
        let by_rule = match queries.rule {
            Rule::Causal => order_k <= order_q && (segment_k == segment_q || segment_k == SHARED),
            Rule::Others => segment_k != segment_q || segment_k == SHARED,
        };
        let in_window = keys.rope.numbers()[j] >= self.lowest(i);
        order_q != PAD && order_k != PAD && by_rule && in_window
    }

    /// These very lists, to be known again. Their memory stays as long as this is there, their
    /// owners' numbers do not count. They are the same for all KV heads.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn identity(&self) -> Identity {
        let Lists { rope, order, segment, rule, window } = self.lists();
        Identity { lists: [rope.numbers(), order, segment].map(Arc::downgrade), rule: *rule, window: *window }
    }

    /// The rows at `indices`, in that order, of every KV head alike.
    pub fn select(&self, indices: &[u32]) -> Self {
        let pick = |list: &[u32]| -> Arc<[u32]> { indices.iter().map(|&i| list[i as usize]).collect() };
        match &*self.0 {
            HeadPositions::Same(Lists { rope, order, segment, rule, window }) => {
                Self::new(pick(rope), pick(order), pick(segment)).seeing(*rule).within(*window)
            }
            HeadPositions::PerHead(heads) => Self::per_head(heads.iter().map(|head| head.select(indices)).collect()),
        }
    }

    /// The same rows with those at `hidden` invisible to all rows, in every KV head alike.
    pub fn without(&self, hidden: &[u32]) -> Self {
        match &*self.0 {
            HeadPositions::Same(Lists { rope, order, segment, rule, window }) => {
                let mut order = order.to_vec();
                for &row in hidden {
                    order[row as usize] = PAD;
                }
                Self::new(rope.clone(), order, segment.clone()).seeing(*rule).within(*window)
            }
            HeadPositions::PerHead(heads) => Self::per_head(heads.iter().map(|head| head.without(hidden)).collect()),
        }
    }

    /// The rows of `parts` one after the other, for keys: per KV head where one of them is so.
    pub fn concat(parts: &[&Positions]) -> Self {
        if let Some(heads) = parts.iter().find_map(|part| part.heads()) {
            let of_head = |head: usize| parts.iter().map(|part| part.of_head(head)).collect::<Vec<_>>();
            return Self::per_head((0..heads).map(|head| Self::concat(&of_head(head))).collect());
        }
        let join = |list: fn(&Positions) -> &[u32]| -> Arc<[u32]> {
            parts.iter().flat_map(|part| list(part).iter().copied()).collect()
        };
        Self::new(join(Positions::rope), join(Positions::order), join(Positions::segment))
    }
}
