//! Metrics of jobs: their options, and the exporter.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use tributary_planner::forecast::Profile;
use tributary_service::{Export, Exporter};

use crate::serve::refused;

/// Destinations of a job's metrics.
#[derive(Debug, Clone, Args)]
pub struct MetricsArgs {
    /// Address of a Prometheus endpoint, /metrics, while the job runs
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "Output")]
    pub metrics_listen: Option<SocketAddr>,
    /// File for the metrics, replaced as a whole at the start, after requests (at most once a
    /// second) and at the end
    #[arg(long, value_name = "FILE.prom", help_heading = "Output")]
    pub metrics_file: Option<PathBuf>,
}

impl MetricsArgs {
    /// The exporter of a command's job, on `world` ranks at most.
    pub fn start(
        &self,
        command: &'static str,
        study: String,
        world: usize,
        profile: Option<Profile>,
    ) -> anyhow::Result<Exporter> {
        let (listen, file) = (self.metrics_listen, self.metrics_file.clone());
        Exporter::start(Export { listen, file, command, study, world, profile }).map_err(refused)
    }
}
