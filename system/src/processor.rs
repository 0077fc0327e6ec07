//! The processor: its name and its cores.

use std::collections::BTreeSet;

use crate::fields::field;
use crate::file::text;

/// The processor's name. Some architectures do not tell it.
pub fn model_name() -> Option<String> {
    field(&text("/proc/cpuinfo")?, "model name").map(str::to_owned)
}

/// Number of cores of this host, including those that this process may not use.
pub fn online_cores() -> Option<usize> {
    Some(online(&text("/proc/cpuinfo")?)).filter(|&cores| cores > 0)
}

/// The cores that the calling thread may run on.
pub fn allowed_cores() -> Option<BTreeSet<usize>> {
    listed(field(&text("/proc/thread-self/status")?, "Cpus_allowed_list")?)
}

fn online(cpuinfo: &str) -> usize {
    cpuinfo.lines().filter(|line| line.starts_with("processor")).count()
}

/// The cores of a list such as `0-3,8`.
fn listed(list: &str) -> Option<BTreeSet<usize>> {
    let mut cores = BTreeSet::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cores.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_lists_are_read() {
        let table: [(&str, Option<&[usize]>); 4] = [
            ("0-3", Some(&[0, 1, 2, 3])),
            ("5", Some(&[5])),
            ("0-1,8,10-11", Some(&[0, 1, 8, 10, 11])),
            ("none", None),
        ];
        for (list, cores) in table {
            assert_eq!(listed(list), cores.map(|cores| cores.iter().copied().collect()), "{list}");
        }
    }

    #[test]
    fn cores_of_this_host_are_known() {
        assert_eq!(online("processor\t: 0\nmodel name\t: A\nprocessor\t: 1\n"), 2);
        let (allowed, online) = (allowed_cores().expect("known"), online_cores().expect("known"));
        assert!((1..=online).contains(&allowed.len()), "{allowed:?} of {online}");
    }
}
