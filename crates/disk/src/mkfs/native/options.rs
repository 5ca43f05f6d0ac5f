//! The options of native file systems.

use super::NativeParams;
use super::params::BLOCK_SIZE;
use crate::mkfs::options::Options;
use crate::mkfs::params::PlanError;
use crate::mkfs::usage::FsType;

impl Options {
    /// The parameters of a native file system.
    pub(in crate::mkfs) fn native(
        &self,
        fs_type: FsType,
    ) -> Result<Option<NativeParams>, PlanError> {
        let (lot_bytes, region_bytes) = (self.extended.lot_bytes, self.extended.region_bytes);
        if fs_type != FsType::Native {
            let given = lot_bytes.or(region_bytes).is_some();
            let only = PlanError::Parameter("lot_size and region_size need -t native");
            return if given { Err(only) } else { Ok(None) };
        }
        if lot_bytes.is_some() && self.blocks_per_group.is_some() {
            return Err(PlanError::Parameter("lot_size and -g exclude each other"));
        }
        let region_blocks = match region_bytes {
            Some(bytes) => Some(
                u32::try_from(bytes / u64::from(BLOCK_SIZE))
                    .map_err(|_| PlanError::Parameter("the region_size is too large"))?,
            ),
            None => None,
        };
        Ok(Some(NativeParams { region_blocks }))
    }

    /// Blocks of a group, if the size of a lot is given.
    pub(in crate::mkfs) fn blocks_of_lot_groups(&self) -> Result<Option<u32>, PlanError> {
        let Some(bytes) = self.extended.lot_bytes else { return Ok(None) };
        NativeParams::blocks_per_group(bytes).map(Some).ok_or(PlanError::Parameter(
            "lot_size must be a multiple of 128 KiB, from 4 MiB to 512 MiB",
        ))
    }
}
