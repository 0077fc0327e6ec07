//! Methods and options that a request with pictures cannot have: those whose models read letters,
//! and rows that were trained for texts.

use tributary_planner::RequestSettings;
use tributary_protocol::{Packets, Requirement};

use crate::error::setting;
use crate::intake::Prepared;
use crate::{Error, Result};

/// Refuses a request with pictures whose settings ask for what is for texts alone.
///
/// # Errors
/// Returns [`Error::Plan`] with the method or eviction, or [`Error::PicturesThere`].
pub(crate) fn check(request: &Prepared, settings: &RequestSettings) -> Result<()> {
    if request.picture_rows() == 0 {
        return Ok(());
    }
    check_chunks(request, settings)?;
    let method = settings.method;
    let refused = |why: &str| Err(setting("--method", method.name, format!("{why}, and the request has pictures")));
    if method.needs(Requirement::AuxiliaryModel) {
        return refused("its auxiliary model reads texts alone");
    }
    if method.reads_sentences() {
        return refused("it selects whole sentences");
    }
    let eviction = settings.eviction;
    let name = eviction.method.map_or("", |method| method.descriptor().name);
    let refused = |why: &str| Err(setting("--evict", name, format!("{why}, and the request has pictures")));
    if eviction.asks_draft_model() {
        return refused("its draft model reads texts alone");
    }
    if eviction.looks_ahead() {
        return refused("its adapter was trained on texts");
    }
    if settings.hands_over {
        return Err(Error::PicturesThere("in prompts whose keys and values are handed over"));
    }
    Ok(())
}

/// The same for chunks that are prefilled ahead of use.
///
/// # Errors
/// Returns [`Error::Plan`] with the method.
pub(crate) fn check_chunks(request: &Prepared, settings: &RequestSettings) -> Result<()> {
    if request.picture_rows() == 0 || settings.chunk_packets() != Packets::On {
        return Ok(());
    }
    let wanted = "the rows of its adapter were trained around texts, and the request has pictures";
    Err(setting("--method", settings.spec(), wanted))
}

#[cfg(test)]
mod tests {
    use tributary_methods::MethodSpec;
    use tributary_planner::EvictionWish;
    use tributary_protocol::Picture;

    use super::*;
    use crate::auxiliary::Readers;
    use crate::tokenize::Piece;

    fn prepared(pictures: usize) -> Prepared {
        let picture = Picture { first: 1, lines: 1, columns: 2, hash: [7; 32], tile: None, pixels: Default::default() };
        let chunk = Piece { ids: vec![3, 4, 4, 5], pictures: vec![picture; pictures], ..Piece::default() };
        Prepared { chunks: vec![chunk], query: vec![6], ..Prepared::default() }
    }

    #[test]
    fn what_reads_letters_is_refused_by_name() {
        let with = |spec: &str| RequestSettings::default().set(&spec.parse::<MethodSpec>().expect(spec));
        let evicting = |name: &str| {
            let choice: tributary_methods::EvictChoice = name.parse().expect(name);
            let eviction = EvictionWish { method: Some(choice.method), ..EvictionWish::default() };
            RequestSettings { eviction, ..RequestSettings::default() }
        };
        let cases = [
            (with("cacheclip"), "--method cacheclip: its auxiliary model reads texts alone"),
            (with("excerpt"), "--method excerpt: it selects whole sentences"),
            (with("kv-packet"), "--method kv-packet: the rows of its adapter"),
            (with("infoflow:packets"), "--method infoflow:packets: the rows of its adapter"),
            (evicting("speckv"), "--evict speckv: its draft model"),
            (evicting("lookahead"), "--evict lookahead: its adapter"),
            (
                RequestSettings { hands_over: true, ..RequestSettings::default() },
                "pictures are not supported in prompts",
            ),
        ];
        for (settings, begins) in cases {
            let error = Readers::default().tokens(&prepared(1), &settings).expect_err(begins);
            assert!(error.to_string().starts_with(begins), "{begins}: {error}");
            assert_eq!(error.exit_code(), 64);
            assert!(Readers::default().tokens(&prepared(0), &settings).is_ok(), "{begins}: texts alone");
        }
        for spec in ["infoflow", "full", "ring", "none", "epic", "cacheblend", "relay"] {
            let tokens = Readers::default().tokens(&prepared(1), &with(spec)).expect(spec);
            assert_eq!(tokens.pictures[0].len(), 1, "{spec}");
        }
        let error = Readers::default().chunk_tokens(&prepared(1), &with("kv-packet")).expect_err("packets");
        assert!(error.to_string().contains("pictures"), "{error}");
        assert!(
            Readers::default().chunk_tokens(&prepared(1), &with("cacheclip")).is_ok(),
            "nothing is read ahead of use"
        );
    }

    #[test]
    fn pictures_do_not_become_a_query() {
        let error = prepared(1).without_context().expect_err("refused");
        assert!(error.to_string().starts_with("pictures are not supported in a prompt without context"), "{error}");
        assert_eq!(prepared(0).without_context().expect("texts").query, [3, 4, 4, 5, 6]);
    }
}
