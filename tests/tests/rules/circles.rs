//! Circles: things that need each other, directly or through others.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::Arrows;

/// The groups of names that reach each other along the arrows, each in order; none where there is
/// no circle.
pub fn circles<'a>(arrows: &Arrows<'a>) -> Vec<Vec<&'a str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = arrows.keys().map(|&from| (from, reachable(arrows, from))).collect();
    let reaches = |from: &str, to: &str| reached.get(from).is_some_and(|found| found.contains(to));
    let mut found: Vec<Vec<&str>> = Vec::new();
    for &name in arrows.keys().filter(|&&name| reaches(name, name)) {
        if !found.iter().any(|circle| circle.contains(&name)) {
            found.push(arrows.keys().copied().filter(|&other| reaches(name, other) && reaches(other, name)).collect());
        }
    }
    found
}

/// Names that are reached from a name by one arrow or more.
fn reachable<'a>(arrows: &Arrows<'a>, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&str> = arrows.get(from).into_iter().flat_map(BTreeMap::keys).copied().collect();
    while let Some(name) = next.pop() {
        if found.insert(name) {
            next.extend(arrows.get(name).into_iter().flat_map(BTreeMap::keys));
        }
    }
    found
}
