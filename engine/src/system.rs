//! What the system and the processor say of themselves.

use std::fs;
use std::path::Path;

/// A file's text without the space around it.
pub fn text(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The widest instructions that the kernels take on this machine, by the rule that they follow.
pub fn instructions() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        match (avx2, is_x86_feature_detected!("avx512f")) {
            (true, true) => "AVX-512",
            (true, false) => "AVX2",
            (false, _) => "portable",
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    "portable"
}
