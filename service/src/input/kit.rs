//! Shared parts of the tests of bodies.

use base64::Engine;
use tributary_coordinator::{PictureMarks, PictureRules};
use tributary_pictures::{Limits, Rules};
use tributary_planner::RequestSettings;

use super::Terms;
use crate::limits::ClientLimits;

/// Reads by the terms of a service with its defaults.
pub fn with_terms<T>(read: impl FnOnce(&Terms<'_>) -> T) -> T {
    let (settings, limits) = (RequestSettings::default(), ClientLimits::default());
    read(&Terms {
        model: "demo",
        settings: &settings,
        limits: &limits,
        ignores_unknown: false,
        default_tokens: None,
        max_positions: 8192,
        pictures: None,
        vocabulary: 400,
    })
}

/// Reads by the terms of a service whose model reads pictures.
pub fn with_pictures<T>(read: impl FnOnce(&Terms<'_>) -> T) -> T {
    let rules = Rules::new(16, 2, 4096, 65536).expect("rules");
    let marks = PictureMarks { row: 261, start: 259, end: 260 };
    let pictures = PictureRules { rules, marks, limits: Limits::default() };
    with_terms(|terms| read(&Terms { pictures: Some(&pictures), ..terms.clone() }))
}

/// A recorded picture as a `data:` URL.
pub fn data_url(name: &str) -> String {
    let path = format!("{}/../tests/golden/vlm/{name}.png", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read(path).expect("a picture");
    format!("data:image/png;base64,{}", base64::engine::general_purpose::STANDARD.encode(file))
}
