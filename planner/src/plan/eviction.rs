//! A request's eviction, and its resolution in a plan.

use tributary_methods::Keep;
use tributary_protocol::{Evict, Eviction, EvictionDescriptor, EvictionEvidence, Plan};

use crate::Result;
use crate::error::setting;

/// Requested eviction. Method and budget belong together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EvictionWish {
    /// The method; everything is kept where absent.
    pub method: Option<Eviction>,
    /// The budget.
    pub keep: Option<Keep>,
    /// Rows of the window; the method's own default where absent.
    pub window: Option<usize>,
    /// Whether a prompt with fewer rows than the budget keeps all of them: for a service's own
    /// choice, made before it knows any prompt. Otherwise the request is refused.
    pub at_most: bool,
}

impl EvictionWish {
    /// Whether rows of a look-ahead choose the kept rows.
    pub fn looks_ahead(&self) -> bool {
        self.method.is_some_and(|method| method.descriptor().evidence == EvictionEvidence::LookAhead)
    }

    /// Whether tokens of a draft model choose the kept rows.
    pub fn asks_draft_model(&self) -> bool {
        self.method.is_some_and(|method| method.descriptor().evidence == EvictionEvidence::DraftTokens)
    }

    /// Checks everything that needs neither model nor request.
    ///
    /// # Errors
    /// Returns [`Error::Setting`](crate::Error::Setting) for invalid values.
    pub(super) fn check(&self) -> Result<()> {
        let Some(keep) = self.keep else {
            return match (self.method, self.window) {
                (Some(method), _) => {
                    let wanted = "needs --keep N or N%, the rows of the prompt that each KV head keeps";
                    Err(setting("--evict", method.descriptor().name, wanted))
                }
                (None, Some(window)) => {
                    Err(setting("--evict", format!("window={window}"), "needs a method and --keep"))
                }
                (None, None) => Ok(()),
            };
        };
        if self.method.is_none() {
            let wanted = format!("needs --evict METHOD, one of {}", EvictionDescriptor::names());
            return Err(setting("--keep", keep, wanted));
        }
        match keep {
            Keep::Rows(0) => Err(setting("--keep", keep, "must be at least 1 row")),
            Keep::Percent(percent) if !(percent > 0.0 && percent <= 100.0) => {
                Err(setting("--keep", keep, "must be above 0% and at most 100%"))
            }
            _ if self.window == Some(0) => Err(setting("--evict", "window=0", "must be at least 1 row")),
            _ => Ok(()),
        }
    }
}

/// The eviction in a plan: its budget in rows. The place of kept rows is decided with the placement
/// of the plan.
///
/// # Errors
/// Returns [`Error::Setting`](crate::Error::Setting) for a budget above the prompt, a window that
/// leaves nothing to choose, or a method that this request has no evidence for.
pub(super) fn resolved(plan: &Plan, asked: &EvictionWish, seed: u64) -> Result<Option<Evict>> {
    let EvictionWish { method: Some(method), keep: Some(wish), window, at_most } = *asked else { return Ok(None) };
    let (rows, entry) = (plan.total_rows(), method.descriptor());
    let keep = wish.of(rows).min(if at_most { rows } else { usize::MAX });
    if keep > rows {
        return Err(setting(
            "--keep",
            wish,
            format!("the prompt has {rows} rows: keep at most as many, or leave it out"),
        ));
    }
    if let Some(window) = window.filter(|&window| window >= keep && keep < rows) {
        let wanted = format!("must be less than the {keep} rows that are kept");
        return Err(setting("--evict", format!("{}:window={window}", entry.name), wanted));
    }
    if entry.evidence == EvictionEvidence::LookAhead && plan.look_ahead.is_none() {
        let wanted = "needs --adapter DIR, a folder that `tributary train lookahead` wrote";
        return Err(setting("--evict", entry.name, wanted));
    }
    if entry.evidence == EvictionEvidence::DraftTokens && plan.draft_model.is_none() {
        let wanted = "needs --draft-model DIR, the folder of a small model with the same tokenizer";
        return Err(setting("--evict", entry.name, wanted));
    }
    if entry.looks() && plan.method.parallel().is_some() {
        let wanted = format!("not with method {}, whose contexts stand beside each other", plan.method.name());
        return Err(setting("--evict", entry.name, wanted));
    }
    let usual = Evict::usual(method, keep);
    // An answer's last token does not attend.
    let pseudo = match entry.evidence {
        EvictionEvidence::OwnTokens => plan.max_tokens.saturating_sub(1).max(1),
        _ => usual.pseudo,
    };
    Ok(Some(Evict { window: window.unwrap_or(usual.window), pseudo, seed, ..usual }))
}
