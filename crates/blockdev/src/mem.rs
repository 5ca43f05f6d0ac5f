//! A device in memory, for tests and small images.

use floe_sync::RwLock;
use std::io;

use crate::{ReadBlocks, WriteBlocks, within};

/// A device in memory.
#[derive(Debug, Default)]
pub struct MemDevice {
    bytes: RwLock<Vec<u8>>,
}

impl MemDevice {
    /// A device that holds `bytes`.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes: RwLock::new(bytes) }
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.read().clone()
    }

    fn read(&self) -> floe_sync::RwLockReadGuard<'_, Vec<u8>> {
        // A poisoned lock means only that another thread panicked; bytes are never half written.
        self.bytes.read().unwrap_or_else(floe_sync::PoisonError::into_inner)
    }
}

impl ReadBlocks for MemDevice {
    fn size_bytes(&self) -> u64 {
        self.read().len() as u64
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        let bytes = self.read();
        within(bytes.len() as u64, offset_bytes, into.len())?;
        // In range, so it fits a usize.
        let start = offset_bytes as usize;
        into.copy_from_slice(&bytes[start..start + into.len()]);
        Ok(())
    }
}

impl WriteBlocks for MemDevice {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        let mut bytes = self.bytes.write().unwrap_or_else(floe_sync::PoisonError::into_inner);
        within(bytes.len() as u64, offset_bytes, from.len())?;
        // In range, so it fits a usize.
        let start = offset_bytes as usize;
        bytes[start..start + from.len()].copy_from_slice(from);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    crate::device_contract!(
        writable MemDevice,
        |bytes: &[u8]| crate::MemDevice::new(bytes.to_vec())
    );
}
