//! Lengths of functions.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{ImplItemFn, ItemFn, Signature, TraitItemFn};

/// A function's length.
#[derive(Debug, PartialEq, Eq)]
pub struct Length {
    /// Its name.
    pub name: String,
    /// Line on which it begins, after its comments and attributes.
    pub line: usize,
    /// Its lines, from `fn` to its last brace.
    pub lines: usize,
}

/// The functions of a file that have more lines than the limit, methods and functions in functions
/// among them.
pub fn long_functions(text: &str, limit: usize) -> Vec<Length> {
    let file = syn::parse_file(text).expect("Rust that compiles");
    let mut lengths = Lengths(Vec::new());
    lengths.visit_file(&file);
    lengths.0.into_iter().filter(|length| length.lines > limit).collect()
}

struct Lengths(Vec<Length>);

impl Lengths {
    fn note(&mut self, signature: &Signature, body: &syn::Block) {
        let (first, last) = (signature.span().start().line, body.span().end().line);
        self.0.push(Length { name: signature.ident.to_string(), line: first, lines: last + 1 - first });
    }
}

impl<'ast> Visit<'ast> for Lengths {
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.note(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.note(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        if let Some(body) = &function.default {
            self.note(&function.sig, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
}
