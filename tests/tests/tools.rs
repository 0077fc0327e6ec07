//! Tools that `.ci/tools` finds installed, where a mistake shows only on a machine that lacks
//! something; and a run's report of its skipped parts.

use std::io::Write as _;
use std::process::{Command, Stdio};

use tributary_tests::root;

/// Whether `.ci/tools` finds a libclang in a folder that holds exactly these files.
fn libclang_among(files: &[&str]) -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    for file in files {
        std::fs::write(folder.path().join(file), "").expect("written");
    }
    let answer =
        Command::new("sh").arg(root().join(".ci/tools")).arg("libclang").arg(folder.path()).output().expect("sh");
    let said = String::from_utf8_lossy(&answer.stderr);
    assert!(matches!(answer.status.code(), Some(0 | 1)), "{files:?}: {:?}, {said}", answer.status);
    assert!(said.is_empty(), "{files:?}: {said}");
    answer.status.success()
}

/// The names are those that clang-sys, with which bindgen loads the library, looks for on Linux.
#[test]
fn libclang_is_what_bindgen_finds() {
    for name in ["libclang.so", "libclang.so.1", "libclang-14.so", "libclang-14.so.1", "libclang-14.0.6.so"] {
        assert!(libclang_among(&[name]), "{name} is libclang");
    }
    assert!(libclang_among(&["libclang-cpp.so.14", "libclang.so.1"]), "libclang beside its C++ interface");
    for others in
        [&["libclang-cpp.so.14", "libclang-cpp.so"][..], &["libclang_rt.asan-x86_64.so"], &["libclang.a"], &[]]
    {
        assert!(!libclang_among(others), "{others:?} is no libclang");
    }
}

/// PTX for 8.0 runs on every GPU that our kernels run on. Candle's build makes 90a of 90, whose PTX
/// runs on 9.0 alone: a bundle for a GPU of 8.x would fail at candle's first kernel.
#[test]
fn candles_kernels_are_built_for_the_oldest_gpu_that_ours_run_on() {
    let script = std::fs::read_to_string(root().join(".ci/cuda")).expect("readable");
    let uses = script.matches("CUDA_COMPUTE_CAP=").count();
    assert_eq!(uses, 2, "one environment for an emulated GPU, one for nvcc");
    assert_eq!(script.matches("CUDA_COMPUTE_CAP=$capability").count(), uses);
    assert!(script.lines().any(|line| line == "capability=80"), "CUDA_COMPUTE_CAP must be 80");
}

/// Each reason that tests print under either runner is counted, and the last line has the number.
#[test]
fn what_could_not_be_run_is_counted() {
    let counted = |said: &str| {
        let mut child = Command::new("sh")
            .arg(root().join(".ci/skipped"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh");
        child.stdin.take().expect("piped").write_all(said.as_bytes()).expect("written");
        String::from_utf8(child.wait_with_output().expect("ended").stdout).expect("UTF-8")
    };
    let last = "tests or parts of tests were skipped for want of something that this machine lacks\n";
    let said =
        "<system-err>skipped: no mpirun\n</system-err>\ntest a ... skipped: hosts: no root\nskipped: no mpirun\nok\n";
    let wanted = format!("    not run here (2): no mpirun\n    not run here (1): hosts: no root\n3 {last}");
    assert_eq!(counted(said), wanted);
    assert_eq!(counted("test a ... ok\n"), format!("0 {last}"));
}
