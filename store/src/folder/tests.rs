//! Folders: existing, absent and foreign files.

use std::collections::BTreeSet;

use tributary_protocol::KeySpace;

use super::*;

fn key(number: u32) -> ChunkKey {
    KeySpace::new([0; 32], "f32").chunk(&[], &[number], &[])
}

fn folder() -> (tempfile::TempDir, Folder) {
    let outer = tempfile::tempdir().expect("a folder");
    let folder = Folder::open(&outer.path().join("a/store"), false).expect("it is made");
    (outer, folder)
}

fn keys(folder: &Folder) -> BTreeSet<ChunkKey> {
    folder.entries().expect("entries").iter().map(|entry| entry.key).collect()
}

#[test]
fn what_is_written_is_there_for_its_owner_alone() {
    let (_outer, folder) = folder();
    folder.write(&key(1), b"one").expect("written");
    folder.write(&key(1), b"other").expect("replaced");
    folder.write(&key(2), b"two").expect("written");
    let path = folder.path_of(&key(1));
    assert_eq!(fs::read(&path).expect("read"), b"other");
    assert_eq!(fs::metadata(&path).expect("a file").mode() & 0o777, 0o600);
    for above in path.ancestors().skip(1).take(2) {
        assert_eq!(fs::metadata(above).expect("a folder").mode() & 0o777, 0o700, "{}", above.display());
    }
    let entries = folder.entries().expect("entries");
    assert_eq!(entries.iter().map(|entry| entry.bytes).sum::<u64>(), 8);
    assert_eq!(keys(&folder), [key(1), key(2)].into());
    folder.remove(&key(1)).expect("removed");
    folder.remove(&key(1)).expect("gone already");
    folder.move_aside(&key(2)).expect("moved");
    folder.move_aside(&key(2)).expect("gone already");
    assert_eq!(keys(&folder), [].into());
}

#[test]
fn a_folder_that_others_may_write_to_must_be_meant() {
    let outer = tempfile::tempdir().expect("a folder");
    fs::set_permissions(outer.path(), Permissions::from_mode(0o777)).expect("opened");
    let error = Folder::open(outer.path(), false).expect_err("anybody may write");
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(error.to_string(), "others may write to this folder (mode 777)");
    assert!(Folder::open(outer.path(), true).is_ok());
    fs::write(outer.path().join("letter.txt"), "mine").expect("written");
    let error = Folder::open(outer.path(), true).expect_err("somebody's own folder");
    assert!(error.to_string().contains("neither empty nor a store of chunks: `letter.txt` is in it"), "{error}");
}

#[test]
fn only_chunks_are_entries_and_what_nobody_writes_any_more_goes() {
    let (_outer, folder) = folder();
    folder.write(&key(1), b"one").expect("written");
    let beside = folder.path_of(&key(1)).with_file_name(".part-1-2-3");
    let strange = folder.path_of(&key(1)).with_file_name("notes.txt");
    [&beside, &strange].into_iter().for_each(|path| fs::write(path, b"x").expect("written"));
    assert_eq!(keys(&folder), [key(1)].into());
    assert!(beside.exists(), "somebody may be writing it");
    let hours_ago = SystemTime::now() - 2 * ABANDONED;
    File::open(&beside).and_then(|file| file.set_modified(hours_ago)).expect("made old");
    assert_eq!(keys(&folder), [key(1)].into());
    assert!(!beside.exists() && strange.exists());
}

#[test]
fn use_is_noted_where_others_see_it() {
    let (_outer, folder) = folder();
    folder.write(&key(1), b"one").expect("written");
    let used = |folder: &Folder| folder.entries().expect("entries")[0].used;
    let long_ago = SystemTime::now() - Duration::from_secs(86_400);
    File::open(folder.path_of(&key(1))).and_then(|file| file.set_modified(long_ago)).expect("made old");
    assert!(used(&folder) <= long_ago + Duration::from_secs(1));
    folder.touch(&key(1)).expect("touched");
    assert!(used(&folder) > long_ago + Duration::from_secs(80_000));
}

#[test]
fn what_is_no_regular_file_is_no_chunk_and_holds_nobody_up() {
    let (outer, folder) = folder();
    folder.write(&key(1), b"chunk").expect("written");
    for number in [2, 3] {
        fs::create_dir_all(folder.path_of(&key(number)).parent().expect("a folder")).expect("made");
    }
    let fifo = std::process::Command::new("mkfifo").arg(folder.path_of(&key(2))).status();
    assert!(fifo.is_ok_and(|status| status.success()), "a FIFO");
    std::os::unix::fs::symlink(folder.path_of(&key(1)), folder.path_of(&key(3))).expect("a link");
    assert_eq!(keys(&folder), BTreeSet::from([key(1)]));
    for number in [2, 3] {
        assert!(open_file(&folder.path_of(&key(number))).is_err(), "{number}");
        assert!(folder.touch(&key(number)).is_err() && folder.drop_pages(&key(number)).is_err());
    }
    assert!(Folder::open(folder.path(), false).is_ok(), "a store is opened again");
    drop(outer);
}

#[test]
fn writers_and_removers_do_not_disturb_each_other() {
    let (_outer, folder) = folder();
    std::thread::scope(|scope| {
        for writer in 0..4u8 {
            let folder = &folder;
            scope.spawn(move || {
                for round in 0..100 {
                    folder.write(&key(round % 5), &[writer; 10_000]).expect("written");
                    folder.remove(&key((round + 2) % 5)).expect("removed");
                }
            });
        }
        let folder = &folder;
        scope.spawn(move || {
            for round in 0..400 {
                if let Ok(bytes) = fs::read(folder.path_of(&key(round % 5))) {
                    assert_eq!(bytes.len(), 10_000, "a file is there whole or not at all");
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                }
                assert!(folder.entries().expect("entries").len() <= 5);
            }
        });
    });
}
