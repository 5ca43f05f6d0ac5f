//! Weighs evidence that an inode with a wrong checksum is still the inode it claims to be, before a
//! repair clears it or trusts its content.
//!
//! - If flipping one or two bits, or those of one byte, makes the checksum match, all other bits are
//!   correct (`ext/inode_flips.rs`). Two bits need a second finding (`second_finding.rs`), because a stale
//!   checksum of right bytes looks like them once in 2,000.
//! - The checksums of extent nodes and directory blocks are seeded with the inode's number and
//!   generation, and the first entry of a directory is its own number. A block that matches
//!   therefore identifies its owner, with an error probability of 2^-32.
//! - A directory names it, with the file type of its mode; or it is marked as one that holds the value of an attribute, and its
//!   content has the hash that it remembers.
//! - Its map leads to blocks that no other inode claims.
//!
//! A directory entry that names a device, FIFO or socket, together with a map that holds only a
//! device number, proves the type regardless of the flags.
//!
//! The last two items prove an inode only together, and only if its bytes do not carry the checksum
//! of another inode.

use std::cell::{LazyCell, OnceCell};
use std::collections::{BTreeMap, BTreeSet};

use floe_check::Problem;
use floe_ext4::map::walk::has_map;
use floe_format::ext::dirent::{DirCursor, DirTail};
use floe_format::ext::extent::ExtentNode;
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::ext::inode_flips::{Flips, Syndromes, owner_by_checksum};
use floe_format::features::Incompat;
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use crate::attribute_value::is_proved_value;
use crate::edit::{Edit, InodeEdit, Phase};
use crate::file_map::FileMap;
use crate::plan::Wanted;
use crate::second_finding::SecondFindings;
use crate::stage::{InodeImage, Stage};

/// Maximum link count of a file in Linux.
const MOST_LINKS: u16 = 65_000;

/// Flags that no device, FIFO or socket has.
const NOT_OF_SPECIAL_FILES: InodeFlags = InodeFlags::EXTENTS
    .union(InodeFlags::INLINE_DATA)
    .union(InodeFlags::INDEX)
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND);

/// Verdict on an inode whose checksum is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// These bits were flipped; all others are correct.
    Flipped(Flips),
    /// Some bytes may be wrong, but it is this inode.
    Proved,
    /// It may be garbage.
    Unproved,
}

/// The file types that directory entries give to inodes.
type Named = BTreeMap<InodeNr, BTreeSet<Option<u8>>>;

/// Adjusts the wanted edits to the evidence: flips bits back before any other edit of an inode, and
/// clears an inode amid garbage only if nothing proves it.
pub(crate) fn weighed<'a>(
    stage: &LazyCell<Stage<'a>, impl FnOnce() -> Stage<'a>>,
    wanted: Wanted,
) -> Wanted {
    let amid_garbage: BTreeSet<InodeNr> = wanted.iter().filter_map(clears_garbage).collect();
    let doubted = wanted.keys().filter_map(|edit| match edit {
        Edit::Inode { inode, edit: InodeEdit::Checksum } => Some(*inode),
        _ => None,
    });
    let doubted: BTreeSet<InodeNr> = doubted.chain(amid_garbage.iter().copied()).collect();
    let of_flags: BTreeSet<InodeNr> = wanted.iter().filter_map(goes_for_its_flags).collect();
    if doubted.is_empty() && of_flags.is_empty() {
        return wanted;
    }
    let asked = amid_garbage.union(&of_flags).copied().collect();
    let evidence = Evidence { asked, ..Evidence::of(stage, &amid_garbage, &doubted) };
    let verdicts: BTreeMap<InodeNr, Verdict> =
        doubted.iter().map(|&inode| (inode, evidence.weigh(inode))).collect();
    // Keeping an inode recomputes its checksum. If the checksum is already right, its map is
    // garbage, and no edit would help.
    let verdicts: BTreeMap<InodeNr, Verdict> = verdicts
        .into_iter()
        .filter(|(inode, verdict)| {
            *verdict != Verdict::Proved
                || !amid_garbage.contains(inode)
                || has_wrong_checksum(stage, *inode)
        })
        .collect();
    // Directories that are kept may name other such inodes, so look at those again.
    let names_may_follow = amid_garbage
        .iter()
        .any(|inode| verdicts.get(inode).is_some_and(|verdict| *verdict != Verdict::Unproved));
    let after_weighing = |(edit, cause): (Edit, Option<Problem>)| {
        let inode = concerns(&edit, &cause)?;
        if let (None, Some(inode)) = (verdicts.get(&inode), goes_for_its_flags((&edit, &cause))) {
            let flags = evidence.flags_of_no_special_file(inode)?;
            return Some((Edit::Inode { inode, edit: InodeEdit::ClearFlags(flags) }, cause));
        }
        let edit = match verdicts.get(&inode) {
            Some(&Verdict::Flipped(flips)) => {
                Edit::Inode { inode, edit: InodeEdit::FlipBack(flips) }
            }
            Some(Verdict::Proved) if amid_garbage.contains(&inode) => {
                Edit::Inode { inode, edit: InodeEdit::Keep }
            }
            _ => return None,
        };
        Some((edit, cause))
    };
    let mut kept = Wanted::new();
    for (edit, cause) in wanted {
        let waits = clears_garbage((&edit, &cause)).is_some() && names_may_follow;
        match after_weighing((edit.clone(), cause.clone())) {
            Some((edit, cause)) => drop(kept.entry(edit).or_insert(cause)),
            None if waits => {}
            None => drop(kept.insert(edit, cause)),
        }
    }
    kept
}

/// Whether the checksum of an inode is wrong.
fn has_wrong_checksum(stage: &Stage<'_>, number: InodeNr) -> bool {
    stage.checksummed()
        && stage.read_inode(number).is_ok_and(|image| {
            Inode::decode(&image.raw).is_some_and(|inode| !inode.checksum_ok(stage.seed, number))
        })
}

/// The inode that an edit clears because its neighbours are garbage.
pub(crate) fn clears_garbage((edit, cause): (&Edit, &Option<Problem>)) -> Option<InodeNr> {
    match (edit, cause) {
        (
            Edit::Inode { inode, edit: InodeEdit::Clear },
            Some(Problem::InodeBlockGarbage { .. }),
        ) => Some(*inode),
        _ => None,
    }
}

/// The inode that an edit deletes or turns into a directory because of flags that no device, FIFO
/// or socket has.
fn goes_for_its_flags((edit, cause): (&Edit, &Option<Problem>)) -> Option<InodeNr> {
    let &Edit::Inode { inode, edit: InodeEdit::Clear | InodeEdit::BecomeDirectory } = edit else {
        return None;
    };
    let of_others = matches!(
        cause,
        Some(
            Problem::InlineDataFlagUnsupported { .. }
                | Problem::ExtentsFlagUnsupported { .. }
                | Problem::InodeIsReallyDirectory { .. }
        )
    );
    (of_others || is_of_special(cause)).then_some(inode)
}

/// Whether a finding says that a device, FIFO or socket is none.
pub(crate) const fn is_of_special(cause: &Option<Problem>) -> bool {
    matches!(
        cause,
        Some(
            Problem::CharDeviceInvalid { .. }
                | Problem::BlockDeviceInvalid { .. }
                | Problem::FifoInvalid { .. }
                | Problem::SocketInvalid { .. }
        )
    )
}

/// The inode that an edit changes, if its finding follows from bits that are flipped back.
fn concerns(edit: &Edit, cause: &Option<Problem>) -> Option<InodeNr> {
    match (edit, cause) {
        (Edit::Journal(_), Some(Problem::JournalInodeInvalid { .. })) => Some(InodeNr::JOURNAL),
        (edit, _) if edit.phase() <= Phase::Rebuild => edit.inode(),
        _ => None,
    }
}

/// The evidence of this round, with lookups shared by several inodes.
struct Evidence<'s, 'a> {
    stage: &'s Stage<'a>,
    syndromes: Option<Syndromes>,
    /// Inodes that the examination skipped, so that their own claims are not in its evidence.
    unclaimed: &'s BTreeSet<InodeNr>,
    /// All inodes with a wrong checksum.
    doubted: &'s BTreeSet<InodeNr>,
    /// Inodes whose names are looked up.
    asked: BTreeSet<InodeNr>,
    named: OnceCell<Named>,
    others: SecondFindings,
}

impl<'s, 'a> Evidence<'s, 'a> {
    fn of(
        stage: &'s Stage<'a>,
        unclaimed: &'s BTreeSet<InodeNr>,
        doubted: &'s BTreeSet<InodeNr>,
    ) -> Self {
        let syndromes = if stage.checksummed() {
            Syndromes::of_size(stage.geometry.inode_size as usize)
        } else {
            None
        };
        let asked = unclaimed.clone();
        let (named, others) = (OnceCell::new(), SecondFindings::default());
        Self { stage, syndromes, unclaimed, doubted, asked, named, others }
    }

    fn weigh(&self, inode: InodeNr) -> Verdict {
        let Ok(image) = self.stage.read_inode(inode) else { return Verdict::Unproved };
        if let Some(flips) = self.flips_of(&image) {
            let mut raw = image.raw.clone();
            flips.apply(&mut raw);
            if InodeImage::of(inode, raw)
                .is_some_and(|mended| self.is_right(flips, &image, &mended))
            {
                return Verdict::Flipped(flips);
            }
        }
        let is_another = self.stage.checksummed() && self.is_sealed_as_another(&image);
        if !is_another && self.is_named_file(&image) && self.is_plausible(&image) {
            return Verdict::Proved;
        }
        Verdict::Unproved
    }

    /// The flipped bits that explain an inode's checksum.
    fn flips_of(&self, image: &InodeImage) -> Option<Flips> {
        self.syndromes.as_ref()?.find(&image.raw, self.stage.seed, image.number)
    }

    /// Whether the flips that explain an inode's checksum are what happened to it: those of one bit or byte are
    /// proof enough if the inode makes sense without them, and two bits need more.
    fn is_right(&self, flips: Flips, damaged: &InodeImage, mended: &InodeImage) -> bool {
        match flips {
            Flips::One(_) => true,
            Flips::Byte(..) => self.is_plausible(mended),
            Flips::Two(..) => {
                self.is_plausible(mended)
                    && (!self.is_plausible(damaged)
                        || (self.is_named_file(mended) && !self.is_named_file(damaged))
                        || self.others.concern(self.stage, flips, damaged, mended)
                        || self.is_among_flipped(damaged.number))
            }
        }
    }

    /// Whether several inodes of the same block of the inode table have wrong checksums, most of which flips
    /// explain: two stale checksums look like that once in four million.
    fn is_among_flipped(&self, inode: InodeNr) -> bool {
        let per_block = self.stage.geometry.block_size / self.stage.geometry.inode_size;
        let first = inode.0.saturating_sub(1) / per_block * per_block + 1;
        let beside = self.doubted.range(InodeNr(first)..InodeNr(first.saturating_add(per_block)));
        let is_explained = |inode: &InodeNr| {
            self.stage.read_inode(*inode).is_ok_and(|image| self.flips_of(&image).is_some())
        };
        let (explained, others) =
            beside.fold(
                (0, 0),
                |(yes, no), inode| {
                    if is_explained(inode) { (yes + 1, no) } else { (yes, no + 1) }
                },
            );
        explained > 1.max(others)
    }

    /// Whether the bytes carry the checksum of another existing inode, for which they were written.
    fn is_sealed_as_another(&self, image: &InodeImage) -> bool {
        let geometry = &self.stage.geometry;
        owner_by_checksum(&image.raw, self.stage.seed, image.number)
            .is_some_and(|owner| owner != image.number && geometry.place_of(owner).is_some())
    }

    /// Whether an inode in use has a valid type, and either a block of its own or a directory entry
    /// of that type confirms it.
    fn is_named_file(&self, image: &InodeImage) -> bool {
        let links = image.base.links_count;
        let Some(file_type) = FileType::of_mode(image.base.mode) else { return false };
        if links == 0 || links > MOST_LINKS {
            return false;
        }
        let entry_type = self.has_types().then_some(file_type as u8);
        self.owns_block(image, file_type)
            || is_proved_value(self.stage, image)
            || self.named().get(&image.number).is_some_and(|types| types.contains(&entry_type))
    }

    /// Whether the first block of its map or directory carries a checksum or entry of this inode.
    fn owns_block(&self, image: &InodeImage, file_type: FileType) -> bool {
        let Some(seed) = self.stage.checksummed().then(|| self.stage.inode_seed(image)) else {
            return false;
        };
        let map = FileMap::load(self.stage, image);
        if let (true, Some(&node)) = (map.extents, map.nodes.first()) {
            let bytes = self.stage.read_block(node).unwrap_or_default();
            let fits = |node: ExtentNode<'_>| {
                node.header_ok() && node.stored_checksum() == Some(node.compute_checksum(seed))
            };
            if ExtentNode::new(&bytes).is_some_and(fits) {
                return true;
            }
        }
        let first = map.find(LogicalBlock(0)).filter(|_| file_type == FileType::Directory);
        first.and_then(|block| self.stage.read_block(block).ok()).is_some_and(|bytes| {
            let dot = DirCursor::new(&bytes).next().and_then(Result::ok);
            dot.is_some_and(|dot| dot.name == b"." && dot.inode == image.number)
                || DirTail::checksum_ok(seed, &bytes) == Some(true)
        })
    }

    /// The invalid flags of an inode that is proved to be a device, FIFO or socket: every directory
    /// entry says so, and its map holds only the two encodings of a device number.
    fn flags_of_no_special_file(&self, inode: InodeNr) -> Option<u32> {
        let image = self.stage.read_inode(inode).ok()?;
        let file_type = FileType::of_mode(image.base.mode)?;
        let words = match file_type {
            FileType::CharDevice | FileType::BlockDevice => 2,
            FileType::Fifo | FileType::Socket => 0,
            FileType::Regular | FileType::Directory | FileType::Symlink => return None,
        };
        let types = self.named().get(&inode)?;
        let is_named = types.len() == 1 && types.contains(&Some(file_type as u8));
        let has_map = image.base.block.iter().skip(4 * words).any(|&byte| byte != 0);
        let flags = image.flags() & NOT_OF_SPECIAL_FILES;
        (is_named && !has_map && !flags.is_empty()).then_some(flags.bits())
    }

    /// Whether the map of an inode, if any, is valid and leads to blocks that no other inode
    /// claims.
    fn is_plausible(&self, image: &InodeImage) -> bool {
        let in_use = image.base.links_count > 0 && !self.stage.geometry.is_reserved(image.number);
        if in_use && FileType::of_mode(image.base.mode).is_none() {
            return false;
        }
        if !has_map(&image.base) {
            return true;
        }
        let geometry = &self.stage.geometry;
        let map = FileMap::load(self.stage, image);
        let root_ok = if map.extents {
            ExtentNode::new(&image.base.block).is_some_and(|root| root.header_ok())
        } else {
            let words = image.base.block.chunks_exact(4).filter_map(|word| word.first_chunk());
            words
                .map(|word| BlockNr(u64::from(u32::from_le_bytes(*word))))
                .all(|block| block.0 == 0 || geometry.contains(block))
        };
        let nodes = map.nodes.iter().map(|&node| BlockRun::new(node, 1));
        let mut runs = map.runs.iter().map(|extent| extent.run).chain(nodes);
        root_ok && !map.goes_on_unseen && runs.all(|run| self.is_its_own(image.number, run))
    }

    /// Whether blocks exist and neither metadata nor another inode claims them.
    fn is_its_own(&self, inode: InodeNr, run: BlockRun) -> bool {
        let geometry = &self.stage.geometry;
        let Some(last) = run.end().0.checked_sub(1).map(BlockNr) else { return false };
        if run.len_blocks == 0 || !geometry.contains(run.start) || !geometry.contains(last) {
            return false;
        }
        let (start, end) = (geometry.cluster_of(run.start), geometry.cluster_of(last) + 1);
        let Stage { evidence, .. } = self.stage;
        let taken = if self.unclaimed.contains(&inode) {
            evidence.claims.used()
        } else {
            evidence.claims.shared()
        };
        taken.is_clear_in(start, end - start)
            && evidence.volume.metadata.is_clear_in(start, end - start)
    }

    /// Whether directory entries store file types.
    fn has_types(&self) -> bool {
        self.stage.geometry.features.incompat.contains(Incompat::FILETYPE)
    }

    /// The types of all inodes asked for, from all directories.
    fn named(&self) -> &Named {
        self.named.get_or_init(|| {
            let mut named = Named::new();
            let filetype = self.has_types();
            for run in &self.stage.evidence.dirs.runs {
                for at in 0..u64::from(run.len_blocks) {
                    let Ok(bytes) = self.stage.read_block(BlockNr(run.block.0 + at)) else {
                        continue;
                    };
                    for entry in DirCursor::new(&bytes).map_while(Result::ok) {
                        if self.asked.contains(&entry.inode) && !entry.is_dot_or_dotdot() {
                            let file_type = filetype.then_some(entry.file_type);
                            named.entry(entry.inode).or_default().insert(file_type);
                        }
                    }
                }
            }
            named
        })
    }
}
