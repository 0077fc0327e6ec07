//! What `.ci/tools` takes for installed: a mistake here shows only on a machine that lacks something.

use std::process::Command;

use tributary_tests::root;

/// Whether `.ci/tools` finds a libclang in a folder that holds exactly these files.
fn libclang_among(files: &[&str]) -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    for file in files {
        std::fs::write(folder.path().join(file), "").expect("written");
    }
    let answer = Command::new("sh").arg(root().join(".ci/tools")).arg("libclang").arg(folder.path()).output().expect("sh");
    let said = String::from_utf8_lossy(&answer.stderr);
    assert!(matches!(answer.status.code(), Some(0 | 1)) && said.is_empty(), "{files:?}: {:?}, {said}", answer.status);
    answer.status.success()
}

/// The names are those that clang-sys, with which bindgen loads the library, looks for on Linux.
#[test]
fn libclang_is_what_bindgen_finds() {
    for name in ["libclang.so", "libclang.so.1", "libclang-14.so", "libclang-14.so.1", "libclang-14.0.6.so"] {
        assert!(libclang_among(&[name]), "{name} is libclang");
    }
    assert!(libclang_among(&["libclang-cpp.so.14", "libclang.so.1"]), "libclang beside its C++ interface");
    for others in [&["libclang-cpp.so.14", "libclang-cpp.so"][..], &["libclang_rt.asan-x86_64.so"], &["libclang.a"], &[]] {
        assert!(!libclang_among(others), "{others:?} is no libclang");
    }
}
