//! Names of compressed chunks.

use std::collections::BTreeSet;

use tributary_protocol::{Around, Chunk, Evict, Eviction, KeySpace};

fn usual(name: &str, keep: usize) -> Evict {
    let method: Eviction = name.parse().expect("a method");
    Evict { pseudo: 6, ..Evict::usual(method, keep) }
}

#[test]
fn a_compressed_chunk_is_named_by_what_its_rows_follow_from_and_nothing_else() {
    let space = KeySpace::new([1; 32], "f32");
    let around = |head| Some(Around { adapter: 3, head, tail: 1 });
    let key = |compress: Option<Evict>, around| {
        let chunk = Chunk { ids: vec![7; 20], pictures: Vec::new(), rank: 0, warm: false, around, compress };
        space.chunk(&[], &chunk.ids, &chunk.extra(None))
    };
    let of = |name, keep| Some(usual(name, keep));
    let window = Some(Evict { window: 5, ..usual("snapkv", 10) });
    let seed = Some(Evict { seed: 5, ..usual("random", 10) });
    let others = [None, of("snapkv", 10), of("snapkv", 11), of("random", 10), of("h2o", 10), window, seed.clone()];
    let keys: BTreeSet<_> = others
        .iter()
        .flat_map(|compress| [None, around(2), around(1)].map(|around| key(compress.clone(), around)))
        .collect();
    assert_eq!(keys.len(), 3 * others.len());
    assert_eq!(key(Some(Evict { seed: 5, sinks: 9, ..usual("snapkv", 10) }), None), key(of("snapkv", 10), None));
    assert_eq!(key(Some(Evict { window: 3, pooled: 1, ..seed.clone().expect("random") }), None), key(seed, None));
}
