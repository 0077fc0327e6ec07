//! Orders and lists against the definition of sight, on random positions.

use proptest::prelude::*;

use super::*;

fn positions(rows: &[(u32, u32)]) -> Positions {
    let rope: Vec<u32> = rows.iter().map(|row| 3 * row.0).collect();
    let order: Vec<u32> = rows.iter().map(|row| if row.0 == 30 { PAD } else { row.0 }).collect();
    let segment: Vec<u32> = rows.iter().map(|row| if row.1 == 3 { SHARED } else { row.1 }).collect();
    Positions::new(rope, order, segment)
}

fn rows(most: usize) -> impl Strategy<Value = Vec<(u32, u32)>> {
    proptest::collection::vec((0..31u32, 0..4u32), 0..most)
}

proptest! {
    #[test]
    fn sights_lists_and_parts_follow_the_definition(
        first in rows(40), second in rows(40), queries in rows(40), group in 1usize..4, resident in 1usize..40,
        window in proptest::option::of(1u32..100),
    ) {
        let (first, second, at) = (positions(&first), positions(&second), positions(&queries).within(window));
        let blocks = [&first, &second];
        let keys = KeyOrder::new(&blocks);
        prop_assert!(keys.are_runs_for(&at));
        let order = QueryOrder::new(&at, &keys);
        let all = Positions::concat(&blocks);
        let tiling = Tiling { rows: 12, keys: 4, group, kv_heads: 2, resident };
        let work = LaunchWork::new(&order, tiling);
        let sees = |place: usize, key: usize| {
            let [first, shared, begin, end] = order.sight[place];
            (first..shared).contains(&(key as u32)) || (begin..end).contains(&(key as u32))
        };
        for (place, &row) in order.rows.iter().enumerate() {
            let seen: Vec<bool> = (0..keys.len()).map(|key| sees(place, key)).collect();
            for (key, &number) in keys.number.iter().enumerate() {
                prop_assert_eq!(seen[key], at.sees(row as usize, &all, number as usize), "row {} key {}", row, number);
                let (block, index) = ((keys.source[key] >> ROW_BITS) as usize, keys.source[key] & ((1 << ROW_BITS) - 1));
                prop_assert_eq!(index + [0, first.len() as u32][block], number);
            }
            let left_out = (0..all.len()).filter(|number| !keys.number.contains(&(*number as u32)));
            for number in left_out {
                prop_assert!(!at.sees(row as usize, &all, number), "row {} key {}", row, number);
            }
        }
        check_work(&work, &order, &keys, tiling, &sees)?;
    }
}

/// As `key_tile` in attention.cuh.
fn key_tile(work: &LaunchWork, item: &[u32; 8], number: u32) -> u32 {
    let &[_, _, whole, _, _, jump, first, second] = item;
    match number {
        masked if masked < whole => work.masked[masked as usize],
        number => number.wrapping_add(if number < jump { first } else { second }),
    }
}

/// Every pair that sees each other is in exactly one item; unmarked tiles are seen whole by all
/// rows.
fn check_work(
    work: &LaunchWork,
    order: &QueryOrder,
    keys: &KeyOrder,
    tiling: Tiling,
    sees: &dyn Fn(usize, usize) -> bool,
) -> Result<(), TestCaseError> {
    let mut met = vec![vec![0; keys.len()]; order.rows.len()];
    let mut slots = vec![0; work.slots];
    for item in &work.items {
        let &[tile, begin, whole, end, slot, ..] = item;
        prop_assert!(begin <= whole && whole <= end);
        if slot != NO_SLOT {
            slots[slot as usize] += 1;
        }
        let places = tile as usize * tiling.queries()..((tile as usize + 1) * tiling.queries()).min(order.rows.len());
        for number in begin..end {
            let first = key_tile(work, item, number) as usize * tiling.keys;
            for place in places.clone() {
                for key in first..first + tiling.keys {
                    let seen = key < keys.len() && sees(place, key);
                    prop_assert!(seen || number < whole, "tile {} place {} key {}", tile, place, key);
                    if let Some(times) = met[place].get_mut(key).filter(|_| seen) {
                        *times += 1;
                    }
                }
            }
        }
    }
    prop_assert!(slots.iter().all(|&uses| uses == 1));
    prop_assert_eq!(work.splits.iter().map(|split| split[2] as usize).sum::<usize>(), work.slots);
    let tiles: std::collections::BTreeSet<u32> = work.items.iter().map(|item| item[0]).collect();
    prop_assert_eq!(tiles.len(), order.rows.len().div_ceil(tiling.queries()), "every tile has an item");
    for (place, row) in met.iter().enumerate() {
        for (key, &times) in row.iter().enumerate() {
            prop_assert_eq!(times, usize::from(sees(place, key)), "place {} key {}", place, key);
        }
    }
    Ok(())
}

#[test]
fn few_queries_over_many_keys_are_cut_so_that_all_blocks_end_together() {
    let keys = KeyOrder::new(&[&Positions::run(0, 32768)]);
    // Query rows, rows and keys of a tile, blocks at a time; items that are to come, of a KV head,
    // and tiles of each.
    for (queries, side, resident, items, length) in
        [(64, 64, 264, 32, 64), (1, 64, 264, 32, 16), (64, 128, 132, 16, 32)]
    {
        let order = QueryOrder::new(&Positions::run(32768, queries), &keys);
        let work = LaunchWork::new(&order, Tiling { rows: side, keys: side, group: 4, kv_heads: 8, resident });
        assert_eq!(work.items.len(), items, "{queries} queries, tiles of {side}");
        assert!(work.items.iter().all(|item| item[3] - item[1] == length));
        assert!(work.masked.is_empty());
    }
}

#[test]
fn many_queries_are_not_cut() {
    let at = Positions::run(0, 4096);
    let keys = KeyOrder::new(&[&at]);
    let work = LaunchWork::new(
        &QueryOrder::new(&at, &keys),
        Tiling { rows: 128, keys: 128, group: 4, kv_heads: 8, resident: 132 },
    );
    assert_eq!((work.items.len(), work.slots), (128, 0));
    assert_eq!(work.masked.len(), 128, "one tile on the staircase for each tile of 32 queries");
    assert_eq!(work.items[0][3] - work.items[0][1], 32, "the longest first");
}

/// A million tokens: a list of every tile would have half a gigabyte.
#[test]
fn lists_do_not_grow_with_the_pairs_of_tiles() {
    let at = Positions::run(0, 1 << 20);
    let keys = KeyOrder::new(&[&at]);
    let tiling = Tiling { rows: 128, keys: 128, group: 4, kv_heads: 8, resident: 132 };
    let work = LaunchWork::new(&QueryOrder::new(&at, &keys), tiling);
    let bytes = 4 * (work.masked.len() + work.items.as_flattened().len() + work.splits.as_flattened().len());
    let listed: u64 = work.items.iter().map(|item| u64::from(item[3] - item[1])).sum();
    println!("{bytes} bytes, where a list would have {}", 4 * listed);
    assert!(bytes < 2 << 20 && 4 * listed > 500_000_000, "{bytes} bytes for {listed} tiles");
}

proptest! {
    #[test]
    fn rows_that_follow_are_seen_as_if_all_had_been_put_in_order(
        first in rows(40), count in 1usize..20, gap in 0u32..3, segment in 0u32..4, query in (0..60u32, 0..4u32),
        lowest in 0u32..180,
    ) {
        let base = positions(&first);
        let from = first.iter().map(|row| row.0).filter(|&order| order != 30).max().unwrap_or(0) + gap;
        let orders: Vec<u32> = (from..from + count as u32).collect();
        let rows = Positions::new(orders.iter().map(|order| 3 * order).collect::<Vec<_>>(), orders, vec![segment; count]);
        let keys = KeyOrder::new(&[&base]);
        let Some(followed) = keys.followed_by(&rows) else {
            // Only where another segment comes after it.
            prop_assert!(keys.segments.last().is_some_and(|last| last.0 > segment));
            return Ok(());
        };
        let all = KeyOrder::new(&[&base, &rows]);
        let after = (0..count as u32).map(|row| 1 << ROW_BITS | row);
        prop_assert_eq!(keys.source.iter().copied().chain(after).collect::<Vec<_>>(), all.source.clone());
        let sees = |sight: Seen| -> Vec<u32> { (sight[0]..sight[1]).chain(sight[2]..sight[3]).collect() };
        let asking = Asking { order: query.0, segment: query.1, rule: Rule::Causal, lowest };
        prop_assert_eq!(sees(followed.sight(asking)), sees(all.sight(asking)), "{:?}", asking);
    }
}

#[test]
fn rows_at_any_places_cost_hardly_more_than_the_keys_they_see() {
    let all = Positions::run(0, 32768);
    // 15 of every 100 rows, where a multiplication throws them.
    let chosen: Vec<u32> =
        (0..32768u32).filter(|row| row.wrapping_mul(2_654_435_761) >> 8 < (1 << 24) / 100 * 15).collect();
    assert!((4500..5300).contains(&chosen.len()), "{}", chosen.len());
    let keys = KeyOrder::new(&[&all]);
    let tiling = Tiling { rows: 128, keys: 128, group: 4, kv_heads: 8, resident: 132 };
    let share = |at: &Positions| QueryOrder::new(at, &keys).visible_share(tiling);
    let (dense, stairs) = (share(&all), share(&all.select(&chosen)));
    println!("visible: {dense:.4} of all rows, {stairs:.4} of {} chosen ones", chosen.len());
    assert!(dense > 0.99 && stairs > 1.0 / 1.05, "{dense} {stairs}");
}

#[test]
fn keys_that_do_not_rise_are_no_run_in_a_window() {
    let swapped = Positions::in_sequence(vec![5, 4], vec![0, 1]);
    let keys = KeyOrder::new(&[&swapped]);
    assert!(keys.are_runs_for(&swapped) && !keys.are_runs_for(&swapped.within(Some(3))));
}
