//! The attention that each query row pays to each key: tasks of some tiles of query rows, each
//! walking over all keys. The result of a panel of keys and a tile of rows is added to the rows'
//! sums at once: no other array of the size `[queries, keys]` exists.

use super::lanes::PANEL;
use super::level::Level;
use super::scores::{Asked, Call, RowTile, Scratch};
use super::tasks;
use crate::error::Result;
use crate::tiles;

/// Tasks for each thread: more than one, since rows see more and fewer keys; few, since each packs
/// the keys that its rows see.
const TASKS_A_THREAD: usize = 2;

/// Some tiles of query rows, and the sums of those rows, each `[keys]`.
struct Task<'a> {
    tiles: &'a [RowTile],
    sums: Vec<&'a mut [f32]>,
}

/// Adds the mean over the heads to `sums` `[queries, keys]`, as
/// [`crate::Kernels::add_row_readings`].
pub(super) fn add_row_readings(level: Level, asked: Asked<'_>, sums: &mut [f32]) -> Result<()> {
    let (queries, keys) = (asked.query.at.len(), asked.query.key_count());
    assert_eq!(sums.len(), queries * keys, "sums of {queries} rows and {keys} keys");
    asked.walk(level, |call, numbers| {
        let tiles_a_task = call.tiles.len().div_ceil(TASKS_A_THREAD * rayon::current_num_threads());
        // The rows of the list ascend, so that their sums can be taken one after the other.
        let mut rows = sums.chunks_exact_mut(keys).zip(0u32..);
        let mut of = |row: u32| rows.find(|&(_, index)| index == row).expect("rows ascend").0;
        let task = |tiles: &'_ [RowTile]| tiles.iter().flat_map(|tile| &tile.index).map(|&row| of(row)).collect();
        let (mut tasks, mut task) = (Vec::new(), task);
        for tiles in call.tiles.chunks(tiles_a_task) {
            tasks.push(Task { tiles, sums: task(tiles) });
        }
        tasks::run(tasks, || call.scratch(), |scratch, task| add(call, scratch, task, numbers));
    })
}

/// Adds the attention of one task's rows to all keys, whose numbers are `numbers`.
fn add(call: &Call<'_>, scratch: &mut Scratch, mut task: Task<'_>, numbers: &[usize]) {
    let heads = call.heads() as f32;
    for (panel, numbers) in numbers.chunks(PANEL).enumerate() {
        if !task.tiles.iter().any(|tile| call.sees(tile, panel)) {
            continue;
        }
        call.pack(scratch, panel);
        let (first, last) = (numbers[0], numbers[numbers.len() - 1]);
        let is_run = last - first + 1 == numbers.len(); // numbers ascend
        let mut sums = task.sums.iter_mut();
        for tile in task.tiles {
            if !tiles::done() {
                return;
            }
            let rows = sums.by_ref().take(tile.index.len());
            if !call.sees(tile, panel) {
                rows.for_each(drop);
                continue;
            }
            for (row, found) in rows.zip(call.sums(scratch, tile, panel).chunks_exact(PANEL)) {
                if is_run {
                    row[first..=last].iter_mut().zip(found).for_each(|(sum, found)| *sum += found / heads);
                } else {
                    numbers.iter().zip(found).for_each(|(&number, found)| row[number] += found / heads);
                }
            }
        }
    }
}
