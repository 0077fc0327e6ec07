//! Lists that a device needs again and again: copied there once, not once a layer.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Device, Tensor};

use crate::cuda;
use crate::error::Result;

/// A list of rows or positions, and its copies on the devices that have asked for it. Cheap to clone; clones share the copies.
#[derive(Clone)]
pub struct DeviceList {
    numbers: Arc<[u32]>,
    copies: Arc<Mutex<Vec<Tensor>>>,
}

impl DeviceList {
    /// Whether this is the very list of the other, not only an equal one.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.numbers, &other.numbers)
    }

    /// The list on a device, `[len]`: copied there when it is first asked for. The device's queue takes it; for a long list (some
    /// 64 KB) the driver may let the host wait until the queue has come so far.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn on(&self, device: &Device) -> Result<Tensor> {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = copies.iter().find(|copy| copy.device().same_device(device)) {
            return Ok(copy.clone());
        }
        let copy = cuda::upload(&self.numbers, device)?;
        copies.push(copy.clone());
        Ok(copy)
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
