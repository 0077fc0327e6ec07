//! A crate's files as a tree of modules, with the files' uses of each other's names. It is parsed
//! by `syn`, so that comments and texts do not count. Code for tests only is left out, as are
//! re-exports (`pub use`).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, UseTree, Visibility};

/// A module's place in its crate: empty for the root.
type ModulePath = Vec<String>;

/// For every file the files that it uses, with the names.
pub type Arrows<'a> = BTreeMap<&'a str, BTreeMap<&'a str, BTreeSet<&'a str>>>;

/// Contents of one module.
#[derive(Default)]
struct Module {
    /// File of the module.
    file: String,
    /// Names defined here.
    items: BTreeSet<String>,
    /// Names that `use` brings here, and the paths they come from.
    imports: HashMap<String, Vec<String>>,
    /// Paths from which everything is brought here.
    globs: Vec<Vec<String>>,
    /// Paths that `use` imports for the module's own code.
    brought: Vec<Vec<String>>,
    /// Paths that the module's own code names.
    named: Vec<Vec<String>>,
}

/// The modules of one crate.
pub struct Modules {
    modules: BTreeMap<ModulePath, Module>,
}

impl Modules {
    /// Of a crate's files: the path of each below the crate's `src`, and its text. Files that no
    /// module names are left out.
    pub fn new(files: &BTreeMap<String, String>) -> Self {
        let mut modules = Self { modules: BTreeMap::new() };
        for root in ["lib.rs", "main.rs"].into_iter().filter(|root| files.contains_key(*root)) {
            modules.add_file(files, root, Vec::new(), "");
        }
        modules
    }

    /// For every file the files whose names its code uses, those of the modules inside it among
    /// them.
    pub fn arrows(&self) -> Arrows<'_> {
        let mut arrows = Arrows::new();
        for (path, module) in &self.modules {
            let targets = arrows.entry(&module.file).or_default();
            let brought = module.brought.iter().map(|used| (used, self.module_of(path, used, 0)));
            let items = module.named.iter().filter(|used| !self.is_variable(path, used));
            let named = items.map(|used| (used, self.module_of(path, used, 0)));
            for (used, target) in brought.chain(named) {
                let file = target.map(|target| self.modules[&target].file.as_str());
                let name = used.last().map_or("", String::as_str);
                if let Some(file) = file.filter(|file| *file != module.file) {
                    targets.entry(file).or_default().insert(name);
                }
            }
        }
        arrows
    }

    /// Whether a path in code is a variable that has the name of a module: in code no single name
    /// means a module.
    fn is_variable(&self, module: &[String], path: &[String]) -> bool {
        let [name] = path else { return false };
        let own = &self.modules[module];
        let is_module = self.modules.contains_key(&[module, path].concat());
        is_module && !own.items.contains(name) && !own.imports.contains_key(name)
    }

    fn add_file(&mut self, files: &BTreeMap<String, String>, file: &str, path: ModulePath, folder: &str) {
        let parsed = syn::parse_file(&files[file]).unwrap_or_else(|error| panic!("{file}: {error}"));
        self.add(files, file, path, folder, &parsed.items);
    }

    /// Adds a module, whose child modules have their files in `folder`.
    fn add(&mut self, files: &BTreeMap<String, String>, file: &str, path: ModulePath, folder: &str, items: &[Item]) {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        for item in items.iter().filter(|item| !for_tests(attributes(item))) {
            match item {
                Item::Mod(child) => {
                    let name = child.ident.to_string();
                    let inner = [path.clone(), vec![name.clone()]].concat();
                    match &child.content {
                        Some((_, items)) => self.add(files, file, inner, &format!("{folder}{name}/"), items),
                        None => {
                            let Some(found) = file_of_module(files, folder, child) else { continue };
                            self.add_file(files, &found, inner, &format!("{folder}{name}/"));
                        }
                    }
                }
                Item::Use(item) => module.import(item),
                other => {
                    module.items.extend(defined(other));
                    Paths(&mut module.named).visit_item(other);
                }
            }
        }
        self.modules.insert(path, module);
    }

    /// The module that defines the target of a path in a module; none where it leads out of the
    /// crate.
    fn module_of(&self, module: &[String], path: &[String], depth: usize) -> Option<ModulePath> {
        // A name that is handed on in a circle has no definition.
        if depth > 16 {
            return None;
        }
        let mut at: Option<ModulePath> = None;
        for (index, name) in path.iter().enumerate() {
            let here = at.clone().unwrap_or_else(|| module.to_vec());
            let child = [here.clone(), vec![name.clone()]].concat();
            let found = &self.modules[&here];
            at = Some(match name.as_str() {
                "crate" if index == 0 => Vec::new(),
                "self" if index == 0 => here,
                "super" => here.split_last()?.1.to_vec(),
                _ if self.modules.contains_key(&child) => child,
                name if found.items.contains(name) => return Some(here),
                name => {
                    let found = self.imported(&here, name, &path[index + 1..], depth);
                    // A name that no `use` brings comes from a macro, which is in the module named
                    // before it.
                    let by_macro = index > 0 && !self.modules[&here].imports.contains_key(name);
                    return found.or_else(|| by_macro.then_some(here));
                }
            });
        }
        at
    }

    /// The module of another one's import under a name, and of the rest of the path.
    fn imported(&self, module: &[String], name: &str, rest: &[String], depth: usize) -> Option<ModulePath> {
        let found = &self.modules[module];
        if let Some(path) = found.imports.get(name) {
            let whole = [path.as_slice(), rest].concat();
            // A method or a variant of an imported type is found where the type is.
            return self.module_of(module, &whole, depth + 1).or_else(|| self.module_of(module, path, depth + 1));
        }
        found.globs.iter().find_map(|glob| {
            let own = [glob.as_slice(), &[name.to_owned()]].concat();
            let first = glob.first()?;
            let child = [module, std::slice::from_ref(first)].concat();
            let is_ours = ["crate", "self", "super"].contains(&first.as_str()) || self.modules.contains_key(&child);
            is_ours.then(|| self.module_of(module, &own, depth + 1)).flatten()
        })
    }
}

impl Module {
    fn import(&mut self, item: &ItemUse) {
        let mut found = Vec::new();
        leaves(&item.tree, &mut Vec::new(), &mut found);
        let handed_on = !matches!(item.vis, Visibility::Inherited);
        for (name, path) in found {
            match name {
                Some(name) => {
                    self.imports.insert(name, path.clone());
                }
                None => self.globs.push(path.clone()),
            }
            if !handed_on {
                self.brought.push(path);
            }
        }
    }
}

/// The names that a `use` brings, each with its path; none for everything.
fn leaves(tree: &UseTree, before: &mut Vec<String>, found: &mut Vec<(Option<String>, Vec<String>)>) {
    let with = |name: &syn::Ident| [before.clone(), vec![name.to_string()]].concat();
    match tree {
        UseTree::Path(path) => leaves(&path.tree, &mut with(&path.ident), found),
        UseTree::Name(name) if name.ident == "self" => found.push((before.last().cloned(), before.clone())),
        UseTree::Name(name) => found.push((Some(name.ident.to_string()), with(&name.ident))),
        UseTree::Rename(name) if name.ident == "self" => found.push((Some(name.rename.to_string()), before.clone())),
        UseTree::Rename(name) => found.push((Some(name.rename.to_string()), with(&name.ident))),
        UseTree::Glob(_) => found.push((None, before.clone())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, before, found)),
    }
}

/// The paths in code, those in calls of macros among them.
struct Paths<'a>(&'a mut Vec<Vec<String>>);

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.0.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let mut found = Vec::new();
        leaves(&item.tree, &mut Vec::new(), &mut found);
        self.0.extend(found.into_iter().map(|(_, path)| path));
    }

    fn visit_item_mod(&mut self, _: &'ast ItemMod) {}
}

impl Paths<'_> {
    fn tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut joined): (Vec<String>, bool) = (Vec::new(), false);
        for token in tokens {
            match token {
                TokenTree::Ident(name) if joined || path.is_empty() => {
                    path.push(name.to_string());
                    joined = false;
                    continue;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => {
                    joined = true;
                    continue;
                }
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(name) => {
                    self.0.push(std::mem::replace(&mut path, vec![name.to_string()]));
                    continue;
                }
                _ => {}
            }
            joined = false;
            if !path.is_empty() {
                self.0.push(std::mem::take(&mut path));
            }
        }
        if !path.is_empty() {
            self.0.push(path);
        }
    }
}

/// File of a module.
fn file_of_module(files: &BTreeMap<String, String>, folder: &str, module: &ItemMod) -> Option<String> {
    let name = &module.ident;
    [format!("{folder}{name}.rs"), format!("{folder}{name}/mod.rs")].into_iter().find(|file| files.contains_key(file))
}

/// The name that an item defines, if it has one.
fn defined(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether something is compiled for tests only: `#[cfg(test)]`, or `#[cfg(all(test, ..))]`.
fn for_tests(attributes: &[Attribute]) -> bool {
    let names_test = |tokens: TokenStream| {
        let text = tokens.to_string().replace(' ', "");
        text == "test"
            || (text.starts_with("all(") && text.trim_matches(')')[4..].split(',').any(|part| part == "test"))
    };
    let lists = attributes.iter().filter_map(|attribute| attribute.meta.require_list().ok());
    lists.filter(|list| list.path.is_ident("cfg")).any(|list| names_test(list.tokens.clone()))
}
