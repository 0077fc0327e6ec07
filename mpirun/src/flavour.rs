//! Which MPI a launcher or a library belongs to, and whether the two fit.
//!
//! An Open MPI program under MPICH's mpirun runs as that many worlds of one rank, each with the
//! whole job. So a mismatch is refused before anything starts. Only Open MPI 4 and 5 are known well
//! enough to build a line for.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// Longest time of `mpirun --version`.
const VERSION_LIMIT: Duration = Duration::from_secs(20);

/// An MPI, as it names itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flavour {
    /// Open MPI.
    OpenMpi {
        /// The first number of its version.
        major: u32,
        /// All of it, such as `4.1.4`.
        version: String,
    },
    /// MPICH, or another that brings its launcher Hydra.
    Mpich,
    /// Intel MPI.
    Intel,
    /// Something else, which said this.
    Unknown(String),
}

impl Flavour {
    /// From the output of `mpirun --version`, or a library's own name and version.
    pub fn from_text(text: &str) -> Self {
        let first = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        if let Some((_, rest)) = text.split_once("Open MPI") {
            let start = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
            let version: String = rest[start..].chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
            if let Some(major) = version.split('.').next().and_then(|major| major.parse().ok()) {
                return Self::OpenMpi { major, version };
            }
        }
        if text.contains("Intel(R) MPI") {
            return Self::Intel;
        }
        if text.contains("HYDRA") || text.contains("MPICH") {
            return Self::Mpich;
        }
        Self::Unknown(first.to_owned())
    }

    /// The major version, if a line can be built for it.
    ///
    /// # Errors
    /// Returns the reason in one line. `launcher` is the program that was asked.
    pub fn open_mpi(&self, launcher: &str) -> Result<u32, String> {
        match self {
            Self::OpenMpi { major: major @ (4 | 5), .. } => Ok(*major),
            other => Err(format!(
                "{launcher} is {other}; needed is Open MPI 4 or 5: put it first on PATH, or name it with --mpirun"
            )),
        }
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpenMpi { version, .. } => write!(f, "Open MPI {version}"),
            Self::Mpich => f.write_str("MPICH's (Hydra)"),
            Self::Intel => f.write_str("Intel MPI's"),
            Self::Unknown(said) if said.is_empty() => f.write_str("no MPI launcher: it prints no version"),
            Self::Unknown(said) => write!(f, "no known MPI: it says `{said}`"),
        }
    }
}

/// Whether ranks of this program, which says it uses `library`, can be started by `launcher`.
///
/// # Errors
/// Returns the reason in one line.
pub fn check(launcher: &Flavour, library: &Flavour) -> Result<(), String> {
    let major = |flavour: &Flavour| match flavour {
        Flavour::OpenMpi { major, .. } => Some(*major),
        _ => None,
    };
    if major(launcher).is_some() && major(launcher) == major(library) {
        return Ok(());
    }
    Err(format!(
        "mpirun is {launcher}, but this program uses {library}: ranks would not find each other; take the mpirun of the \
         same MPI"
    ))
}

/// Flavour of the launcher at `path`.
///
/// # Errors
/// Returns one line that says what to do if the launcher is missing or does not answer.
pub fn of_launcher(path: &Path) -> Result<Flavour, String> {
    let name = path.display();
    let mut command = Command::new(path);
    // Open MPI refuses root nearly everything, but still prints its version.
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!(
                "{name} not found: install Open MPI (Debian: apt install openmpi-bin libopenmpi-dev), or name it with \
                 --mpirun"
            )
        }
        _ => format!("{name} cannot be run: {error}"),
    })?;
    let mut stdout = child.stdout.take().expect("it was piped");
    let (sender, receiver) = sync_channel(1);
    // The thread ends with the child, which is ended below at the latest.
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = stdout.by_ref().take(1 << 16).read_to_end(&mut bytes);
        let _ = sender.send(read.map(|_| bytes));
    });
    let answer = receiver.recv_timeout(VERSION_LIMIT);
    let _ = child.kill();
    let _ = child.wait();
    match answer {
        Ok(Ok(bytes)) => Ok(Flavour::from_text(&String::from_utf8_lossy(&bytes))),
        Ok(Err(error)) => Err(format!("{name} --version: {error}")),
        Err(_) => Err(format!("{name} --version gave no answer within {} s", VERSION_LIMIT.as_secs())),
    }
}

/// Flavour of this program's own MPI library.
///
/// # Errors
/// Returns one line if there is none.
pub fn of_this_program() -> Result<Flavour, String> {
    let version = tributary_comm::mpi::library_version().map_err(|error| error.to_string())?;
    Ok(Flavour::from_text(&version))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_mpi(major: u32, version: &str) -> Flavour {
        Flavour::OpenMpi { major, version: version.to_owned() }
    }

    #[test]
    fn launchers_are_told_apart() {
        let four = "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n";
        let five = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n";
        let hydra = "HYDRA build details:\n    Version:                                 4.0.2\n";
        let intel = "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307\n";
        assert_eq!(Flavour::from_text(four), open_mpi(4, "4.1.4"));
        assert_eq!(Flavour::from_text(five), open_mpi(5, "5.0.11"));
        assert_eq!(Flavour::from_text(hydra), Flavour::Mpich);
        assert_eq!(Flavour::from_text(intel), Flavour::Intel);
        assert_eq!(Flavour::from_text("\n true 1.0\n"), Flavour::Unknown("true 1.0".to_owned()));
    }

    #[test]
    fn libraries_are_told_apart() {
        let four = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022";
        assert_eq!(Flavour::from_text(four), open_mpi(4, "4.1.4"));
        assert_eq!(Flavour::from_text("Open MPI v5.0.11, package: x"), open_mpi(5, "5.0.11"));
        assert_eq!(Flavour::from_text("MPICH Version:      4.0.2"), Flavour::Mpich);
        assert_eq!(Flavour::from_text("Intel(R) MPI Library 2021.9 for Linux* OS"), Flavour::Intel);
    }

    #[test]
    fn only_open_mpi_4_and_5_are_launched() {
        assert_eq!(open_mpi(4, "4.1.4").open_mpi("mpirun"), Ok(4));
        assert_eq!(open_mpi(5, "5.0.11").open_mpi("mpirun"), Ok(5));
        for (flavour, says) in [
            (open_mpi(3, "3.1.3"), "3.1.3"),
            (Flavour::Mpich, "MPICH"),
            (Flavour::Intel, "Intel"),
            (Flavour::Unknown("true 1.0".to_owned()), "`true 1.0`"),
            (Flavour::Unknown(String::new()), "no version"),
        ] {
            let error = flavour.open_mpi("mpirun").expect_err(says);
            assert!(error.contains(says) && error.contains("Open MPI 4 or 5"), "{error}");
        }
    }

    #[test]
    fn launcher_and_library_must_fit() {
        assert_eq!(check(&open_mpi(4, "4.1.4"), &open_mpi(4, "4.1.6")), Ok(()));
        let four = open_mpi(4, "4.1.4");
        for (launcher, library, says) in [
            (Flavour::Mpich, four.clone(), "MPICH"),
            (four.clone(), Flavour::Mpich, "MPICH"),
            (open_mpi(5, "5.0.11"), four.clone(), "5.0.11"),
            (Flavour::Mpich, Flavour::Mpich, "MPICH"),
        ] {
            let error = check(&launcher, &library).expect_err(says);
            assert!(error.contains(says) && error.lines().count() == 1, "{error}");
        }
    }

    #[test]
    fn a_launcher_that_is_not_there() {
        let error = of_launcher(Path::new("/no/such/mpirun")).expect_err("missing");
        assert!(error.contains("/no/such/mpirun") && error.contains("install Open MPI"), "{error}");
    }
}
