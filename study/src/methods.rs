//! Descriptions of methods, as a table, as one method's page and as an object for programs. Nothing
//! is measured here.

use schemars::JsonSchema;
use serde::Serialize;
use tributary_charts::table::{Layout, cells, table};
use tributary_methods::{MethodOption, Requirement};
use tributary_protocol::{COST_LETTERS, Claim, Exchange, Method};

/// Name and version of the list as JSON (`docs/schemas/methods.v2.json`). A field that goes, or
/// means something else, makes another version.
pub const SCHEMA: &str = "tributary.methods/2";

/// A list of methods.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Methods {
    /// Name and version of this schema.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Legend of the letters in `cost`.
    pub letters: &'static str,
    /// The methods.
    pub methods: Vec<MethodRow>,
}

/// Description of a method.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct MethodRow {
    /// Its name on the command line and in reports.
    pub name: &'static str,
    /// Its work in one line.
    pub summary: &'static str,
    /// The paper or project that it comes from.
    pub source: &'static str,
    /// Whether its answer equals a full prefill's but for rounding.
    pub exact: bool,
    /// The setting in which it does; none where it always does.
    pub exact_where: Option<&'static str>,
    /// The share of the context that it recomputes where none is asked for; none where it
    /// recomputes nothing.
    pub ratio: Option<f64>,
    /// Work until the first token, and traffic besides the exchange's.
    pub cost: &'static str,
    /// The options that a spec of it may name.
    pub options: Vec<OptionRow>,
    /// The options of the command without which it cannot be.
    pub needs: Vec<&'static str>,
    /// Whether it takes chunks from the chunk cache and the chunk store.
    pub reuses_chunks: bool,
    /// Whether it takes the longest cached prefix of the prompt from them.
    pub reuses_prefix: bool,
    /// Possible exchanges between ranks during recompute; empty where the method itself fixes it.
    pub exchanges: Vec<&'static str>,
}

/// An option of a method.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct OptionRow {
    /// Its key in a spec.
    pub key: &'static str,
    /// The form of its value; none for an option that is set by its key alone.
    pub value: Option<&'static str>,
    /// Its effect, unit and default.
    pub help: String,
}

impl Methods {
    /// Descriptions of these methods.
    pub fn new(methods: &[&'static Method]) -> Self {
        let methods = methods.iter().map(|method| MethodRow::new(method)).collect();
        Self { schema: SCHEMA, letters: COST_LETTERS, methods }
    }

    /// A line a method.
    pub fn table(&self) -> String {
        let mut rows = vec![cells(["method", "answer", "ratio", "chunks", "what it recomputes"])];
        rows.extend(self.methods.iter().map(|method| {
            let ratio = method.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
            let chunks = match (method.reuses_chunks, method.reuses_prefix) {
                (true, _) => "reused",
                (_, true) => "prefix",
                _ => "-",
            };
            cells([method.name, method.answer(), &ratio, chunks, method.summary])
        }));
        table(&rows, Layout { left: &[0, 1, 3, 4], commented_rows: Some(1) })
    }

    /// Everything that each method says, one below the other.
    pub fn pages(&self) -> String {
        let pages: Vec<String> = self.methods.iter().map(MethodRow::page).collect();
        format!(
            "{}\n# cost: {COST_LETTERS}. \"Chunks\" are T/W rows and T·c/(2W) pairs a rank where they are cold. A row \
             is one token in a forward pass.\n",
            pages.join("\n")
        )
    }
}

impl MethodRow {
    fn new(method: &'static Method) -> Self {
        let reuses_chunks = method.in_chunks();
        Self {
            name: method.name,
            summary: method.summary,
            source: method.source,
            exact: method.is_exact(),
            exact_where: match method.claim {
                Claim::Exact => None,
                Claim::Approximate { exact_where, .. } => Some(exact_where),
            },
            ratio: method.ratio,
            cost: method.cost,
            options: method.all_options().map(OptionRow::of).collect(),
            needs: method.requires.map(Requirement::flag).into_iter().collect(),
            reuses_chunks,
            reuses_prefix: method.reuses_prefix(),
            exchanges: if reuses_chunks { Exchange::NAMES.to_vec() } else { Vec::new() },
        }
    }

    fn answer(&self) -> &'static str {
        if self.exact { "exact" } else { "approximate" }
    }

    fn page(&self) -> String {
        let exact_where = self.exact_where.map_or(String::new(), |setting| format!("; exact {setting}"));
        let list = |words: &[&str], none: &str| if words.is_empty() { none.to_owned() } else { words.join(", ") };
        let rows = [
            ("recomputes", self.summary.to_owned()),
            ("from", self.source.to_owned()),
            ("answer", format!("{}{exact_where}", self.answer())),
            ("ratio", self.ratio.map_or("no such option".to_owned(), |ratio| format!("{ratio:.2} by default"))),
            ("cost", self.cost.to_owned()),
            ("needs", list(&self.needs, "nothing beside the model")),
            (
                "chunks",
                match (self.reuses_chunks, self.reuses_prefix) {
                    (true, _) => "read from the chunk cache or the chunk store where these have them",
                    (_, true) => "the longest prefix of the prompt from the chunk cache and the chunk store",
                    _ => "not cached",
                }
                .to_owned(),
            ),
            ("exchange", list(&self.exchanges, "the method's own")),
        ];
        let lines = rows.map(|(what, text)| format!("  {what:<10} {text}\n"));
        let options = self.options.iter().map(OptionRow::line).collect::<String>();
        format!("{}\n{}  options, as in {}:KEY=VALUE:..\n{options}", self.name, lines.concat(), self.name)
    }
}

impl OptionRow {
    fn of(option: &'static MethodOption) -> Self {
        let value = Some(option.value).filter(|value| !value.is_empty());
        Self { key: option.key, value, help: option.described() }
    }

    fn line(&self) -> String {
        let form = self.value.map_or(self.key.to_owned(), |value| format!("{}={value}", self.key));
        format!("    {form:<42} {}\n", self.help)
    }
}

#[cfg(test)]
mod tests {
    use tributary_protocol::METHODS;

    use super::*;

    #[test]
    fn every_method_has_its_line_and_its_page() {
        let all = Methods::new(&METHODS);
        let (lines, pages) = (all.table(), all.pages());
        assert_eq!(lines.lines().count(), METHODS.len() + 1, "{lines}");
        for method in METHODS {
            assert!(lines.contains(&format!("  {} ", method.name)) && pages.contains(method.cost), "{}", method.name);
            let row = all.methods.iter().find(|row| row.name == method.name).expect("a row");
            for option in method.all_options() {
                assert!(row.page().contains(option.help), "{}: {}", method.name, option.key);
            }
            assert_eq!(row.needs.contains(&"--adapter"), method.needs(Requirement::Adapter), "{}", method.name);
        }
        let of = |name: &str| all.methods.iter().find(|method| method.name == name).expect("a method");
        assert!(of("full").exact && !of("full").reuses_chunks && of("full").exchanges.is_empty());
        assert!(!of("infoflow").exact && of("infoflow").reuses_chunks);
        assert_eq!(of("infoflow").exchanges, ["replicate", "pass-q", "selected"]);
    }
}
