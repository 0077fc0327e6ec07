//! The inputs of a model's hash, and the reads of weights for it.

use std::fs::File;
use std::path::PathBuf;

use super::*;

/// A model folder, and a cache beside it.
struct Place {
    folder: tempfile::TempDir,
    cache: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let [folder, cache] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let place = Self { folder, cache };
        place.write("config.json", "{}");
        place.write("model.safetensors", "weights");
        place
    }

    /// Writes a file, and sets its time to an hour ago.
    fn write(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
        File::options().write(true).open(path).expect("there").set_modified(hour_ago).expect("a time");
    }

    fn fingerprint(&self) -> Fingerprint {
        fingerprint(self.folder.path(), LoadFormat::Safetensors, Some(self.cache.path())).expect("readable")
    }

    /// The files in the cache.
    fn remembered(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.cache.path()).expect("there");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    }
}

#[test]
fn every_byte_of_config_and_weights_counts() {
    let place = Place::new();
    let hash = || fingerprint(place.folder.path(), LoadFormat::Safetensors, None).expect("readable").hash;
    let first = hash();
    assert_eq!(hash(), first);
    assert_eq!(place.fingerprint().hash, first, "remembering changes nothing");
    place.write("tokenizer.json", "not the model's numbers");
    assert_eq!(hash(), first);
    place.write("model.safetensors", "weightz");
    let second = hash();
    assert_ne!(second, first);
    place.write("config.json", "{ }");
    assert_ne!(hash(), second);
}

#[test]
fn a_second_start_does_not_read_the_weights() {
    let place = Place::new();
    std::fs::remove_file(place.folder.path().join("model.safetensors")).expect("removed");
    place.write("model.safetensors.index.json", r#"{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}"#);
    place.write("one.safetensors", "1");
    place.write("two.safetensors", "22");
    let first = place.fingerprint();
    assert_eq!(first.weight_bytes_read, 3);
    assert_eq!(place.fingerprint(), Fingerprint { weight_bytes_read: 0, ..first });
    place.write("two.safetensors", "23");
    let second = place.fingerprint();
    assert_eq!(second.weight_bytes_read, 2, "only the file that has changed");
    assert_ne!(second.hash, first.hash);
    place.write("config.json", "{ }");
    let third = place.fingerprint();
    assert_eq!(third.weight_bytes_read, 0);
    assert_ne!(third.hash, second.hash, "a config is always read");
    let [file] = &place.remembered()[..] else { panic!("one file: {:?}", place.remembered()) };
    assert!(file.metadata().expect("there").len() < 1000, "{file:?}");
}

#[test]
fn a_file_that_takes_anothers_place_with_its_length_and_time_is_read() {
    let place = Place::new();
    let first = place.fingerprint();
    let path = place.folder.path().join("model.safetensors");
    let time = path.metadata().expect("there").modified().expect("a time");
    place.write("other", "WEIGHTS");
    std::fs::rename(place.folder.path().join("other"), &path).expect("renamed");
    File::options().write(true).open(&path).expect("there").set_modified(time).expect("a time");
    let second = place.fingerprint();
    assert_eq!(second.weight_bytes_read, 7);
    assert_ne!(second.hash, first.hash);
}

#[test]
fn a_file_that_was_just_written_is_not_remembered() {
    let place = Place::new();
    std::fs::write(place.folder.path().join("model.safetensors"), "weights").expect("written");
    assert_eq!([place.fingerprint(), place.fingerprint()].map(|print| print.weight_bytes_read), [7, 7]);
    assert_eq!(place.remembered(), [] as [PathBuf; 0]);
}

#[test]
fn what_is_damaged_is_ignored_and_written_anew() {
    let place = Place::new();
    let whole = place.fingerprint();
    let [file] = &place.remembered()[..] else { panic!("one file: {:?}", place.remembered()) };
    let text = std::fs::read_to_string(file).expect("text");
    let changed = text.replacen("\"hash\":[", "\"hash\":[9,", 1);
    assert_ne!(changed, text);
    let half = text[..text.len() / 2].to_owned();
    for damaged in [String::new(), "{}".to_owned(), "\n[]".to_owned(), half, changed, text.replace('}', "\u{0}")] {
        std::fs::write(file, &damaged).expect("written");
        assert_eq!(place.fingerprint(), whole, "{damaged}");
        assert_eq!(place.fingerprint().weight_bytes_read, 0, "{damaged}");
    }
}

#[test]
fn a_cache_that_cannot_be_written_is_done_without() {
    let place = Place::new();
    let file = place.cache.path().join("file");
    std::fs::write(&file, "").expect("written");
    let read = || fingerprint(place.folder.path(), LoadFormat::Safetensors, Some(&file)).expect("readable");
    assert_eq!([read(), read()].map(|print| print.weight_bytes_read), [7, 7]);
}

#[test]
fn ranks_that_start_together_leave_one_whole_file() {
    let place = Place::new();
    let expected = fingerprint(place.folder.path(), LoadFormat::Safetensors, None).expect("readable").hash;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..8).map(|_| scope.spawn(|| place.fingerprint().hash)).collect();
        for rank in ranks {
            assert_eq!(rank.join().expect("no panic"), expected);
        }
    });
    assert_eq!(place.remembered().len(), 1, "{:?}", place.remembered());
    assert_eq!(place.fingerprint().weight_bytes_read, 0);
}

#[test]
fn seeds_are_models_of_their_own() {
    let place = Place::new();
    let hash = |seed| {
        let print = fingerprint(place.folder.path(), LoadFormat::Dummy { seed }, Some(place.cache.path()));
        print.expect("readable").hash
    };
    assert_eq!(hash(3), hash(3));
    assert_ne!(hash(3), hash(4));
    assert_eq!(place.remembered(), [] as [PathBuf; 0]);
}

#[test]
fn a_missing_file_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = fingerprint(folder.path(), LoadFormat::Dummy { seed: 0 }, None).unwrap_err();
    assert!(error.to_string().contains("config.json"), "{error}");
}
