//! Prompts in blocks, named so that two prompts share the names of the blocks in which they are
//! equal from their beginning on.

use std::collections::HashMap;

use super::Part;

/// A block: where it begins in its first part, and the number of tokens of each part in it.
type Block = (usize, Vec<Part>);

/// Names of blocks of prompts, by all tokens up to the end of each: by the name of the block
/// before, and its own parts.
#[derive(Debug, Default)]
pub struct Blocks(HashMap<(Option<u64>, Block), u64>);

impl Blocks {
    /// Names of the blocks of a prompt, `tokens` tokens each, the last one perhaps fewer.
    pub fn name<'a>(&mut self, parts: impl Iterator<Item = &'a Part>, tokens: usize) -> Vec<u64> {
        let mut before = None;
        let name = |block: Block| {
            let next = self.0.len() as u64;
            let name = *self.0.entry((before, block)).or_insert(next);
            before = Some(name);
            name
        };
        blocks(parts, tokens).into_iter().map(name).collect()
    }

    /// Names of the first blocks of a prompt, up to one that has none yet.
    pub fn known<'a>(&self, parts: impl Iterator<Item = &'a Part>, tokens: usize) -> Vec<u64> {
        let mut before = None;
        let name = |block: Block| {
            before = self.0.get(&(before, block)).copied();
            before
        };
        blocks(parts, tokens).into_iter().map_while(name).collect()
    }
}

/// A prompt in blocks.
fn blocks<'a>(parts: impl Iterator<Item = &'a Part>, tokens: usize) -> Vec<Block> {
    let (mut blocks, mut room): (Vec<Block>, usize) = (Vec::new(), 0);
    for part in parts {
        let mut from = 0;
        while from < part.tokens {
            if room == 0 {
                blocks.push((from, Vec::new()));
                room = tokens;
            }
            let taken = room.min(part.tokens - from);
            blocks.last_mut().expect("one was begun").1.push(Part { id: part.id, tokens: taken });
            (from, room) = (from + taken, room - taken);
        }
    }
    blocks
}
