//! The GPU of each rank, and the check that no other rank has it too.

use candle_core::{CudaDevice, Device};
use tributary_system::host;

use super::failure::cuda;
use super::ffi::{self, SHARED_GPU_VARIABLE};
use crate::{Error, Result};

/// The oldest NCCL that runs here, as NCCL counts. Up to 2.23 a peer may write into buffers that
/// are not mapped for it.
const OLDEST_VERSION: i32 = 22_800;

/// The variable by which NCCL's calls block. It overrides the program's own setting.
const BLOCKING_VARIABLE: &str = "NCCL_COMM_BLOCKING";

/// The most ranks of a GPU: of more, the kernels of NCCL may wait for each other's place on it.
const MOST_RANKS: usize = 2;

/// The first NCCL that lets ranks share a GPU, as NCCL counts.
const SHARING_VERSION: i32 = 23_000;

/// The card by which a rank announces its GPU to the other ranks before NCCL starts.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Card {
    pub host: String,
    pub uuid: String,
    pub bus: String,
    pub nccl_version: i32,
    /// The process that the rank is, or is a thread of.
    pub process: u32,
    /// Whether the rank's environment makes NCCL's calls block.
    pub blocking: bool,
}

impl Card {
    /// This rank's card.
    pub fn of(device: &CudaDevice) -> Result<Self> {
        let stream = device.cuda_stream();
        let context = stream.context();
        let uuid = context.uuid().map_err(cuda)?.bytes.map(|byte| byte as u8);
        Ok(Self {
            host: host::name(),
            uuid: spelled(uuid),
            bus: ffi::bus_id(context)?,
            nccl_version: ffi::version()?,
            process: std::process::id(),
            blocking: calls_block(),
        })
    }
}

/// The device as CUDA's; NCCL knows no other.
pub fn cuda_device(device: &Device) -> Result<&CudaDevice> {
    match device {
        Device::Cuda(device) => Ok(device),
        other => Err(Error::Start(format!("NCCL carries tensors between GPUs, this rank's device is {other:?}"))),
    }
}

/// A GPU's UUID in the spelling of `nvidia-smi -L`.
fn spelled(uuid: [u8; 16]) -> String {
    let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    format!("GPU-{}", parts.join("-"))
}

/// Whether the environment makes NCCL's calls block.
pub fn calls_block() -> bool {
    std::env::var(BLOCKING_VARIABLE).is_ok_and(|value| value.trim().parse() == Ok(1))
}

/// The refusal of a rank whose calls block.
pub fn blocking(rank: usize) -> Error {
    Error::Start(format!(
        "rank {rank} has {BLOCKING_VARIABLE}=1, with which a call that waits for a lost rank never ends: unset it"
    ))
}

/// For each rank, the number of ranks that have the same GPU.
pub fn sharing(cards: &[Card]) -> Vec<usize> {
    let of = |card: &Card| cards.iter().filter(|other| other.uuid == card.uuid).count();
    cards.iter().map(of).collect()
}

/// Whether ranks are on more than one host.
pub fn on_several_hosts(cards: &[Card]) -> bool {
    cards.iter().any(|card| card.host != cards[0].host)
}

/// Whether NCCL can connect these ranks, in rank order.
///
/// # Errors
/// Returns an error if versions differ or are too old, if calls block, or if ranks share a GPU
/// where that is not allowed or not possible.
pub fn check(cards: &[Card], allow_shared_gpu: bool) -> Result<()> {
    let version = cards[0].nccl_version;
    if let Some(rank) = cards.iter().position(|card| card.nccl_version != version) {
        return Err(Error::Start(format!(
            "rank 0 runs NCCL {}, rank {rank} {}: make them equal",
            version_text(version),
            version_text(cards[rank].nccl_version)
        )));
    }
    if version < OLDEST_VERSION {
        return Err(Error::Start(format!(
            "NCCL {} is too old, {} is the oldest that runs here: install a newer one, or put its libnccl.so.2 first in \
             LD_LIBRARY_PATH",
            version_text(version),
            version_text(OLDEST_VERSION)
        )));
    }
    if let Some(rank) = cards.iter().position(|card| card.blocking) {
        return Err(blocking(rank));
    }
    for card in cards {
        let ranks: Vec<usize> = (0..cards.len()).filter(|&rank| cards[rank].uuid == card.uuid).collect();
        if ranks.len() == 1 {
            continue;
        }
        if !allow_shared_gpu {
            let gpu = format!("{} ({})", card.uuid, card.bus);
            return Err(Error::SharedGpu { ranks, host: card.host.clone(), gpu });
        }
        if let Some((one, other)) = threads_of_one_process(cards, &ranks) {
            return Err(Error::Start(format!(
                "ranks {one} and {other} are threads of one process and share {}, which NCCL does not support: start them \
                 as processes, with mpirun",
                card.uuid
            )));
        }
        if ranks.len() > MOST_RANKS {
            let (gpu, host, count) = (&card.uuid, &card.host, ranks.len());
            return Err(Error::Start(format!(
                "{count} ranks share {gpu} of {host}, and more than {MOST_RANKS} may wait for each other's place on it: \
                 start fewer ranks"
            )));
        }
        if version < SHARING_VERSION {
            return Err(Error::Start(format!(
                "ranks that share a GPU need NCCL {} or newer, this is {}",
                version_text(SHARING_VERSION),
                version_text(version)
            )));
        }
        if std::env::var(SHARED_GPU_VARIABLE).is_ok_and(|value| value == "1") {
            continue;
        }
        return Err(Error::Start(format!("ranks that share a GPU need {SHARED_GPU_VARIABLE}=1 before NCCL starts")));
    }
    Ok(())
}

/// Two of these ranks that are threads of one process. While the driver loads code it may wait for
/// running kernels, and a kernel of NCCL that waits for the other rank is one.
fn threads_of_one_process(cards: &[Card], ranks: &[usize]) -> Option<(usize, usize)> {
    let twin = |&one: &usize| {
        let is_twin = |&&other: &&usize| other > one && cards[other].process == cards[one].process;
        Some((one, *ranks.iter().find(is_twin)?))
    };
    ranks.iter().find_map(twin)
}

/// `2.30.7` of 23007.
pub(super) fn version_text(version: i32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(gpu: u8) -> Card {
        let uuid = spelled([gpu; 16]);
        let (host, bus) = ("node".to_owned(), format!("0000:0{gpu}:00.0"));
        Card { host, uuid, bus, nccl_version: 22_807, process: 1, blocking: false }
    }

    #[test]
    fn a_gpu_of_two_ranks_is_named() {
        assert_eq!(check(&[card(1), card(2), card(3)], false), Ok(()));
        let error = check(&[card(1), card(2), card(1)], false).expect_err("shared");
        assert_eq!(
            error.to_string(),
            "ranks 0 and 2 share one GPU of node, GPU-01010101-0101-0101-0101-010101010101 (0000:01:00.0): start as many \
             ranks as GPUs, or pass --allow-shared-gpu for a test that is not timed"
        );
        assert_eq!(error.exit_code(), 78);
    }

    #[test]
    fn sharing_needs_a_new_nccl() {
        let error = check(&[card(1), Card { process: 2, ..card(1) }], true).expect_err("too old");
        assert_eq!(error.to_string(), "start: ranks that share a GPU need NCCL 2.30.0 or newer, this is 2.28.7");
    }

    /// One line, and the exit code of a setting that cannot be.
    fn refused(cards: &[Card], allow_shared_gpu: bool, says: &str) {
        let error = check(cards, allow_shared_gpu).expect_err(says);
        assert_eq!(error.to_string(), format!("start: {says}"));
        assert_eq!(error.exit_code(), 78);
    }

    #[test]
    fn an_old_nccl_is_refused() {
        let of = |nccl_version| [1, 2].map(|gpu| Card { nccl_version, ..card(gpu) });
        refused(
            &of(22_707),
            false,
            "NCCL 2.27.7 is too old, 2.28.0 is the oldest that runs here: install a newer one, or put its libnccl.so.2 \
             first in LD_LIBRARY_PATH",
        );
        assert_eq!(check(&of(22_800), false), Ok(()));
    }

    #[test]
    fn calls_that_block_are_refused() {
        let cards = [card(1), Card { blocking: true, ..card(2) }];
        let why = "rank 1 has NCCL_COMM_BLOCKING=1, with which a call that waits for a lost rank never ends: unset it";
        refused(&cards, false, why);
    }

    #[test]
    fn more_than_two_ranks_of_a_gpu_are_refused() {
        let cards = [(1, 1), (2, 2), (1, 3), (1, 4)];
        let cards = cards.map(|(gpu, process)| Card { nccl_version: 23_007, process, ..card(gpu) });
        refused(
            &cards,
            true,
            "3 ranks share GPU-01010101-0101-0101-0101-010101010101 of node, and more than 2 may wait for each other's \
             place on it: start fewer ranks",
        );
        assert!(matches!(check(&cards, false), Err(Error::SharedGpu { .. })), "not allowed at all");
    }

    #[test]
    fn threads_that_share_a_gpu_are_refused() {
        let cards = [(1, 1), (2, 1), (3, 2), (2, 1)];
        let cards = cards.map(|(gpu, process)| Card { nccl_version: 23_007, process, ..card(gpu) });
        refused(
            &cards,
            true,
            "ranks 1 and 3 are threads of one process and share GPU-02020202-0202-0202-0202-020202020202, which NCCL does \
             not support: start them as processes, with mpirun",
        );
    }

    #[test]
    fn hosts_decide_how_unequal_parts_are_gathered() {
        use super::super::messages::Gathers;
        use super::super::settings::UnequalGathers;
        let elsewhere = Card { host: "other".to_owned(), ..card(3) };
        assert!(!on_several_hosts(&[card(1), card(2)]));
        assert!(on_several_hosts(&[card(1), card(2), elsewhere]));
        for (settings, one_host, several_hosts) in [
            (UnequalGathers::ByHosts, Gathers::Messages, Gathers::Broadcasts),
            (UnequalGathers::Messages, Gathers::Messages, Gathers::Messages),
            (UnequalGathers::Broadcasts, Gathers::Broadcasts, Gathers::Broadcasts),
        ] {
            assert_eq!(Gathers::of(settings, false), one_host, "{settings:?}");
            assert_eq!(Gathers::of(settings, true), several_hosts, "{settings:?}");
        }
    }

    #[test]
    fn versions_must_be_equal() {
        let newer = Card { nccl_version: 23_007, ..card(2) };
        let error = check(&[card(1), newer], false).expect_err("differ");
        assert_eq!(error.to_string(), "start: rank 0 runs NCCL 2.28.7, rank 1 2.30.7: make them equal");
        assert_eq!(error.exit_code(), 78);
    }
}
