//! Damaged descriptors of lots that belong to cubes (`docs/cubes.md`): such a cube is lost until a repair, and all else is served.
//!
//! Each lot has its descriptors in a block of its own, so one that is wrong says nothing about other lots.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

use floe_blockdev::{Overlay, ReadBlocks, WriteBlocks};
use floe_format::ext::group_desc::{DescChecksum, GroupDesc};
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::native::cube::SubSuperblock;
use floe_format::native::identity::Identity;
use floe_format::native::lot::{LotRecord, lot_groups};
use floe_format::{BlockNr, Geometry, GroupNr};

use crate::alloc::FromBitmaps;
use crate::cubes::stored;
use crate::fs::FileSystem;
use crate::group::Groups;
use crate::inode_table::{LOST, desc_place, each_desc};
use crate::journal::{CubeJournals, find_cubes};
use crate::tx::{Block, Refusal, read_block};

/// Why the descriptors of a lot are not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LotDamage {
    /// Their block cannot be read.
    Unread,
    /// A checksum is wrong.
    Checksum,
}

impl LotDamage {
    const fn words(self) -> &'static str {
        match self {
            Self::Unread => "cannot be read",
            Self::Checksum => "have a wrong checksum",
        }
    }

    fn refusal(self, device: &dyn ReadBlocks, geo: &Geometry, block: BlockNr) -> Refusal {
        match self {
            Self::Unread => match read_block(device, geo, block) {
                Err(refusal) => refusal,
                // It could not be read before.
                Ok(_) => {
                    let why = "Input/output error, although it can be read again now";
                    Refusal::Io { block, source: io::Error::other(why) }
                }
            },
            Self::Checksum => Refusal::Checksum("a group descriptor"),
        }
    }
}

/// A cube that cannot be used because of its descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostCube {
    /// All of its lots that are known.
    pub lots: Vec<u32>,
    /// Those with damaged descriptors.
    pub damaged: BTreeMap<u32, LotDamage>,
}

impl LostCube {
    /// The reason, for people.
    pub fn why(&self) -> String {
        let one = |(lot, damage): (&u32, &LotDamage)| {
            format!("the group descriptors of its lot {lot} {}", damage.words())
        };
        let all: Vec<String> = self.damaged.iter().map(one).collect();
        format!(
            "{}; until `floe repair` has mended them, nothing of the cube is read or written",
            all.join(", ")
        )
    }
}

/// Lost cubes by their number.
pub type LostCubes = BTreeMap<u32, LostCube>;

/// The descriptors of a native file system, as they are stored.
#[derive(Debug)]
pub struct Lots {
    lot_groups: u32,
    /// Those that cannot be read are [`LOST`].
    pub descs: Vec<GroupDesc>,
    damaged: BTreeMap<u32, LotDamage>,
    /// The cube of each lot, as far as sound descriptors tell.
    owners: BTreeMap<u32, u32>,
}

impl Lots {
    /// Reads the descriptors of all lots; `None` in a file system that is not native.
    pub fn read(device: &dyn ReadBlocks, sb: &Superblock, geo: &Geometry) -> Option<Self> {
        let lot_groups = lot_groups(sb);
        let lots = geo.group_count.checked_div(lot_groups)?;
        let (damaged, owners) = (BTreeMap::new(), BTreeMap::new());
        let mut read = Self { lot_groups, descs: Vec::new(), damaged, owners };
        let lots = lots + u32::from(!geo.group_count.is_multiple_of(lot_groups));
        for lot in 0..lots {
            let (block, _) = desc_place(GroupNr(lot * lot_groups), geo);
            let groups = read.groups_of(lot, geo);
            match read_block(device, geo, block) {
                Ok(bytes) => read.take(lot, &bytes, sb, geo),
                Err(_) => {
                    read.damaged.insert(lot, LotDamage::Unread);
                    read.descs.extend(groups.map(|_| LOST));
                }
            }
        }
        Some(read)
    }

    fn groups_of(&self, lot: u32, geo: &Geometry) -> Range<u32> {
        let first = lot * self.lot_groups;
        first..first.saturating_add(self.lot_groups).min(geo.group_count)
    }

    fn take(&mut self, lot: u32, bytes: &Block, sb: &Superblock, geo: &Geometry) {
        let judged = judge(lot, self.groups_of(lot, geo), bytes, sb, geo);
        if let Some(owner) = judged.owner {
            self.owners.insert(lot, owner);
        }
        if let Some(damage) = judged.damage {
            self.damaged.insert(lot, damage);
        }
        self.descs.extend(judged.descs);
    }

    /// Whether the descriptors of a lot are damaged.
    pub fn is_damaged(&self, lot: u32) -> bool {
        self.damaged.contains_key(&lot)
    }

    /// Whether all descriptors are sound, as far as this looks.
    pub fn is_sound(&self) -> bool {
        self.damaged.is_empty()
    }

    /// The cubes that are lost because of damaged descriptors. Records of sound descriptors say whose a lot is; where there are none, the
    /// lists of sub-superblocks do.
    ///
    /// # Errors
    /// Such a lot is the root cube's, or nobody knows whose it is; or files of other cubes may lie in it.
    pub fn lost(
        &self,
        device: &dyn ReadBlocks,
        sb: &Superblock,
        geo: &Geometry,
    ) -> Result<LostCubes, Refusal> {
        let mut lost = LostCubes::new();
        let shares = Identity::is_coupled(sb)
            || Identity::of(sb).is_some_and(|identity| identity.fence_inode != 0);
        let subs = OnceCell::new();
        for (&lot, &damage) in &self.damaged {
            let subs = || subs.get_or_init(|| stored(device, sb, geo, &self.descs, None));
            // A block that cannot be read now may be read the next time.
            let may_be_lost = lot > 0 && damage != LotDamage::Unread;
            let owner = self.owners.get(&lot).copied().or_else(|| listed_by(lot, subs()));
            let Some(cube) = owner.filter(|cube| *cube > 0 && may_be_lost && !shares) else {
                let (block, _) = desc_place(GroupNr(lot * self.lot_groups), geo);
                return Err(damage.refusal(device, geo, block));
            };
            let none = || LostCube { lots: Vec::new(), damaged: BTreeMap::new() };
            lost.entry(cube).or_insert_with(none).damaged.insert(lot, damage);
        }
        for (cube, own) in &mut lost {
            let is_own = |(_, owner): &(&u32, &u32)| *owner == cube;
            let known = self.owners.iter().filter(is_own).map(|(lot, _)| *lot);
            let all: BTreeSet<u32> = known.chain(own.damaged.keys().copied()).collect();
            own.lots = all.into_iter().collect();
        }
        Ok(lost)
    }

    /// The descriptors, without those of damaged lots.
    pub fn without_damaged(&self) -> Vec<GroupDesc> {
        let mut descs = self.descs.clone();
        for (lot, own) in (0..).zip(descs.chunks_mut(self.lot_groups as usize)) {
            if self.damaged.contains_key(&lot) {
                own.fill(LOST);
            }
        }
        descs
    }

    /// The journals of cubes, also those to which only backups of damaged descriptors lead.
    ///
    /// # Errors
    /// As [`CubeJournals::whole`].
    pub fn find_cubes(
        &self,
        device: &dyn ReadBlocks,
        sb: &Superblock,
        geo: &Geometry,
    ) -> io::Result<CubeJournals> {
        let mut found = find_cubes(device, sb, geo, &self.descs).whole()?;
        if self.is_sound() {
            return Ok(found);
        }
        let shown = Overlay::new(device, geo.block_size);
        let mut descs = self.descs.clone();
        for &lot in self.damaged.keys() {
            let Some((bytes, own)) = self.backup(device, sb, geo, lot) else { continue };
            let (block, _) = desc_place(GroupNr(lot * self.lot_groups), geo);
            shown.write_at(geo.offset_bytes(block), &bytes)?;
            let groups = self.groups_of(lot, geo);
            for (place, desc) in descs.iter_mut().skip(groups.start as usize).zip(own) {
                *place = desc;
            }
        }
        for own in find_cubes(&shown, sb, geo, &descs).whole()?.usable {
            if found.usable.iter().all(|known| known.inode != own.inode) {
                found.unusable.retain(|lost| lost.inode != own.inode);
                found.usable.push(own);
            }
        }
        Ok(found)
    }

    /// A sound backup of the descriptors of a lot, which may be older.
    fn backup(
        &self,
        device: &dyn ReadBlocks,
        sb: &Superblock,
        geo: &Geometry,
        lot: u32,
    ) -> Option<(Block, Vec<GroupDesc>)> {
        let groups = self.groups_of(lot, geo);
        let copies = groups.clone().skip(1).map(|group| geo.group_desc_run(GroupNr(group)));
        copies.filter(|run| run.len_blocks == 1).find_map(|run| {
            let bytes = read_block(device, geo, run.start).ok()?;
            let judged = judge(lot, groups.clone(), &bytes, sb, geo);
            let is_sound = judged.damage.is_none() && judged.owner.is_some();
            is_sound.then_some((bytes, judged.descs))
        })
    }
}

impl FileSystem {
    /// As [`FileSystem::of`], where the checksums of the superblock and of all descriptors are right: a change would write new
    /// ones over what is damaged. Each descriptor is read once for both. Descriptors of lots that belong to cubes may be damaged: of
    /// those nothing is used, and the cubes come back.
    ///
    /// # Errors
    /// [`Refusal::Io`], [`Refusal::Checksum`].
    pub fn of_sound(
        device: &dyn ReadBlocks,
        superblock: Superblock,
        geometry: Geometry,
    ) -> Result<(Self, LostCubes), Refusal> {
        if geometry.features.metadata_csum() {
            let mut bytes = [0; 1024];
            let read = device.read_at(OFFSET_BYTES, &mut bytes);
            read.map_err(|source| Refusal::Io { block: BlockNr(0), source })?;
            if !Superblock::checksum_ok(&bytes) {
                return Err(Refusal::Checksum("the superblock"));
            }
        }
        if let Some(lots) = Lots::read(device, &superblock, &geometry) {
            let lost = lots.lost(device, &superblock, &geometry)?;
            let groups = Groups::new(&superblock, geometry, lots.without_damaged());
            return Ok((Self { superblock, space: FromBitmaps::new(groups) }, lost));
        }
        let (checksum, mut sound, mut descs) = (DescChecksum::of(&superblock), true, Vec::new());
        let read = each_desc(device, &geometry, |group, raw| {
            let desc = GroupDesc::of(raw);
            sound &= checksum.compute(group, raw).is_none_or(|sum| sum == desc.checksum);
            descs.push(desc);
        });
        read.map_err(|(block, source)| Refusal::Io { block, source })?;
        if !sound {
            return Err(Refusal::Checksum("a group descriptor"));
        }
        let groups = Groups::new(&superblock, geometry, descs);
        Ok((Self { superblock, space: FromBitmaps::new(groups) }, LostCubes::new()))
    }
}

/// The descriptors of a lot.
struct Judged {
    descs: Vec<GroupDesc>,
    damage: Option<LotDamage>,
    /// The cube that all sound records name.
    owner: Option<u32>,
}

fn judge(lot: u32, groups: Range<u32>, bytes: &[u8], sb: &Superblock, geo: &Geometry) -> Judged {
    let checksum = DescChecksum::of(sb);
    let (mut descs, mut is_sound, mut named) = (Vec::new(), true, Vec::new());
    for (group, raw) in groups.clone().zip(bytes.chunks_exact(geo.desc_size as usize)) {
        let desc = GroupDesc::of(raw);
        let fits = checksum.compute(GroupNr(group), raw).is_none_or(|sum| sum == desc.checksum);
        is_sound &= fits;
        if fits {
            named.extend(LotRecord::of(raw).filter(|own| own.lot == lot).map(|own| own.cube));
        }
        descs.push(desc);
    }
    // The first one decides as long as all are sound.
    let agree = is_sound || named.windows(2).all(|pair| pair[0] == pair[1]);
    let owner = named.first().copied().filter(|_| agree);
    let damage = (!is_sound).then_some(LotDamage::Checksum);
    Judged { descs, damage, owner }
}

/// The one cube whose sub-superblock lists a lot.
fn listed_by(lot: u32, subs: &BTreeMap<u32, SubSuperblock>) -> Option<u32> {
    let mut cubes = subs.values().filter(|sub| sub.lots.contains(&lot)).map(|sub| sub.cube);
    let first = cubes.next();
    first.filter(|_| cubes.next().is_none())
}
