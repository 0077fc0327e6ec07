//! Points in time of a device's work, so that a span of work is measured where it runs and not
//! where it is given out.

use std::time::Instant;

use candle_core::Device;

use crate::cuda;
use crate::error::Result;

/// A point in a device's work: after everything that the device has been given before. On a CPU
/// that is now. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Moment(At);

#[derive(Debug, Clone)]
enum At {
    Host(Instant),
    Device(cuda::DeviceEvent),
}

impl Moment {
    /// The point after everything that `device` has been given. Does not wait for it.
    ///
    /// # Errors
    /// Returns an error if the driver refuses.
    pub fn now(device: &Device) -> Result<Self> {
        match device {
            Device::Cuda(device) => Ok(Self(At::Device(cuda::DeviceEvent::record(device)?))),
            _ => Ok(Self(At::Host(Instant::now()))),
        }
    }

    /// Whether the device has come here. Does not wait.
    pub fn has_passed(&self) -> bool {
        match &self.0 {
            At::Host(_) => true,
            At::Device(event) => event.has_passed(),
        }
    }

    /// Waits until the device has come here.
    ///
    /// # Errors
    /// Returns an error if earlier work on the device failed.
    pub fn wait(&self) -> Result<()> {
        match &self.0 {
            At::Host(_) => Ok(()),
            At::Device(event) => event.wait(),
        }
    }

    /// Seconds from `earlier` to this, which must be of the same device. Waits until the device has
    /// come to both.
    ///
    /// # Errors
    /// Returns an error if work before them failed.
    ///
    /// # Panics
    /// If one is a device's and the other the host's: only a bug can do that.
    pub fn seconds_since(&self, earlier: &Moment) -> Result<f64> {
        match (&self.0, &earlier.0) {
            (At::Host(later), At::Host(earlier)) => Ok(later.saturating_duration_since(*earlier).as_secs_f64()),
            (At::Device(later), At::Device(earlier)) => later.seconds_since(earlier),
            _ => panic!("moments of different devices"),
        }
    }
}
