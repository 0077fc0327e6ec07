//! Network interfaces of the machine, as this process sees them.

use std::net::IpAddr;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::file::text;

/// One network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// State by the system's word: `up`, `down`, `unknown`.
    pub state: String,
    /// Largest packet, in bytes.
    pub mtu_bytes: Option<u32>,
    /// Nominal speed of the link in Mbit/s; absent for virtual links.
    pub speed_mbit_per_s: Option<u32>,
    /// Whether it leads back to this machine only.
    pub loopback: bool,
    /// Its addresses with their prefix lengths.
    pub addresses: Vec<String>,
}

impl Interface {
    /// Whether another machine may be reached over it: no loopback, not down, and with an address
    /// that is not bound to the link.
    pub fn leads_out(&self) -> bool {
        let routable = |address: &String| {
            let host = address.split('/').next().unwrap_or_default();
            host.parse().is_ok_and(|ip: IpAddr| match ip {
                IpAddr::V4(ip) => !ip.is_loopback(),
                IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
            })
        };
        !self.loopback && self.state != "down" && self.addresses.iter().any(routable)
    }
}

/// All interfaces, in the order of their names.
pub fn interfaces() -> Vec<Interface> {
    let addresses = if_addrs::get_if_addrs().unwrap_or_default();
    let addresses = addresses.into_iter().map(|interface| Address {
        loopback: interface.is_loopback(),
        text: match &interface.addr {
            if_addrs::IfAddr::V4(v4) => format!("{}/{}", v4.ip, v4.prefixlen),
            if_addrs::IfAddr::V6(v6) => format!("{}/{}", v6.ip, v6.prefixlen),
        },
        interface: interface.name,
    });
    joined(described(Path::new("/sys/class/net")), addresses)
}

/// An address of an interface.
struct Address {
    interface: String,
    loopback: bool,
    text: String,
}

/// Interfaces with their addresses. The system's folder may show another network namespace than the
/// process is in: an interface that it does not describe is known by its addresses alone.
fn joined(mut found: Vec<Interface>, addresses: impl Iterator<Item = Address>) -> Vec<Interface> {
    for Address { interface: name, loopback, text } in addresses {
        match found.iter_mut().find(|interface| interface.name == name) {
            Some(interface) => interface.addresses.push(text),
            None => {
                let state = "unknown".to_owned();
                found.push(Interface { name, state, loopback, addresses: vec![text], ..Interface::default() });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Interfaces as the system's folder describes them, without addresses.
fn described(folder: &Path) -> Vec<Interface> {
    // The type that the kernel gives to a loopback device (ARPHRD_LOOPBACK).
    const LOOPBACK: &str = "772";
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let say = |name: &str| text(entry.path().join(name));
            Some(Interface {
                name: entry.file_name().to_string_lossy().into_owned(),
                state: say("operstate")?,
                mtu_bytes: say("mtu").and_then(|mtu| mtu.parse().ok()),
                // A link that knows no speed says −1, or nothing at all.
                speed_mbit_per_s: say("speed").and_then(|speed| speed.parse().ok()).filter(|&speed| speed > 0),
                loopback: say("type").is_some_and(|kind| kind == LOOPBACK),
                addresses: Vec::new(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_loopback_is_found_with_its_address() {
        let all = interfaces();
        let loopback = all.iter().find(|interface| interface.loopback).unwrap();
        assert!(!loopback.leads_out(), "{loopback:?}");
        assert!(loopback.mtu_bytes.is_some_and(|bytes| bytes > 0), "{loopback:?}");
        if loopback.state != "down" {
            assert!(loopback.addresses.iter().any(|address| address == "127.0.0.1/8"), "{loopback:?}");
        }
    }

    #[test]
    fn a_folder_of_interfaces_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, files: &[(&str, &str)]| {
            fs::create_dir(folder.path().join(name)).unwrap();
            for (file, content) in files {
                fs::write(folder.path().join(name).join(file), format!("{content}\n")).unwrap();
            }
        };
        write("lo", &[("operstate", "unknown"), ("mtu", "65536"), ("type", "772")]);
        write("eth0", &[("operstate", "up"), ("mtu", "9000"), ("type", "1"), ("speed", "100000")]);
        write("veth1", &[("operstate", "up"), ("mtu", "1500"), ("type", "1"), ("speed", "-1")]);
        write("bonding_masters", &[]);
        let found = joined(described(folder.path()), [].into_iter());
        let row = |interface: &Interface| (interface.name.clone(), interface.mtu_bytes, interface.speed_mbit_per_s);
        let wanted = [("eth0", 9000, Some(100_000)), ("lo", 65536, None), ("veth1", 1500, None)];
        let wanted = wanted.map(|(name, mtu, speed)| (name.to_owned(), Some(mtu), speed));
        assert_eq!(found.iter().map(row).collect::<Vec<_>>(), wanted);
        assert_eq!(found.iter().map(|interface| interface.loopback).collect::<Vec<_>>(), [false, true, false]);
        assert!(described(&folder.path().join("absent")).is_empty());
    }

    #[test]
    fn addresses_find_their_interfaces() {
        let known = |name: &str| Interface { name: name.into(), state: "up".into(), ..Interface::default() };
        let address =
            |name: &str, loopback, text: &str| Address { interface: name.into(), loopback, text: text.into() };
        let addresses = [
            address("lo", true, "127.0.0.1/8"),
            address("eth0", false, "10.0.0.1/24"),
            address("eth0", false, "10.0.0.2/24"),
            address("alone", false, "10.1.0.1/24"),
        ];
        let found = joined(vec![known("wlan0"), known("eth0")], addresses.into_iter());
        let rows: Vec<_> = found
            .iter()
            .map(|interface| (&interface.name[..], &interface.state[..], interface.loopback, interface.addresses.len()))
            .collect();
        let wanted = [
            ("alone", "unknown", false, 1),
            ("eth0", "up", false, 2),
            ("lo", "unknown", true, 1),
            ("wlan0", "up", false, 0),
        ];
        assert_eq!(rows, wanted);
        assert_eq!(found[1].addresses, ["10.0.0.1/24", "10.0.0.2/24"]);
    }

    #[test]
    fn only_some_interfaces_lead_out() {
        let interface = |state: &str, loopback, addresses: &[&str]| Interface {
            state: state.into(),
            loopback,
            addresses: addresses.iter().map(|&address| address.to_owned()).collect(),
            ..Interface::default()
        };
        let table = [
            (interface("up", false, &["10.0.0.1/24"]), true),
            (interface("unknown", false, &["fe80::1/64", "2001:db8::1/64"]), true),
            (interface("down", false, &["10.0.0.1/24"]), false),
            (interface("up", false, &["fe80::1/64"]), false),
            (interface("up", false, &[]), false),
            (interface("unknown", true, &["127.0.0.1/8", "10.1.1.1/32"]), false),
        ];
        for (interface, leads_out) in table {
            assert_eq!(interface.leads_out(), leads_out, "{interface:?}");
        }
    }
}
