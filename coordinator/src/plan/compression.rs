//! What a request says of compressing its chunks before they are cached, and what that means for one of them.

use std::fmt;
use std::str::FromStr;

use tributary_protocol::{Choice, Descriptor, Evict, Eviction, EvictionDescriptor, EvictionEvidence};

use super::eviction::Keep;
use crate::Result;
use crate::error::setting;

/// What each KV head of each layer keeps of every chunk's tokens, before the chunk is cached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeepPerChunk {
    /// How much.
    pub keep: Keep,
    /// How its tokens are chosen.
    pub method: Eviction,
}

impl FromStr for KeepPerChunk {
    type Err = String;

    /// `N` or `N%`, and perhaps the method after a colon.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (keep, method) = match text.split_once(':') {
            None => (text, Eviction::SnapKv),
            Some((keep, name)) => {
                let wrong =
                    || format!("`{name}` compresses no chunk; known are {}", EvictionDescriptor::names_for_chunks());
                let found = EvictionDescriptor::find(name).filter(|entry| entry.compresses_chunks());
                (keep, found.ok_or_else(wrong)?.method)
            }
        };
        let this = Self { keep: keep.parse()?, method };
        let wrong = |range: &str| format!("`{text}` must be {range}");
        match this.keep {
            Keep::Rows(0) => Err(wrong("at least 1 token")),
            Keep::Percent(percent) if !(percent > 0.0 && percent <= 100.0) => Err(wrong("above 0% and at most 100%")),
            _ => Ok(this),
        }
    }
}

impl fmt::Display for KeepPerChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.keep)?;
        if self.method == Eviction::SnapKv { Ok(()) } else { write!(f, ":{}", self.method.descriptor().name) }
    }
}

impl KeepPerChunk {
    /// What is kept of a chunk of so many tokens; nothing to say where that is all of them. A draw's seed is 0, so that what is cached
    /// serves every request.
    pub fn of_chunk(&self, tokens: usize) -> Option<Evict> {
        let keep = self.keep.of(tokens);
        (keep < tokens).then(|| Evict { pseudo: 0, ..Evict::usual(self.method, keep) })
    }

    /// Checks it beside a method and what else is evicted.
    ///
    /// # Errors
    /// [`Error::Setting`](crate::Error::Setting).
    pub(super) fn check(&self, method: &Descriptor, evicts: bool) -> Result<()> {
        let option = Choice::KeepPerChunk.option();
        if !method.takes(Choice::KeepPerChunk) {
            let why = match method.in_chunks {
                true => "needs every row of every chunk, or works on rows of all heads alike",
                false => "does not work in chunks",
            };
            let able = Descriptor::names_taking(Choice::KeepPerChunk).join(", ");
            return Err(setting(option, self, format!("{} {why}; it is for {able}", method.name)));
        }
        if evicts {
            return Err(setting(
                option,
                self,
                "does not go with --evict: choose what chunks keep, or what decoding keeps",
            ));
        }
        Ok(())
    }
}

/// The window whose attention says what is kept of a chunk, where it does and no rows of an adapter stand behind its tokens.
pub(crate) fn window_of(evict: &Evict) -> Option<usize> {
    (evict.descriptor().evidence == EvictionEvidence::Window).then_some(evict.window)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RequestSettings;

    fn read(text: &str) -> std::result::Result<KeepPerChunk, String> {
        text.parse()
    }

    #[test]
    fn a_budget_and_a_method_are_read() {
        let kept =
            |text: &str, tokens| read(text).expect("valid").of_chunk(tokens).map(|evict| (evict.method, evict.keep));
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
            assert_eq!(refused.is_some(), !method.takes(Choice::KeepPerChunk), "{}", method.name);
            if let Some((code, why)) = refused {
                assert!(code == 64 && !why.contains('\n') && why.contains(method.name), "{code}: {why}");
            }
            assert!(settings.for_chunks().check().is_ok() && settings.without_idle_compression().check().is_ok());
        }
    }
}
