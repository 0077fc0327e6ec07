//! The suite `pages`: tasks of `hops` whose passages are pictures. A passage is a page of its own,
//! every second one stays text, or all are blocks of one large page that is cut into tiles. The
//! demo VLM (`examples/models/demo-vlm`) reads such pages. A sample follows from seed, task, shape
//! and number alone.

mod draw;
mod suite;
#[cfg(test)]
mod tests;

pub use self::suite::{SHAPE, open};
