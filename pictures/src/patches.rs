//! The rows that a vision tower begins with, in plain arithmetic: normalised samples by patch.

/// Shape and scale of a tower's patches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PatchRows {
    /// Pixels of a patch's side.
    pub patch: usize,
    /// Patches of a merged place's side.
    pub merge: usize,
    /// Frames that a patch spans. A still picture is repeated in each of them; a tower that adds up
    /// its kernel over the frames needs 1.
    pub frames: usize,
    /// Mean of red, green and blue, as parts of 255.
    pub mean: [f64; 3],
    /// Standard deviation of red, green and blue, as parts of 255.
    pub std: [f64; 3],
}

impl PatchRows {
    /// Numbers of a row: 3 channels x frames x patch x patch.
    pub fn row_len(&self) -> usize {
        3 * self.frames * self.patch * self.patch
    }

    /// `[3, 256]`: the normalised value of every sample, `(v − 255·mean) / (255·std)`, computed in
    /// f64 and rounded once.
    fn values(&self) -> [[f32; 256]; 3] {
        std::array::from_fn(|channel| {
            let (mean, std) = (255.0 * self.mean[channel], 255.0 * self.std[channel]);
            std::array::from_fn(|sample| ((sample as f64 - mean) / std) as f32)
        })
    }
}

/// `[height / patch · width / patch, 3 · frames · patch · patch]`: the rows of a picture `rgb` of
/// `[height, width, 3]`. Merged places stand in raster order, and the patches of each in raster
/// order too, so that place k is made of rows k·merge² up to the next place's. Numbers of a row are
/// ordered by channel, frame, row and column.
///
/// # Panics
/// Panics if sides are no multiples of patch times merge, or if `rgb` has another length.
pub fn patch_rows(rgb: &[u8], height: usize, width: usize, shape: &PatchRows) -> Vec<f32> {
    let PatchRows { patch, merge, .. } = *shape;
    assert_eq!(rgb.len(), height * width * 3, "bytes of {height} x {width} pixels");
    assert_eq!(height % (patch * merge), 0, "height {height} in places of {merge} x {patch}");
    assert_eq!(width % (patch * merge), 0, "width {width} in places of {merge} x {patch}");
    let values = shape.values();
    let mut rows = Vec::with_capacity(height / patch * (width / patch) * shape.row_len());
    let (down, across) = (height / patch / merge, width / patch / merge);
    for (place_row, place_column) in cells(down, across) {
        for (row, column) in cells(merge, merge) {
            let (top, left) = ((place_row * merge + row) * patch, (place_column * merge + column) * patch);
            for (channel, values) in values.iter().enumerate() {
                let start = rows.len();
                for y in top..top + patch {
                    let line = &rgb[(y * width + left) * 3..(y * width + left + patch) * 3];
                    rows.extend(line.as_chunks::<3>().0.iter().map(|pixel| values[usize::from(pixel[channel])]));
                }
                let frame = start..rows.len();
                (1..shape.frames).for_each(|_| rows.extend_from_within(frame.clone()));
            }
        }
    }
    rows
}

/// The cells of a grid in raster order.
fn cells(rows: usize, columns: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).flat_map(move |row| (0..columns).map(move |column| (row, column)))
}
