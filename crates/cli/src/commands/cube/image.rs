//! The cubes of an image that nobody has mounted.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use floe_blockdev::{ReadBlocks, WriteBlocks};
use floe_check::cube::CubeName;
use floe_disk::ops::{Caller, NewCube};
use floe_disk::volume::cubes;
use floe_ext4::cubes::{Paths, stored};
use floe_ext4::files::{Files, Follow, Node, printable};
use floe_format::GroupNr;
use floe_format::native::cube::{MOST_PATH_BYTES, Policies, SubSuperblock};
use floe_format::native::identity::Identity;
use floe_fs::{FsError, Live, Settings, now};
use serde_json::{Value, json};

use super::room::judge_journal;
use crate::image_files::place;

/// The path of a cube in the image as it is kept.
pub(super) fn normal(path: &[u8]) -> Result<Vec<u8>> {
    place::normal(path).with_context(|| {
        format!(
            "{}: the path of a cube starts with /, ends with a name, and has no . or ..; nothing was changed",
            printable(path)
        )
    })
}

/// The directory of a normal path, and its last name.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let at = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    (&path[..at.max(1)], path.get(at + 1..).unwrap_or_default())
}

/// A native file system and its cubes.
pub(super) struct CubeImage<'f, 'd> {
    pub(super) files: &'f Files<'d>,
    /// Owners of lots, without the root cube.
    pub(super) owners: BTreeMap<u32, u32>,
    pub(super) subs: BTreeMap<u32, SubSuperblock>,
    paths: Paths<'f, 'd>,
}

impl<'f, 'd> CubeImage<'f, 'd> {
    pub(super) fn of(device: &dyn ReadBlocks, files: &'f Files<'d>) -> Result<Self> {
        let (superblock, geometry) = (files.superblock(), files.geometry());
        if Identity::of(superblock).is_none() {
            bail!("it is not a native file system; `floe mkfs -t native` makes one");
        }
        let owners = cubes::owners(device, superblock, geometry, files.groups());
        let subs = stored(device, superblock, geometry, files.groups(), None);
        Ok(Self { files, owners, subs, paths: Paths::of(files) })
    }

    fn node(&self, path: &[u8]) -> Result<Node> {
        let found = self.files.lookup(path, Follow::Last);
        found.with_context(|| printable(path))
    }

    /// The cube whose directory a path leads to, or with this number (`cube:3`).
    pub(super) fn cube(&self, path: &[u8]) -> Result<&SubSuperblock> {
        if let CubeName::Number(number) = CubeName::of(path) {
            let sub = self.subs.get(&number);
            return sub.with_context(|| format!("there is no cube {number}"));
        }
        let inode = self.node(path)?.number.0;
        let sub = self.subs.values().find(|sub| sub.top_inode == inode);
        sub.with_context(|| format!("{} is not a cube", printable(path)))
    }

    pub(super) fn all(&self) -> Vec<Value> {
        let mut numbers: Vec<u32> = self.subs.keys().chain(self.owners.values()).copied().collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|cube| self.describe(cube)).collect()
    }

    pub(super) fn describe(&self, cube: u32) -> Value {
        let geometry = self.files.geometry();
        let per_lot = geometry.descs_per_block();
        let own = self.owners.iter().filter(|(_, owner)| **owner == cube).map(|(lot, _)| *lot);
        let lots: Vec<u32> = own.collect();
        let groups = lots.iter().flat_map(|lot| (0..per_lot).map(move |at| lot * per_lot + at));
        let (mut blocks, mut free) = (0, 0);
        for group in groups.filter(|group| *group < geometry.group_count) {
            blocks += geometry.blocks_of(GroupNr(group)).len_blocks;
            let desc = self.files.groups().get(group as usize);
            free += desc.map_or(0, |desc| u64::from(desc.free_blocks_count));
        }
        let sub = self.subs.get(&cube);
        let coupled = self.coupled_with(cube);
        let block_bytes = u64::from(geometry.block_size);
        json!({
            "cube": cube,
            "path": sub.map(|sub| printable(&self.paths.moved(sub).unwrap_or_else(|| sub.path.clone()))),
            "inode": sub.map(|sub| sub.top_inode),
            "lots": lots,
            "size_bytes": blocks * block_bytes,
            "free_bytes": free * block_bytes,
            "journal_blocks": sub.map_or(0, |sub| sub.journal.blocks),
            "max_size_bytes": sub.map_or(0, |sub| sub.policies.limit_blocks * block_bytes),
            "on_error": sub.map(|sub| sub.policies.on_error.name()),
            "recovery": sub.map(|sub| sub.policies.recovery.name()),
            "journal_mode": sub.map(|sub| sub.policies.journal_mode.name()),
            "fsync": sub.map(|sub| sub.policies.fsync_mode.name()),
            "mode": sub.map(|sub| sub.state.name()),
            "coupled": coupled,
        })
    }

    /// The cubes that share files with one, as the last mount found; 0: there are such files outside of cubes.
    fn coupled_with(&self, cube: u32) -> Vec<u32> {
        let is_known = Identity::is_coupled(self.files.superblock())
            && Identity::knows_couples(self.files.superblock());
        let least = self.subs.get(&cube).and_then(|sub| sub.coupled).filter(|_| is_known);
        let Some(least) = least else { return Vec::new() };
        let others = self.subs.values().filter(|sub| sub.cube != cube);
        let others = others.filter(|sub| sub.coupled == Some(least)).map(|sub| sub.cube);
        (least == 0).then_some(0).into_iter().chain(others).collect()
    }

    pub(super) fn create<D: WriteBlocks>(
        &self,
        live: &Live<'_, '_, D>,
        path: &[u8],
        settings: Settings,
    ) -> Result<u32> {
        let journal_blocks = settings.journal_blocks.unwrap_or(0);
        let policies = self.policies(settings, Policies::default(), journal_blocks > 0)?;
        judge_journal(journal_blocks, live.most_cube_journal())?;
        let (parent, name) = split(path);
        let parent = self.node(parent)?.number;
        // The path may lead over symbolic links.
        let real = [&live.path_of(parent)?[..], b"/", name].concat();
        if real.len() > MOST_PATH_BYTES {
            bail!("the path of a cube has at most {MOST_PATH_BYTES} bytes; nothing was changed");
        }
        let new =
            NewCube { parent, name, path: &real, permissions: 0o755, journal_blocks, policies };
        live.create_cube(&Caller::system(now()), &new).map_err(|error| match error {
            FsError::NoSpace => anyhow::anyhow!("there is no free lot; nothing was changed"),
            error => anyhow::Error::new(error).context(printable(path)),
        })
    }

    pub(super) fn remove<D: WriteBlocks>(
        &self,
        live: &Live<'_, '_, D>,
        path: &[u8],
        keep_files: bool,
    ) -> Result<u32> {
        let sub = self.cube(path)?;
        let cube = sub.cube;
        // The path that it was made with may lead elsewhere by now.
        let path = match CubeName::of(path) {
            CubeName::Number(_) => normal(&sub.path)?,
            CubeName::Path(path) => normal(&path)?,
        };
        let (parent, name) = split(&path);
        let parent = self.node(parent)?.number;
        let path = &path[..];
        let place = (!keep_files).then_some((parent, name));
        live.remove_cube(&Caller::system(now()), cube, place).map_err(|error| match error {
            FsError::NotEmpty => anyhow::anyhow!(
                "{} is not empty; nothing was changed. --keep-files keeps its files",
                printable(path)
            ),
            error => anyhow::Error::new(error).context(printable(path)),
        })?;
        Ok(cube)
    }
}
