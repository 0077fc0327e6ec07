//! The host: its name, its kernel, and the id of this boot.

use crate::file::text;

/// The host's name, as its kernel knows it.
pub fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The kernel's name and release, such as `Linux 6.8.0`.
pub fn kernel() -> String {
    let system = rustix::system::uname();
    format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy())
}

/// The kernel's id of its own start: one a machine, shared by its containers. Absent where the
/// system does not report it.
pub fn boot_id() -> Option<String> {
    text("/proc/sys/kernel/random/boot_id").filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_known() {
        assert!(!name().is_empty());
        assert!(kernel().starts_with("Linux "), "{}", kernel());
        assert_eq!(boot_id().map(|id| id.len()), Some(36), "a UUID: {:?}", boot_id());
    }
}
