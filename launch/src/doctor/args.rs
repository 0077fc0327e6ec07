//! The options of `doctor`.

use clap::Args;

use tributary_system::size::Size;

/// What is examined, and what is demanded.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Examination")]
pub struct DoctorArgs {
    /// Bus bandwidth that the largest all-gather must reach; below it the exit code is 78 [default: no demand]
    #[arg(long, value_name = "GB/s", value_parser = gigabytes_per_s)]
    pub min_busbw: Option<f64>,
    /// Sizes of the measured all-gathers: bytes that every rank has in the end
    #[arg(long, value_name = "SIZE,..", value_parser = values, value_delimiter = ',', default_value = "1MiB,256MiB")]
    pub sizes: Vec<Size>,
    /// Measured runs a size, after two that do not count
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), default_value_t = 5)]
    pub repeat: u32,
    /// Leave out the checks of the collectives' results
    #[arg(long)]
    pub skip_checks: bool,
    /// Print JSON, every sample included
    #[arg(long)]
    pub json: bool,
}

/// Bytes of a value that is sent: an all-gather is of whole values.
pub const VALUE_BYTES: u64 = 4;

/// A size of whole values.
fn values(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|error: tributary_system::Error| error.to_string())?;
    let is_whole = size.bytes() > 0 && size.bytes().is_multiple_of(VALUE_BYTES);
    is_whole.then_some(size).ok_or_else(|| format!("`{text}` is not a multiple of {VALUE_BYTES} bytes above zero"))
}

/// A bandwidth that can be demanded.
fn gigabytes_per_s(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| format!("`{text}` is not a number above zero, such as 40"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        doctor: DoctorArgs,
    }

    fn parse(arguments: &[&str]) -> Result<DoctorArgs, clap::Error> {
        Cli::try_parse_from([&["doctor"], arguments].concat()).map(|cli| cli.doctor)
    }

    #[test]
    fn options_have_defaults_and_limits() {
        let args = parse(&[]).unwrap();
        assert_eq!(args.sizes, ["1MiB", "256MiB"].map(|text| text.parse().unwrap()));
        assert_eq!((args.min_busbw, args.repeat, args.skip_checks, args.json), (None, 5, false, false));
        let args = parse(&["--sizes", "4,8KiB", "--min-busbw", "0.5", "--repeat", "9"]).unwrap();
        assert_eq!(args.sizes, ["4B", "8KiB"].map(|text| text.parse().unwrap()));
        assert_eq!((args.min_busbw, args.repeat), (Some(0.5), 9));
        let refused =
            [["--sizes", ""], ["--sizes", "1MiB,"], ["--min-busbw", "0"], ["--min-busbw", "inf"], ["--repeat", "0"]];
        for arguments in refused {
            assert!(parse(&arguments).is_err(), "{arguments:?}");
        }
    }
}
