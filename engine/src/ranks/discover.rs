//! Launcher and rank of this process, from the variables that launchers set in the environment.
//!
//! MPI's own word counts; this module refuses a case that MPI cannot see: a process that believes
//! itself alone.

use crate::config::Transport;
use crate::error::{Error, Result};

/// Facts of this process from its launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LauncherInfo {
    /// Its name.
    pub name: &'static str,
    /// This process's rank.
    pub rank: usize,
    /// Number of ranks.
    pub size: usize,
    /// This process's number on its host, where it says so.
    pub local_rank: Option<usize>,
}

/// Slurm's launcher, and the same where it does not tell MPI how to find the other ranks.
const SRUN: &str = "srun";
const SRUN_WITHOUT_PMIX: &str = "srun without PMIx";

/// Launchers by the variables that they set: name, rank, number of ranks, rank on the host. The
/// first that fits counts: mpirun inside a Slurm job leaves both. A batch script of Slurm has a
/// rank, but no step: it is not a rank.
const LAUNCHERS: [(&str, &str, &str, &[&str]); 4] = [
    ("mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", &["OMPI_COMM_WORLD_LOCAL_RANK"]),
    ("mpirun (Hydra)", "PMI_RANK", "PMI_SIZE", &["MPI_LOCALRANKID"]),
    (SRUN, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", &["SLURM_LOCALID"]),
    ("a PMIx launcher", "PMIX_RANK", "PMIX_SIZE", &["LOCAL_RANK"]),
];

/// The launcher of this process; none if it was started without one.
pub fn discover(variable: impl Fn(&str) -> Option<String>) -> Option<LauncherInfo> {
    let number = |name: &str| variable(name)?.trim().parse::<usize>().ok();
    LAUNCHERS.iter().find_map(|&(name, rank, size, local)| {
        let (rank, size) = (number(rank)?, number(size)?);
        let name = if name == SRUN && variable("PMIX_RANK").is_none() { SRUN_WITHOUT_PMIX } else { name };
        Some(LauncherInfo { name, rank, size, local_rank: local.iter().find_map(|name| number(name)) })
    })
}

/// The launcher of this process, from its environment.
pub fn launcher() -> Option<LauncherInfo> {
    discover(|name| std::env::var(name).ok())
}

/// Whether ranks are processes, by the request, the launcher and the features of the build.
///
/// # Errors
/// Returns an error if MPI has no launcher, if threads run under a launcher of several processes,
/// if the backend was not built, if srun lacks PMIx, or if the number of ranks is not the
/// launcher's.
pub fn by_mpi(
    transport: Transport,
    world: Option<usize>,
    launcher: Option<&LauncherInfo>,
    built: std::result::Result<(), String>,
) -> Result<bool> {
    // NCCL carries tensors with either of them.
    let transport = if transport == Transport::Nccl { Transport::Auto } else { transport };
    let Some(launcher) = launcher else {
        return match (transport, built) {
            (Transport::Mpi, Err(how)) => Err(Error::configuration(how)),
            (Transport::Mpi, Ok(())) => Err(Error::usage(
                "--backend mpi: no launcher has started this process; use mpirun, srun, or `tributary launch -n 4 -- ..`",
            )),
            _ => Ok(false),
        };
    };
    let LauncherInfo { name, size, .. } = launcher;
    if transport == Transport::Local {
        return match size {
            1 => Ok(false),
            _ => Err(Error::usage(format!(
                "--backend local under {name}: each of its {size} processes would do everything; drop one of the two"
            ))),
        };
    }
    if let Err(how) = built {
        return match (transport, size) {
            (Transport::Auto, 1) => Ok(false),
            _ => Err(Error::configuration(format!("started by {name} as one of {size} ranks, but {how}"))),
        };
    }
    if *name == SRUN_WITHOUT_PMIX {
        return match (transport, size) {
            (Transport::Auto, 1) => Ok(false),
            _ => Err(Error::configuration(format!(
                "{name} started {size} ranks, which cannot find each other: use srun --mpi=pmix"
            ))),
        };
    }
    match world {
        Some(world) if world != *size => {
            Err(Error::configuration(format!("--world-size {world}, but {name} started {size} ranks; make them equal")))
        }
        _ => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn from(variables: &[(&str, &str)]) -> Option<LauncherInfo> {
        let variables: HashMap<&str, &str> = variables.iter().copied().collect();
        discover(|name| variables.get(name).map(|&value| value.to_owned()))
    }

    #[test]
    fn launchers_are_known_by_their_variables() {
        let open_mpi = [
            ("OMPI_COMM_WORLD_RANK", "2"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("PMIX_RANK", "2"),
        ];
        let found = LauncherInfo { name: "mpirun (Open MPI)", rank: 2, size: 4, local_rank: Some(1) };
        assert_eq!(from(&open_mpi), Some(found));
        let hydra = from(&[("PMI_RANK", "0"), ("PMI_SIZE", "3")]);
        assert_eq!(hydra, Some(LauncherInfo { name: "mpirun (Hydra)", rank: 0, size: 3, local_rank: None }));
        let step = [("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_LOCALID", "0"), ("PMIX_RANK", "1")];
        let found = LauncherInfo { name: "srun", rank: 1, size: 2, local_rank: Some(0) };
        assert_eq!(from(&step), Some(found.clone()));
        assert_eq!(from(&step[..3]), Some(LauncherInfo { name: "srun without PMIx", ..found }));
        assert_eq!(from(&[]), None);
    }

    #[test]
    fn a_batch_script_is_no_rank_and_mpirun_inside_slurm_counts() {
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_LOCALID", "0")];
        assert_eq!(from(&batch), None);
        let both = [
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
        ];
        assert_eq!(from(&both).map(|launcher| (launcher.rank, launcher.size)), Some((3, 4)));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let four = LauncherInfo { name: "mpirun (Open MPI)", rank: 0, size: 4, local_rank: None };
        let one = LauncherInfo { size: 1, ..four.clone() };
        let strangers = LauncherInfo { name: SRUN_WITHOUT_PMIX, ..four.clone() };
        let stranger = LauncherInfo { size: 1, ..strangers.clone() };
        let absent = || Err("this program was built without the mpi backend".to_owned());
        let choose = |backend, world, launcher: Option<&LauncherInfo>, built| {
            by_mpi(backend, world, launcher, built).map_err(|error| (error.exit_code(), error.to_string()))
        };
        use Transport::{Auto, Local, Mpi};
        assert_eq!(choose(Auto, None, None, absent()), Ok(false));
        assert_eq!(choose(Local, Some(4), None, Ok(())), Ok(false));
        assert_eq!(choose(Auto, None, Some(&four), Ok(())), Ok(true));
        assert_eq!(choose(Mpi, Some(4), Some(&four), Ok(())), Ok(true));
        assert_eq!(choose(Auto, None, Some(&one), Ok(())), Ok(true));
        assert_eq!(choose(Auto, None, Some(&one), absent()), Ok(false));
        assert_eq!(choose(Local, None, Some(&one), Ok(())), Ok(false));
        assert_eq!(choose(Auto, None, Some(&stranger), Ok(())), Ok(false));
        let refusals = [
            (choose(Mpi, None, None, Ok(())), 64, "no launcher"),
            (choose(Mpi, None, None, absent()), 78, "built without"),
            (choose(Local, None, Some(&four), Ok(())), 64, "would do everything"),
            (choose(Auto, None, Some(&four), absent()), 78, "one of 4 ranks, but"),
            (choose(Mpi, None, Some(&one), absent()), 78, "built without"),
            (choose(Auto, None, Some(&strangers), Ok(())), 78, "srun without PMIx started 4 ranks"),
            (choose(Mpi, None, Some(&stranger), Ok(())), 78, "use srun --mpi=pmix"),
            (choose(Auto, Some(8), Some(&four), Ok(())), 78, "--world-size 8, but mpirun (Open MPI) started 4"),
        ];
        for (found, code, text) in refusals {
            let (found_code, found_text) = found.expect_err(text);
            assert_eq!(found_code, code, "{found_text}");
            assert!(found_text.contains(text), "{found_text}");
        }
    }
}
