//! Shared parts of reports: charts as SVG, the frame of pages, tables of text, statistics of
//! samples. Numbers and words go in, text comes out; this crate does not depend on their source.

#![forbid(unsafe_code)]

pub mod page;
pub mod statistics;
pub mod svg;
pub mod table;
