//! Explanation of an answer: the context token by token, with the recomputed tokens, and a timeline
//! of each rank.

use serde::Serialize;
use tributary_coordinator::Piece;
use tributary_engine::{Answered, Client, Result};
use tributary_protocol::Picture;

/// Recomputed tokens, and a timeline of each rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Explanation<'a> {
    /// The chunks, in the request's own order.
    pub context: Vec<ExplainedChunk<'a>>,
    /// Numbers of the chunks, in the order in which the model saw them.
    pub order: &'a [u32],
    /// The phases of each rank, by its own clock from the arrival of the plan on.
    pub timeline: Vec<ExplainedSpan>,
}

/// A chunk of the context.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ExplainedChunk<'a> {
    /// Its number, from 0.
    pub chunk: usize,
    /// The title of its document, if that has one.
    pub title: Option<&'a str>,
    /// Its tokens.
    pub tokens: Vec<ExplainedToken>,
    /// The pictures among its tokens; absent where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(test, schema(required = false))]
    pub pictures: Vec<ExplainedPicture>,
}

/// A picture among a chunk's tokens, or a tile of one: a token for each place of its grid, line by
/// line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ExplainedPicture {
    /// Its number among the pictures of the request, from 0.
    pub picture: usize,
    /// Index of its first place among the chunk's tokens. The token before it marks the picture's
    /// start, the token after its last place its end; of tiles the first and the last one have
    /// these.
    pub first: usize,
    /// Lines of its grid of places.
    pub lines: u32,
    /// Places in a line.
    pub columns: u32,
    /// Where the tile is, if the chunk has not the whole picture.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(required = false))]
    pub tile: Option<ExplainedTile>,
}

/// The place of a tile in the grid of its picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ExplainedTile {
    /// Its first line.
    pub top: u32,
    /// Its first column.
    pub left: u32,
    /// Lines of the whole grid.
    pub of_lines: u32,
    /// Columns of the whole grid.
    pub of_columns: u32,
}

/// A token of the context.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ExplainedToken {
    /// Its text, with preceding text that belongs to no token.
    pub text: String,
    /// Whether it was recomputed with the whole context in view.
    pub selected: bool,
    /// The score that it was selected by, or not; null where the method has none.
    pub score: Option<f32>,
}

/// A phase on a rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ExplainedSpan {
    /// The rank.
    pub rank: usize,
    /// The phase's name.
    pub phase: &'static str,
    /// Milliseconds from the arrival of the plan to its start.
    pub start_ms: f64,
    /// Its length in milliseconds, waiting included.
    pub ms: f64,
    /// Milliseconds of it that were spent waiting for other ranks.
    pub waited_ms: f64,
}

impl<'a> Explanation<'a> {
    /// Explains an answer.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    pub fn of(answered: &'a Answered, client: &Client) -> Result<Self> {
        let (plan, outcome) = (&answered.planned.plan, &answered.answer.outcome);
        let (first, starts) = (plan.prefix_tokens(), plan.chunk_starts());
        let score = |row: usize| outcome.scores.as_ref().and_then(|scores| scores.get(row)).copied();
        let mut begun = 0;
        let explain = |(chunk, piece): (usize, &'a Piece)| -> Result<ExplainedChunk<'a>> {
            let rows = starts[chunk] + plan.chunks[chunk].head_rows()..;
            let tokens = texts(piece, client)?.into_iter().zip(rows).map(|(text, row)| ExplainedToken {
                text,
                selected: outcome.selected.binary_search(&((first + row) as u32)).is_ok(),
                score: score(row).filter(|score| score.is_finite()),
            });
            let pictures: Vec<ExplainedPicture> =
                piece.pictures.iter().map(|placed| explained(placed, &mut begun)).collect();
            Ok(ExplainedChunk { chunk, title: piece.title.as_deref(), tokens: tokens.collect(), pictures })
        };
        let context = answered.prepared.chunks.iter().enumerate().map(explain).collect::<Result<_>>()?;
        let timeline = answered.report.ranks.iter().flat_map(|rank| {
            rank.spans.iter().map(|span| ExplainedSpan {
                rank: rank.rank,
                phase: span.phase,
                start_ms: span.start_ms,
                ms: span.ms,
                waited_ms: span.waited_ms,
            })
        });
        Ok(Self { context, order: &outcome.order, timeline: timeline.collect() })
    }
}

/// A picture or a tile of one, after `begun` pictures of which some part came before.
fn explained(placed: &Picture, begun: &mut usize) -> ExplainedPicture {
    *begun += usize::from(placed.begins());
    let area = placed.area();
    let tile = || ExplainedTile { top: area.top, left: area.left, of_lines: placed.lines, of_columns: placed.columns };
    ExplainedPicture {
        picture: *begun - 1,
        first: placed.first as usize,
        lines: area.lines,
        columns: area.columns,
        tile: placed.tile.map(|_| tile()),
    }
}

/// The texts of a chunk's tokens, which together are the chunk's text.
fn texts(piece: &Piece, client: &Client) -> Result<Vec<String>> {
    if piece.spans.len() != piece.ids.len() {
        return client.texts(&piece.ids);
    }
    let mut begin = 0;
    let mut texts: Vec<String> = Vec::new();
    for span in &piece.spans {
        // A token that is a part of a character ends where the character does.
        let end = piece.text.ceil_char_boundary(span.end.max(begin));
        texts.push(piece.text[begin..end].to_owned());
        begin = end;
    }
    if let Some(last) = texts.last_mut() {
        *last += &piece.text[begin..];
    }
    Ok(texts)
}
