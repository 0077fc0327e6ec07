//! Checks of the pictures of a plan: their marks, and their tiles.

use tributary_model::Config;
use tributary_protocol::tile::{MOST_TILES, Tile};
use tributary_protocol::{Chunk, Picture, Plan};

use crate::error::{Error, Result};

/// Checks that pictures stand where their marks do, and that no mark stands elsewhere.
pub(super) fn check(plan: &Plan, config: &Config) -> Result<()> {
    let bad = |what: String| Err(Error::Plan(what));
    let Some(vision) = &config.vision else {
        return match plan.chunks.iter().any(|chunk| !chunk.pictures.is_empty()) {
            true => bad("the model reads no pictures".to_owned()),
            false => Ok(()),
        };
    };
    check_tiles(plan)?;
    let is_mark = |id: &&u32| **id == vision.marks.picture;
    for chunk in &plan.chunks {
        let (mut next, mut rows) = (0, 0);
        for picture in &chunk.pictures {
            let range = picture.range();
            let (lines, columns) = (picture.lines, picture.columns);
            if range.start < next || range.end > chunk.ids.len() || range.is_empty() {
                return bad(format!("a picture of {lines} x {columns} rows at {range:?} of {}", chunk.ids.len()));
            }
            rows += chunk.ids[range.clone()].iter().filter(is_mark).count();
            next = range.end;
        }
        let wanted: usize = chunk.pictures.iter().map(Picture::rows).sum();
        let marks = chunk.ids.iter().filter(is_mark).count();
        if rows != wanted || marks != wanted {
            return bad(format!("{marks} marks of pictures in a chunk, {rows} of them in pictures of {wanted} rows"));
        }
    }
    match plan.prefix.iter().chain(&plan.query).filter(is_mark).count() {
        0 => Ok(()),
        marks => bad(format!("{marks} marks of pictures outside the context")),
    }
}

/// Checks that the tiles of a picture are in chunks one after the other, each with its own tile and
/// nothing else, but for the tokens before the first and after the last.
fn check_tiles(plan: &Plan) -> Result<()> {
    let tile = |number: usize| plan.chunks.get(number).and_then(Chunk::tile);
    let alike = |a: (&Picture, Tile), b: (&Picture, Tile)| {
        let of = |(picture, tile): (&Picture, Tile)| {
            (picture.hash, picture.lines, picture.columns, Tile { number: 0, ..tile })
        };
        of(a) == of(b) && a.1.number + 1 == b.1.number
    };
    for (number, chunk) in plan.chunks.iter().enumerate() {
        let Some((picture, of)) = chunk.tile() else {
            match chunk.pictures.iter().find(|picture| picture.tile.is_some()) {
                Some(_) => return Err(Error::Plan(format!("chunk {number} has a tile after other pictures"))),
                None => continue,
            }
        };
        let tiles = picture.tiles();
        let is_tile = (2..=MOST_TILES).contains(&of.grid) && usize::from(of.number) < tiles && tiles > 1;
        let (is_first, is_last) = (of.number == 0, usize::from(of.number) + 1 == tiles);
        let is_alone = chunk.pictures.len() == 1 && chunk.around.is_none();
        let begins = if is_first { of.before == picture.first } else { picture.first == 0 };
        let follows = is_first || number.checked_sub(1).and_then(tile).is_some_and(|last| alike(last, (picture, of)));
        let goes_on = is_last || tile(number + 1).is_some_and(|next| alike((picture, of), next));
        if !(is_tile && is_alone && begins && follows && goes_on && plan.order.is_empty())
            || !(is_last || picture.range().end == chunk.ids.len())
        {
            let Tile { grid, number: of, .. } = of;
            return Err(Error::Plan(format!("chunk {number} has tile {of} of {tiles} in a grid of {grid} by itself")));
        }
    }
    Ok(())
}
