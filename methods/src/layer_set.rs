//! A set of a model's layers that is copied like a number.

/// Some of a model's first 128 layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LayerSet(u128);

impl LayerSet {
    /// The largest number of layers of a model of which a set can be told.
    pub const MOST: usize = u128::BITS as usize;

    /// No layer.
    pub const EMPTY: Self = Self(0);

    /// Whether a layer is among them.
    pub fn contains(self, layer: usize) -> bool {
        layer < Self::MOST && self.0 >> layer & 1 == 1
    }

    /// Number of layers.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<usize> for LayerSet {
    /// The layers of these numbers; those beyond [`MOST`](Self::MOST) are left out.
    fn from_iter<I: IntoIterator<Item = usize>>(layers: I) -> Self {
        Self(layers.into_iter().filter(|&layer| layer < Self::MOST).fold(0, |set, layer| set | 1 << layer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_its_layers_and_no_others() {
        let set: LayerSet = [0, 5, 127, 128, 5].into_iter().collect();
        assert_eq!((0..200).filter(|&layer| set.contains(layer)).collect::<Vec<_>>(), [0, 5, 127]);
        assert_eq!((set.len(), set.is_empty(), LayerSet::default().is_empty()), (3, false, true));
    }
}
