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

#[cfg(test)]
mod tests {
    use tributary_protocol::tile::TileOrder;

    use super::*;
    use crate::kit;

    /// Changes a plan.
    type Change = fn(&mut Plan);

    fn tile(plan: &mut Plan, chunk: usize) -> &mut Tile {
        plan.chunks[chunk].pictures[0].tile.as_mut().expect("a tile")
    }

    #[test]
    fn tiles_that_do_not_make_up_a_picture_are_refused() {
        let page = kit::with_picture(kit::plan(2, &[3, 2 + 10 + 1], 2, 1), 1, (2, 2, 5));
        let plan = kit::in_tiles(&page, 1, 2, TileOrder::Raster);
        check_tiles(&plan).expect("four tiles behind a text");
        let table: [(Change, usize); 12] = [
            (|plan| drop(plan.chunks.remove(1)), 1),
            (|plan| drop(plan.chunks.pop()), 3),
            (|plan| plan.chunks.swap(2, 3), 1),
            (|plan| plan.chunks[2].pictures[0].hash[0] ^= 1, 1),
            (|plan| plan.chunks[3].pictures[0].first = 1, 3),
            (|plan| plan.chunks[2].ids.push(7), 2),
            (|plan| tile(plan, 1).before = 1, 1),
            (|plan| tile(plan, 2).before = 1, 1),
            (|plan| tile(plan, 3).order = TileOrder::Tile, 2),
            (|plan| tile(plan, 1).grid = 1, 1),
            (|plan| tile(plan, 4).grid = 9, 3),
            (|plan| tile(plan, 4).number = 4, 3),
        ];
        for (number, (change, chunk)) in table.into_iter().enumerate() {
            let mut other = plan.clone();
            change(&mut other);
            let error = check_tiles(&other).expect_err("refused").to_string();
            assert!(error.starts_with(&format!("plan: chunk {chunk} has tile")), "{number}: {error}");
        }
        let mut second = plan.clone();
        let whole = Picture { tile: None, ..second.chunks[1].pictures[0].clone() };
        second.chunks[1].pictures.insert(0, whole);
        let error = check_tiles(&second).expect_err("refused").to_string();
        assert_eq!(error, "plan: chunk 1 has a tile after other pictures");
    }
}
