//! Lists that a device needs again and again. Each is copied there once, and not once a layer.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Device, Tensor};

use crate::cuda;
use crate::error::Result;

/// A list of rows or positions, and its copies on the devices that have asked for it. Cheap to
/// clone; clones share the copies.
#[derive(Clone)]
pub struct DeviceList {
    numbers: Arc<[u32]>,
    copies: Arc<Mutex<Vec<Tensor>>>,
}

impl DeviceList {
    /// The list on the host.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn numbers(&self) -> &Arc<[u32]> {
        &self.numbers
    }

    /// The list on a device, `[len]`: copied there when it is first asked for. The device's queue
    /// takes it; for a long list (some 64 KB) the driver may let the host wait until the queue has
    /// come so far. No lock is held meanwhile: the queue may wait for other ranks, and those for
    /// the same list. Of two copies the first that is stored stays.
    ///
    /// # Errors
    /// Returns an error if the driver refuses.
    pub fn on(&self, device: &Device) -> Result<Tensor> {
        if let Some(copy) = self.stored(device, None) {
            return Ok(copy);
        }
        let new = cuda::upload(&self.numbers, device)?;
        Ok(self.stored(device, Some(&new)).unwrap_or(new))
    }

    /// The copy that is kept for a device; where there is none, `new` from now on.
    fn stored(&self, device: &Device, new: Option<&Tensor>) -> Option<Tensor> {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let found = copies.iter().find(|copy| copy.device().same_device(device)).cloned();
        found.or_else(|| {
            copies.extend(new.cloned());
            new.cloned()
        })
    }
}

impl std::ops::Deref for DeviceList {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.numbers
    }
}

impl<L: Into<Arc<[u32]>>> From<L> for DeviceList {
    fn from(numbers: L) -> Self {
        Self { numbers: numbers.into(), copies: Arc::default() }
    }
}

impl PartialEq for DeviceList {
    fn eq(&self, other: &Self) -> bool {
        self.numbers == other.numbers
    }
}

impl Eq for DeviceList {}

impl fmt::Debug for DeviceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.numbers.fmt(f)
    }
}
