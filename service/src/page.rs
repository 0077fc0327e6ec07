//! `GET /`: a page to try requests and watch the ranks. It is one file, in the program, and
//! connects only to the service that it comes from: a Content-Security-Policy enforces that in the
//! browser. The page itself needs no key; its requests show the key.

use axum::http::header;
use axum::response::IntoResponse;

/// The page: markup, style and script.
pub const PAGE: &str = include_str!("page/index.html");

/// Permissions of the page in a browser: its own style and script, known by their SHA-256, and
/// requests to this service. A test computes the two hashes anew.
const POLICY: &str = "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'; \
    style-src 'sha256-2QGC+ScZ/MVTBNosreZsT25PR3Vu9zY3DFjnzE/qsfQ='; \
    script-src 'sha256-7xihUIBfp9vd9l0+PMV5foi330RZLlMntuDtpSp8PF0='";

/// Answers with the page.
pub async fn page() -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, PAGE)
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use sha2::{Digest, Sha256};

    use super::{PAGE, POLICY};

    /// Content of the only element with this tag.
    fn inside(tag: &str) -> &'static str {
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        assert_eq!((PAGE.matches(&open).count(), PAGE.matches(&close).count()), (1, 1), "one {open}");
        PAGE.split_once(&open).and_then(|(_, rest)| rest.split_once(&close)).expect("in this order").0
    }

    #[test]
    fn a_browser_runs_the_script_and_the_style_of_the_page() {
        for tag in ["style", "script"] {
            let hash = format!("{tag}-src 'sha256-{}'", STANDARD.encode(Sha256::digest(inside(tag))));
            assert!(POLICY.split("; ").any(|rule| rule == hash), "the policy must say {hash}; it is {POLICY}");
        }
    }

    #[test]
    fn the_page_is_small_and_names_no_other_host() {
        assert!(PAGE.len() <= 72_000, "{} bytes", PAGE.len());
        let hosts: Vec<&str> = PAGE.match_indices("://").map(|(at, mark)| &PAGE[at + mark.len()..]).collect();
        // The names of SVG's namespace are no addresses.
        assert!(hosts.iter().all(|rest| rest.starts_with("www.w3.org/2000/svg")), "an address of another host");
        assert!(hosts.len() == 2, "{} of them", hosts.len());
        for attribute in [" style=", " onclick=", " onload=", " src=", "@import", "javascript:"] {
            assert!(!PAGE.contains(attribute), "the policy forbids `{attribute}`");
        }
    }
}
