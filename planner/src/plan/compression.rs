//! A request's compression of its chunks before they are cached, and its result for one of them.

use tributary_methods::{KEEP_PER_CHUNK, KeepPerChunk};
use tributary_protocol::{Evict, EvictionEvidence, Method};

use crate::Result;
use crate::error::setting;

/// The rows kept of a chunk of `tokens` tokens; `None` if that is all of them. The seed of random
/// draws is 0, so that cached chunks serve every request.
pub(super) fn of_chunk(kept: KeepPerChunk, tokens: usize) -> Option<Evict> {
    let keep = kept.keep.of(tokens);
    (keep < tokens).then(|| Evict { pseudo: 0, ..Evict::usual(kept.method, keep) })
}

/// Checks that a compression fits a method and another eviction.
///
/// # Errors
/// Returns [`Error::Setting`](crate::Error::Setting) if they do not go together.
pub(super) fn check(kept: &KeepPerChunk, method: &Method, evicts: bool) -> Result<()> {
    let spec = format!("{}:{}={kept}", method.name, KEEP_PER_CHUNK.key);
    if !method.takes(&KEEP_PER_CHUNK) {
        let why = match method.in_chunks() {
            true => "needs every row of every chunk, or works on rows of all heads alike",
            false => "does not work in chunks",
        };
        let able = Method::names_taking(&KEEP_PER_CHUNK).join(", ");
        return Err(setting("--method", spec, format!("{} {why}; it is for {able}", method.name)));
    }
    if evicts {
        let wanted = "does not go with evict: compress the chunks, or evict rows before decoding";
        return Err(setting("--method", spec, wanted));
    }
    Ok(())
}

/// Size of the window whose attention chooses the kept rows of a chunk, unless the method has none
/// or rows of an adapter after the tokens replace it.
pub fn window_of(evict: &Evict) -> Option<usize> {
    (evict.descriptor().evidence == EvictionEvidence::Window).then_some(evict.window)
}

#[cfg(test)]
mod tests {
    use tributary_protocol::Eviction;

    use super::*;
    use crate::RequestSettings;

    fn read(text: &str) -> std::result::Result<KeepPerChunk, String> {
        text.parse()
    }

    #[test]
    fn a_budget_and_a_method_are_read() {
        let kept =
            |text: &str, tokens| of_chunk(read(text).expect("valid"), tokens).map(|evict| (evict.method, evict.keep));
        assert_eq!(kept("50%", 9), Some((Eviction::SnapKv, 4)));
        assert_eq!(kept("0.1%", 9), Some((Eviction::SnapKv, 1)), "one at least");
        assert_eq!(kept("8:random", 9), Some((Eviction::Random, 8)));
        assert_eq!(kept("8:streamingllm", 9), Some((Eviction::StreamingLlm, 8)));
        assert_eq!([kept("9", 9), kept("100%", 9), kept("100", 9)], [None; 3], "all of it is kept");
        for (text, why) in [
            ("0", "`0` must be at least 1 token"),
            ("0%", "`0%` must be above 0% and at most 100%"),
            ("101%", "`101%` must be above 0% and at most 100%"),
            ("half", "`half` is no number of rows, such as 128, and no percentage, such as 30%"),
            ("5:pyramidkv", "`pyramidkv` compresses no chunk; known are snapkv, tova, h2o, streamingllm, random"),
            ("5:laq", "`laq` compresses no chunk; known are snapkv, tova, h2o, streamingllm, random"),
        ] {
            assert_eq!(read(text).expect_err(text), why);
        }
        assert_eq!(["50%", "7:tova"].map(|text| read(text).expect("valid").to_string()), ["50%", "7:tova"]);
    }

    #[test]
    fn methods_that_need_every_row_refuse_it_in_one_line() {
        let keep_per_chunk = Some(read("50%").expect("valid"));
        for method in tributary_protocol::METHODS {
            let settings = RequestSettings { method, keep_per_chunk, ..RequestSettings::default() };
            let refused = settings.check().err().map(|error| (error.exit_code(), error.to_string()));
            assert_eq!(refused.is_some(), !method.takes(&KEEP_PER_CHUNK), "{}", method.name);
            if let Some((code, why)) = refused {
                assert!(code == 64 && !why.contains('\n') && why.contains(method.name), "{code}: {why}");
            }
            assert!(settings.for_chunks().check().is_ok() && settings.without_idle_compression().check().is_ok());
        }
    }
}
