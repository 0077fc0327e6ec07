//! Places of the patches of a pass: rows and columns in their pictures, the windows, and the order
//! in which a tower keeps them. Pure arithmetic on the pictures' grids.

use std::collections::HashMap;

use tributary_kernels::{Positions, Rope};

use super::pictures::Grid;
use crate::error::Result;

/// Base of the frequencies by which heads turn.
const THETA: f64 = 10_000.0;

/// The patches of several pictures in the order in which a tower keeps them: the pictures one after
/// the other; within one the windows line by line, then tokens line by line, then the patches of a
/// token line by line. A window is a run of patches, so that attention in windows reads no others.
pub(super) struct Layout {
    /// Row, column and picture of each patch.
    patches: Vec<(u32, u32, u32)>,
    /// Window of each patch, numbered through all pictures.
    windows: Vec<u32>,
    /// For each token in this order its number in the order of pictures and lines.
    tokens: Vec<u32>,
    grids: Vec<Grid>,
    token_patches: usize,
}

impl Layout {
    /// With tokens of `merge` x `merge` patches and windows of `window` x `window` tokens; without
    /// one a picture is one window.
    pub fn new(grids: &[Grid], merge: usize, window: Option<usize>) -> Self {
        let merge = merge as u32;
        let mut layout = Self {
            patches: Vec::new(),
            windows: Vec::new(),
            tokens: Vec::new(),
            grids: grids.to_vec(),
            token_patches: (merge * merge) as usize,
        };
        let mut first_token = 0;
        for (picture, grid) in grids.iter().enumerate() {
            let (rows, columns) = (grid.rows / merge, grid.columns / merge);
            let side = window.map_or(rows.max(columns), |side| side as u32).max(1);
            for top in (0..rows).step_by(side as usize) {
                for left in (0..columns).step_by(side as usize) {
                    let number = layout.windows.last().map_or(0, |window| window + 1);
                    for row in top..rows.min(top + side) {
                        for column in left..columns.min(left + side) {
                            layout.tokens.push(first_token + row * columns + column);
                            let patch = |index: u32| (row * merge + index / merge, column * merge + index % merge);
                            let of_token = (0..merge * merge).map(patch);
                            layout.patches.extend(of_token.map(|(row, column)| (row, column, picture as u32)));
                            layout.windows.resize(layout.patches.len(), number);
                        }
                    }
                }
            }
            first_token += rows * columns;
        }
        layout
    }

    /// Number of patches.
    pub fn len(&self) -> usize {
        self.patches.len()
    }

    /// For each patch its number in the order in which pictures come: tokens line by line.
    pub fn patch_numbers(&self) -> Vec<u32> {
        let patches = self.token_patches as u32;
        self.tokens.iter().flat_map(|token| (0..patches).map(move |patch| token * patches + patch)).collect()
    }

    /// For each token in the order of lines its number in this order.
    pub fn token_places(&self) -> Vec<u32> {
        let mut to = vec![0; self.tokens.len()];
        for (index, &token) in self.tokens.iter().enumerate() {
            to[token as usize] = index as u32;
        }
        to
    }

    /// Whether this is the order of lines.
    pub fn is_by_lines(&self) -> bool {
        self.tokens.is_sorted()
    }

    /// The rotations of heads of `head_dim`, and the positions of patches that see their picture,
    /// and of those that see their window. Half of the pairs turns by the row of a patch, half by
    /// its column, both by the same frequencies.
    pub fn turned(&self, head_dim: usize) -> Result<(Rope, [Positions; 2])> {
        let half = head_dim / 2;
        let frequencies: Vec<f64> = (0..half / 2).map(|j| THETA.powf(-(2.0 * j as f64) / half as f64)).collect();
        let (mut known, mut angles, mut numbers) = (HashMap::new(), Vec::new(), Vec::with_capacity(self.len()));
        for &(row, column, _) in &self.patches {
            let number = *known.entry((row, column)).or_insert_with(|| {
                let of_axis = |place: u32| frequencies.iter().map(move |frequency| f64::from(place) * frequency);
                angles.push(of_axis(row).chain(of_axis(column)).collect::<Vec<f64>>());
                angles.len() as u32 - 1
            });
            numbers.push(number);
        }
        let rope = Rope::of_angles(head_dim, &angles)?;
        // Order does not count in a tower: all of a segment see each other.
        let order = vec![0; self.len()];
        let pictures: Vec<u32> = self.patches.iter().map(|&(_, _, picture)| picture).collect();
        let whole = Positions::new(numbers.clone(), order.clone(), pictures);
        Ok((rope, [whole, Positions::new(numbers, order, self.windows.clone())]))
    }

    /// The four rows of a table of `side` x `side` positions that each patch lies between, and
    /// their weights: bilinear, with the table's corners on the picture's.
    pub fn corners(&self, side: usize) -> [(Vec<u32>, Vec<f32>); 4] {
        // In f32 as the models were trained: which rows are the nearest may hang on it.
        let between = |place: u32, count: u32| {
            let at = place as f32 * (side - 1) as f32 / (count.max(2) - 1) as f32;
            let low = at.floor();
            (low as u32, (low as u32 + 1).min(side as u32 - 1), at - low)
        };
        let mut corners: [(Vec<u32>, Vec<f32>); 4] = Default::default();
        for &(row, column, picture) in &self.patches {
            let grid = self.grids[picture as usize];
            let (top, bottom, down) = between(row, grid.rows);
            let (left, right, across) = between(column, grid.columns);
            let of_rows = [(top, 1.0 - down), (bottom, down)];
            let of_columns = [(left, 1.0 - across), (right, across)];
            for (index, corner) in corners.iter_mut().enumerate() {
                let ((row, by_row), (column, by_column)) = (of_rows[index / 2], of_columns[index % 2]);
                corner.0.push(row * side as u32 + column);
                corner.1.push(by_row * by_column);
            }
        }
        corners
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_runs_and_tokens_come_back_in_lines() {
        // 4 x 6 patches, 2 x 3 tokens in windows of 2 x 2: the second has one column.
        let grids = [Grid { rows: 4, columns: 6 }, Grid { rows: 2, columns: 2 }];
        let layout = Layout::new(&grids, 2, Some(2));
        assert_eq!(layout.tokens, [0, 1, 3, 4, 2, 5, 6]);
        assert_eq!(layout.token_places(), [0, 1, 4, 2, 3, 5, 6]);
        assert!(!layout.is_by_lines());
        assert_eq!(layout.windows, [vec![0; 16], vec![1; 8], vec![2; 4]].concat());
        assert_eq!(layout.patches[..5], [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0), (0, 2, 0)]);
        assert_eq!(layout.patch_numbers()[8..16], [12, 13, 14, 15, 16, 17, 18, 19]);
        let plain = Layout::new(&grids, 2, None);
        assert!(plain.is_by_lines());
        assert_eq!(plain.windows, [vec![0; 24], vec![1; 4]].concat());
        assert_eq!(plain.patch_numbers(), (0..28).collect::<Vec<u32>>());
    }

    #[test]
    fn corners_of_the_table_lie_on_those_of_the_picture() {
        let layout = Layout::new(&[Grid { rows: 2, columns: 4 }], 2, None);
        let corners = layout.corners(5);
        // The patches in lines: (0,0) (0,1) (1,0) (1,1), then (0,2) (0,3) (1,2) (1,3).
        let sums: Vec<f32> = (0..8).map(|patch| corners.iter().map(|corner| corner.1[patch]).sum()).collect();
        assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-6), "{sums:?}");
        assert_eq!((corners[0].0[0], corners[0].1[0]), (0, 1.0), "upper left");
        assert_eq!((corners[0].0[7], corners[0].1[7]), (24, 1.0), "lower right");
        // Column 1 of 4 lies at 4/3: a third from column 1 to 2.
        assert_eq!((corners[0].0[1], corners[1].0[1]), (1, 2));
        assert!((corners[1].1[1] - 1.0 / 3.0).abs() < 1e-6, "{}", corners[1].1[1]);
    }
}
