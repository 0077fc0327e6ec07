//! Column scores.
