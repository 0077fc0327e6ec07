//! Memory of the host and of this process.

use crate::control_group::ControlGroups;
use crate::fields::field_bytes;
use crate::file::text;

/// Bytes of memory that are free: the system's number, or the rest of the limits of this process'
/// control groups where that is less.
pub fn available_bytes() -> Option<u64> {
    let system = text("/proc/meminfo").and_then(|meminfo| field_bytes(&meminfo, "MemAvailable"));
    system.into_iter().chain(ControlGroups::of_this_process().memory_left_bytes()).min()
}

/// Bytes of memory that the host has.
pub fn total_bytes() -> Option<u64> {
    field_bytes(&text("/proc/meminfo")?, "MemTotal")
}

/// Bytes that this process has in memory now.
pub fn resident_bytes() -> Option<u64> {
    field_bytes(&text("/proc/self/status")?, "VmRSS")
}

/// Bytes of address space that this process has taken.
pub fn mapped_bytes() -> Option<u64> {
    field_bytes(&text("/proc/self/status")?, "VmSize")
}

/// The most bytes that this process has had in memory so far.
pub fn peak_bytes() -> Option<u64> {
    field_bytes(&text("/proc/self/status")?, "VmHWM")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_this_host_is_known() {
        const MIB: u64 = 1 << 20;
        let (available, total) = (available_bytes().expect("known"), total_bytes().expect("known"));
        assert!(MIB < available && available < total, "{available} of {total}");
        let before = peak_bytes().expect("known");
        let taken = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = peak_bytes().expect("known");
        assert!(after >= before.max(64 * MIB) && after < total, "{before}, then {after} with {} taken", taken.len());
        let resident = resident_bytes().expect("known");
        assert!((64 * MIB..=after.max(resident)).contains(&resident), "{resident} of at most {after}");
    }
}
