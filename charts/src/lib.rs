//! What reports share: charts as SVG, the frame of pages, tables of text, statistics of samples. Numbers and words go in, text comes out; nothing
//! here knows where they come from.

#![forbid(unsafe_code)]

pub mod page;
pub mod statistics;
pub mod svg;
pub mod table;
