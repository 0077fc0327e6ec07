//! The options of `doctor`.

use clap::Args;

use tributary_system::size::Size;

/// Scope and limits of the check.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Examination")]
pub struct DoctorArgs {
    /// Minimum bus bandwidth of the largest all-gather, in GB/s; a lower one ends with exit code 78
    /// [default: none]
    #[arg(long, value_name = "GB/s", value_parser = gigabytes_per_s)]
    pub min_busbw: Option<f64>,
    /// Sizes of the measured all-gathers: bytes that every rank has at the end
    #[arg(long, value_name = "SIZE,..", value_parser = values, value_delimiter = ',', default_value = "1MiB,256MiB")]
    pub sizes: Vec<Size>,
    /// Measured runs of each size, after two warm-up runs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), default_value_t = 5)]
    pub repeat: u32,
    /// Skip the checks of the collectives' results
    #[arg(long)]
    pub skip_checks: bool,
    /// Print everything as one JSON object, every sample included
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
