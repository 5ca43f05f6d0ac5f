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
            let has_region = fs_type == FsType::Rext3;
            let bad = |what: &'static str| Err(PlanError::Parameter(what));
            if self.journals() > 1 {
                return bad("journals needs -t native");
            }
            return match (lot_bytes, region_bytes) {
                (Some(_), _) => bad("lot_size needs -t native"),
                (None, Some(_)) if !has_region => bad("region_size needs -t native or -t rext3"),
                _ => Ok(None),
            };
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

    /// Groups of a lot of a native file system of so many bytes, and the blocks of each if the size of a lot is given.
    pub(in crate::mkfs) fn lot_groups(
        &self,
        fs_bytes: u64,
    ) -> Result<(u32, Option<u32>), PlanError> {
        let Some(bytes) = self.extended.lot_bytes else {
            let is_usual = self.blocks_per_group.is_none();
            return Ok((NativeParams::usual_groups(if is_usual { fs_bytes } else { 0 }), None));
        };
        if self.flex_groups.is_some() {
            return Err(PlanError::Parameter("lot_size and -G exclude each other"));
        }
        let (groups, blocks) = NativeParams::groups_of_lot(bytes).ok_or(PlanError::Parameter(
            "lot_size must be a multiple of 128 KiB, from 4 MiB to 512 MiB, or 1, 2 or 4 GiB",
        ))?;
        Ok((groups, Some(blocks)))
    }
}
