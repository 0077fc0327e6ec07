//! A file is unchanged, or of no use.

use std::fs;
use std::path::PathBuf;

use tributary_protocol::KeySpace;

use super::*;
use crate::identity::Numbers;

const SHAPE: Shape = Shape { layers: 3, rows: 4, kv_heads: 2, head_dim: 5, numbers: Numbers::F32, with_places: false };

fn identity() -> Identity {
    let (model, prefix, ids) = ([7; 32], vec![1, 2], vec![30, 40, 50, 60]);
    let key = KeySpace::new(model, "f32").chunk(&prefix, &ids, &[]);
    Identity { key, model, prefix, extra: Vec::new(), ids }
}

/// The bytes of layer `layer`'s keys (0) or values (1).
fn numbers(layer: usize, which: usize) -> Vec<u8> {
    (0..SHAPE.tensor_bytes()).map(|index| (index * 31 + layer * 7 + which * 101) as u8).collect()
}

fn encoded(secret: Option<&Secret>) -> Vec<u8> {
    let layers: Vec<[Vec<u8>; 2]> = (0..SHAPE.layers).map(|layer| [numbers(layer, 0), numbers(layer, 1)]).collect();
    let layers: Vec<LayerBytes<'_>> =
        layers.iter().map(|[keys, values]| LayerBytes { places: &[], keys, values }).collect();
    encode(&identity(), &SHAPE, &layers, secret)
}

/// A file with these bytes; it goes with the folder.
fn file(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("chunk.safetensors");
    fs::write(&path, bytes).expect("written");
    (folder, path)
}

type Layers = Vec<[Vec<u8>; 2]>;

/// Reads every layer of a file, on the disk and in memory: both say the same.
fn read(path: &Path, identity: &Identity, shape: &Shape, secret: Option<&Secret>) -> Result<Layers, Damage> {
    let on_disk = ChunkFile::open(path, identity, shape, secret).and_then(|file| layers(&file, shape));
    let Ok(bytes) = fs::read(path) else { return on_disk };
    let in_memory = ChunkFile::of_bytes(bytes.into(), identity, shape, secret).and_then(|file| layers(&file, shape));
    match (&on_disk, &in_memory) {
        (Ok(one), Ok(other)) => assert_eq!(one, other),
        (Err(one), Err(other)) => assert_eq!(one.to_string(), other.to_string()),
        (one, other) => panic!("{one:?} on the disk, {other:?} in memory"),
    }
    on_disk
}

fn layers(file: &ChunkFile, shape: &Shape) -> Result<Layers, Damage> {
    let layer = |layer: usize| {
        let (mut keys, mut values) = (vec![0; shape.tensor_bytes()], vec![0; shape.tensor_bytes()]);
        file.read_layer(layer, &mut keys, &mut values)?;
        Ok([keys, values])
    };
    (0..shape.layers).rev().map(layer).collect()
}

#[test]
fn what_was_written_is_read_in_any_order() {
    for secret in [None, Some(Secret::new(b"a secret"))] {
        let (_folder, path) = file(&encoded(secret.as_ref()));
        let layers = read(&path, &identity(), &SHAPE, secret.as_ref()).expect("a chunk");
        for (layer, read) in layers.iter().rev().enumerate() {
            assert_eq!(read, &[numbers(layer, 0), numbers(layer, 1)], "layer {layer}");
        }
    }
}

#[test]
fn others_can_read_it_too() {
    let bytes = encoded(None);
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let names = ["ids", "layer.00000.key", "layer.00000.value", "layer.00002.value"];
    assert!(names.iter().all(|name| tensors.tensor(name).is_ok()), "{:?}", tensors.names());
    let values = tensors.tensor("layer.00002.value").expect("a tensor");
    assert_eq!((values.shape(), values.data()), (&[4, 2, 5][..], &*numbers(2, 1)));
    let ids: Vec<u8> = identity().ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    assert_eq!(tensors.tensor("ids").expect("a tensor").data(), ids);
}

#[test]
fn no_bit_can_change_unnoticed() {
    let bytes = encoded(None);
    let (_folder, path) = file(&bytes);
    // Every bit of the first bytes, which the header fills, and one bit of each later byte.
    let (head, rest) = (0..8 * 1024.min(bytes.len()), 1024..bytes.len());
    for bit in head.chain(rest.map(|byte| 8 * byte + byte % 8)) {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &damaged).expect("written");
        match read(&path, &identity(), &SHAPE, None) {
            Err(damage) => assert!(damage.is_of_the_file(), "bit {bit}: {damage}"),
            // Padding after the header is no part of it.
            Ok(_) => panic!("bit {bit} of {} changed unnoticed", 8 * bytes.len()),
        }
    }
}

#[test]
fn a_file_that_ends_early_or_late_is_damaged() {
    let bytes = encoded(None);
    let (_folder, path) = file(&bytes);
    for length in 0..bytes.len() {
        fs::write(&path, &bytes[..length]).expect("written");
        let damage = read(&path, &identity(), &SHAPE, None).expect_err("a part of a file");
        assert_eq!(damage.reason(), "corrupt", "{length} bytes: {damage}");
    }
    fs::write(&path, [&bytes[..], &[0]].concat()).expect("written");
    assert_eq!(read(&path, &identity(), &SHAPE, None).expect_err("too long").reason(), "corrupt");
}

#[test]
fn a_file_of_something_else_says_of_what() {
    let (_folder, path) = file(&encoded(None));
    let other = |change: fn(&mut Identity)| {
        let mut identity = identity();
        change(&mut identity);
        read(&path, &identity, &SHAPE, None).expect_err("another chunk").to_string()
    };
    let key = |identity: &mut Identity| identity.key = KeySpace::new([7; 32], "f32").prefix(&[1, 2]);
    assert_eq!(other(key), "it is of another chunk");
    assert_eq!(other(|identity| identity.model = [8; 32]), "it is of another model");
    assert_eq!(other(|identity| identity.prefix = vec![1, 3]), "it is of another prefix");
    assert_eq!(other(|identity| identity.extra = vec![0]), "it is of another method");
    assert_eq!(other(|identity| identity.ids.push(70)), "it is of another shape");
    let shaped = |shape: Shape| read(&path, &identity(), &shape, None).expect_err("another shape").to_string();
    assert_eq!(shaped(Shape { numbers: Numbers::Bf16, ..SHAPE }), "it is of another type of numbers");
    assert_eq!(shaped(Shape { layers: 2, ..SHAPE }), "it is of another shape");
    assert_eq!(shaped(Shape { kv_heads: 5, head_dim: 2, ..SHAPE }), "it is of another shape");
    let missing = read(&path.with_file_name("absent"), &identity(), &SHAPE, None).expect_err("no file");
    assert!(missing.reason() == "missing" && !missing.is_of_the_file(), "{missing}");
}

#[test]
fn who_does_not_know_the_secret_writes_nothing_that_is_believed() {
    let (secret, other) = (Secret::new(b"a secret"), Secret::new(b"another"));
    assert_eq!(format!("{secret:?}"), "Secret");
    for (written, asked) in [(None, Some(&secret)), (Some(&secret), None), (Some(&other), Some(&secret))] {
        let (_folder, path) = file(&encoded(written));
        let damage = read(&path, &identity(), &SHAPE, asked).expect_err("a wrong seal");
        assert_eq!(damage.to_string(), "it is damaged: its header is not what was sealed");
    }
}

#[test]
fn the_numbers_of_a_layers_rows_come_back_with_its_keys_and_are_verified_with_them() {
    let shape = Shape { with_places: true, ..SHAPE };
    let places =
        |layer: usize| -> Vec<u8> { (0..shape.place_bytes()).map(|index| (index * 5 + layer) as u8).collect() };
    let parts: Vec<[Vec<u8>; 3]> =
        (0..shape.layers).map(|layer| [places(layer), numbers(layer, 0), numbers(layer, 1)]).collect();
    let layers: Vec<LayerBytes<'_>> =
        parts.iter().map(|[places, keys, values]| LayerBytes { places, keys, values }).collect();
    let bytes = encode(&identity(), &shape, &layers, None);
    let read = |bytes: &[u8], layer: usize| {
        let file = ChunkFile::of_bytes(bytes.to_vec().into(), &identity(), &shape, None)?;
        let mut read = parts[layer].clone().map(|part| vec![0; part.len()]);
        let [places, keys, values] = &mut read;
        file.read_parts(layer, [places, keys, values]).map(|()| read)
    };
    for layer in [2, 0, 1] {
        assert_eq!(read(&bytes, layer).expect("a layer"), parts[layer]);
    }
    let (_folder, path) = file(&bytes);
    let said = Description::verify(&path, &identity().key, None).expect("a chunk");
    assert_eq!((said.layers, said.rows, said.kv_heads, said.dtype.as_str()), (3, 4, 2, "F32"));
    assert!(ChunkFile::of_bytes(bytes.clone().into(), &identity(), &SHAPE, None).is_err(), "a whole chunk is another");
    assert!(ChunkFile::of_bytes(encoded(None).into(), &identity(), &shape, None).is_err(), "it lacks the numbers");
    let first_place = bytes.len() - shape.bytes() as usize;
    let mut spoilt = bytes;
    spoilt[first_place] ^= 1;
    assert!(read(&spoilt, 0).is_err() && read(&spoilt, 1).is_ok());
}
