//! Pretrained models and evaluation texts, which `make real-models` keeps in a cache outside the
//! repository.

use std::io::Write;
use std::path::PathBuf;

/// The path of a thing in the cache, such as `smollm2-135m-instruct` or `data`. Without it a test
/// is skipped, or fails under `REQUIRE_REAL=1`. The message bypasses the test harness, which hides
/// the output of a passing test; `.ci/skipped` counts it.
///
/// # Panics
/// If it is missing under `REQUIRE_REAL=1`.
pub fn cached(name: &str) -> Option<PathBuf> {
    let folder = cache().map(|cache| cache.join(name)).filter(|path| path.exists());
    if folder.is_none() {
        assert!(
            std::env::var_os("REQUIRE_REAL").is_none_or(|value| value != "1"),
            "REQUIRE_REAL=1, but {name} is not cached: make real-models"
        );
        let _ = writeln!(std::io::stderr(), "skipped: {name} is not cached: make real-models");
    }
    folder
}

/// The folder of the cache, as `tests/real-models/fetch.py` finds it.
fn cache() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let users = || named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    named("TRIBUTARY_MODELS").or_else(|| Some(users()?.join("tributary/models")))
}
