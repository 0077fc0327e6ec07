//! Features of a request's pictures, as far as this rank knows them.

use std::collections::HashMap;
use std::sync::Arc;

use tributary_model::{Features, Model, PictureRow, Rows, with_pictures};
use tributary_protocol::Source;

use crate::error::{Error, Result};

/// The features of pictures, by the hash of their pixels. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Gallery(Option<Arc<Hung>>);

#[derive(Debug)]
struct Hung {
    /// The first feature and the number of rows of each picture.
    places: HashMap<[u8; 32], (u32, u32)>,
    features: Features,
}

impl Gallery {
    /// The features of pictures one after the other, in the order of these hashes and numbers of
    /// rows.
    pub fn new(pictures: impl IntoIterator<Item = ([u8; 32], u32)>, features: Features) -> Self {
        let mut next = 0;
        let place = |(hash, rows): ([u8; 32], u32)| {
            let first = next;
            next += rows;
            (hash, (first, rows))
        };
        Self(Some(Arc::new(Hung { places: pictures.into_iter().map(place).collect(), features })))
    }

    /// Rows that started from these sources, those of pictures with their features.
    ///
    /// # Errors
    /// Returns an error if a picture has no features here, or if a candle operation fails.
    pub fn shown(&self, model: &dyn Model, rows: Rows, sources: &[Source]) -> Result<Rows> {
        let mut pictures = Vec::new();
        for (place, source) in (0..).zip(sources) {
            let Source::Picture { hash, row, .. } = source else { continue };
            let of_picture = self.0.as_ref().and_then(|hung| hung.places.get(hash));
            let Some((first, _)) = of_picture.filter(|(_, rows)| row < rows) else {
                return Err(Error::Bug("features of every picture are made before its rows"));
            };
            pictures.push(PictureRow { place, feature: first + row });
        }
        match &self.0 {
            Some(hung) if !pictures.is_empty() => Ok(with_pictures(model, rows, &hung.features, &pictures)?),
            _ => Ok(rows),
        }
    }
}
