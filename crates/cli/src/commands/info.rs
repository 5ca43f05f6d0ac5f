//! `floe info`: describes a file system and estimates the cost of a check.

use std::io::Write;

use floe_check::reader::Reader;
use floe_ext4::inode_table::read_groups;
use floe_ext4::journal::find_cubes;
use floe_format::ext::inode::Inode;
use floe_format::ext::jbd2::JournalSuperblock;
use floe_format::ext::superblock::{STATE_ERROR, STATE_ORPHAN, STATE_VALID, Superblock, seconds};
use floe_format::features::{Compat, Incompat};
use floe_format::native::identity::Identity;
use floe_format::words::agree;
use floe_format::{BlockNr, GroupNr, InodeNr, LogicalBlock, rext3};
use floe_report::calendar::date;
use floe_report::human::{grouped, size};

use crate::exit::{Ended, Outcome};
use crate::input::device::Source;
use crate::terminal::failure;
use crate::terminal::listing::{self, Listing};

mod estimate;

use estimate::estimate;

/// Show the superblock, features and layout, and estimate the cost of a check.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// Output JSON
    #[arg(long)]
    json: bool,
    /// Estimate for this number of threads; by default all processors
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

impl Args {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<Outcome> {
        let device = self.source.open()?;
        let reader = match Reader::open(
            &device,
            self.source.superblock.map(BlockNr),
            self.source.block_size,
        ) {
            Ok(reader) => reader,
            Err(error) => {
                let name = self.source.name();
                return Err(Ended::failed(failure::of_reader(&error, &device, &name)));
            }
        };
        let threads = self.threads.map_or_else(floe_exec::default_threads, usize::from);
        let sheets = [
            identity(&reader),
            state(&reader.superblock),
            layout(&reader),
            journal(&reader),
            cost(&reader, threads),
        ];
        listing::write(out, &sheets, self.json)?;
        Ok(Outcome::CLEAN)
    }
}

fn identity(reader: &Reader<'_>) -> Listing {
    let superblock = &reader.superblock;
    let features = reader.geometry.features;
    let kind = if features.incompat.contains(Incompat::EXTENTS) {
        "ext4"
    } else if features.compat.contains(Compat::HAS_JOURNAL) {
        "ext3"
    } else {
        "ext2"
    };
    let mut sheet = Listing::new(format!("{kind} file system"));
    sheet.field("label", format!("{:?}", superblock.label()));
    sheet.field("uuid", superblock.uuid_text());
    sheet.field("features", features.names().join(" "));
    sheet.field("last mounted on", text(&superblock.last_mounted));
    if !Superblock::checksum_ok(&reader.superblock_bytes) {
        sheet.remark("the checksum of this superblock is wrong");
    }
    let device_bytes = reader.device().size_bytes();
    let needed = reader.geometry.size_bytes();
    if device_bytes < needed {
        let short = format!("{} of {}", size(device_bytes), size(needed));
        sheet.remark(format!("the device is shorter than the file system: {short}"));
    }
    sheet
}

fn state(superblock: &Superblock) -> Listing {
    let mut sheet = Listing::new("State");
    let mut words = Vec::new();
    words.push(if superblock.state & STATE_VALID != 0 { "clean" } else { "not clean" });
    if superblock.state & STATE_ERROR != 0 {
        words.push("with errors");
    }
    if superblock.state & STATE_ORPHAN != 0 {
        words.push("orphans being recovered");
    }
    if superblock.features().incompat.contains(Incompat::RECOVER) {
        words.push("needs journal recovery");
    }
    sheet.field("state", words.join(", "));
    sheet.field("mounts since check", superblock.mnt_count);
    sheet.field("made", time(seconds(superblock.mkfs_time, superblock.mkfs_time_hi)));
    sheet.field("last mount", time(seconds(superblock.mtime, superblock.mtime_hi)));
    sheet.field("last write", time(seconds(superblock.wtime, superblock.wtime_hi)));
    sheet.field("last check", time(seconds(superblock.lastcheck, superblock.lastcheck_hi)));
    if superblock.error_count > 0 {
        let last = seconds(superblock.last_error_time, superblock.last_error_time_hi);
        let (count, last) = (superblock.error_count, time(last));
        let function = text(&superblock.last_error_func);
        sheet.remark(format!("Linux recorded {count} errors, the last {last} in {function}"));
    }
    sheet
}

fn layout(reader: &Reader<'_>) -> Listing {
    let (superblock, geometry) = (&reader.superblock, &reader.geometry);
    let block_size = u64::from(geometry.block_size);
    let mut sheet = Listing::new("Layout");
    let used = geometry.blocks_count.saturating_sub(superblock.free_blocks_count());
    let counted = |count: u64| format!("{} ({})", grouped(count), size(count * block_size));
    sheet.field("block size", geometry.block_size);
    if geometry.cluster_blocks > 1 {
        sheet.field("cluster size", u64::from(geometry.cluster_blocks) * block_size);
    }
    sheet.field("blocks", counted(geometry.blocks_count));
    sheet.field("blocks in use", counted(used));
    sheet.field("inodes", grouped(u64::from(geometry.inodes_count)));
    let inodes = geometry.inodes_count.saturating_sub(superblock.free_inodes_count);
    sheet.field("inodes in use", grouped(u64::from(inodes)));
    sheet.field("inode size", geometry.inode_size);
    sheet.field("groups", grouped(u64::from(geometry.group_count)));
    sheet.field("blocks per group", geometry.blocks_per_group);
    sheet.field("inodes per group", geometry.inodes_per_group);
    let descriptors =
        format!("{} blocks of {} bytes each", geometry.desc_blocks, geometry.desc_size);
    sheet.field("descriptors", agree(&descriptors));
    let backups: Vec<_> = (1..geometry.group_count)
        .filter_map(|group| geometry.superblock_of(GroupNr(group)))
        .take(12)
        .map(|block| block.0.to_string())
        .collect();
    let backups = if backups.is_empty() { "none".to_owned() } else { backups.join(" ") };
    sheet.field("backup superblocks", backups);
    if let Some(identity) = Identity::of(superblock) {
        native(reader, &identity, &mut sheet);
    }
    if let Some(blocks) = rext3::region_blocks(superblock) {
        sheet.field("metadata region", format!("{blocks} blocks of a group"));
    }
    sheet
}

/// The lots of a native file system, and whether anyone has written to it since Floe sealed it.
fn native(reader: &Reader<'_>, identity: &Identity, sheet: &mut Listing) {
    let geometry = &reader.geometry;
    let lot_groups = geometry.descs_per_block().max(1);
    let lot_blocks = u64::from(lot_groups) * u64::from(geometry.blocks_per_group);
    let lots = geometry.group_count.div_ceil(lot_groups);
    let each = size(lot_blocks * u64::from(geometry.block_size));
    sheet.field("lots", format!("{} of {each}", grouped(u64::from(lots))));
    sheet.field("metadata region", format!("{} blocks of a lot", identity.region_blocks));
    let sealed = if Identity::is_sealed(&reader.superblock) {
        "intact: nobody has written since"
    } else {
        "broken: another program has written since, or a mount did not end"
    };
    sheet.field("seal", format!("{} ({sealed})", identity.epoch));
}

fn journal(reader: &Reader<'_>) -> Listing {
    let mut sheet = Listing::new("Journal");
    let superblock = &reader.superblock;
    if !reader.geometry.features.compat.contains(Compat::HAS_JOURNAL) {
        sheet.field("journal", "none");
        return sheet;
    }
    if superblock.journal_inum == 0 {
        sheet.field("journal", "on another device");
        sheet.field("uuid", floe_format::ext::superblock::uuid_text(&superblock.journal_uuid));
        return sheet;
    }
    let number = InodeNr(superblock.journal_inum);
    sheet.field("journal", number);
    match journal_superblock(reader, number) {
        Some(found) => {
            sheet.field("blocks", found.maxlen);
            sheet.field("version", if found.is_v2() { 2 } else { 1 });
            let state = if found.start == 0 {
                "empty".to_owned()
            } else {
                format!("holds transactions from {} on (block {})", found.sequence, found.start)
            };
            sheet.field("state", state);
        }
        None => sheet.remark("its superblock cannot be read"),
    }
    further(reader, &mut sheet);
    sheet
}

/// Further journals of the root cube of a native file system, with the lots that each logs.
fn further(reader: &Reader<'_>, sheet: &mut Listing) {
    let (superblock, geometry) = (&reader.superblock, &reader.geometry);
    if Identity::of(superblock).is_none() {
        return;
    }
    let Some(groups) = read_groups(reader.device(), geometry) else { return };
    let found = find_cubes(reader.device(), superblock, geometry, &groups);
    for own in found.usable.iter().filter(|own| own.cube == 0) {
        let state = if own.journal.needs_replay { "holds transactions" } else { "empty" };
        let text = format!("{} blocks for {} lots, {state}", own.journal.blocks, own.lots.len());
        sheet.field(format!("further journal, {}", own.inode), agree(&text));
    }
    for lost in found.unusable.iter().filter(|lost| lost.cube == 0) {
        sheet.remark(format!("a further journal, {}, cannot be used: {}", lost.inode, lost.why));
    }
}

/// The superblock of an internal journal.
pub(crate) fn journal_superblock(
    reader: &Reader<'_>,
    number: InodeNr,
) -> Option<JournalSuperblock> {
    let bytes = reader.inode_bytes(number).ok()?;
    let block = reader.map(&Inode::decode(&bytes)?).find(LogicalBlock(0))?;
    let block = reader.block(block).ok()?;
    let found = JournalSuperblock::decode(block.first_chunk()?);
    (found.magic == floe_format::ext::jbd2::MAGIC).then_some(found)
}

fn cost(reader: &Reader<'_>, threads: usize) -> Listing {
    let mut sheet = Listing::new(format!("Estimate of a check with {threads} threads"));
    let sum = match estimate(reader) {
        Ok(sum) => sum,
        Err(error) => {
            sheet.remark(error.to_string());
            return sheet;
        }
    };
    sheet.field("inode tables", size(sum.table_bytes));
    sheet.field("directories", grouped(sum.directories));
    sheet.field("bytes to read", size(sum.bytes));
    sheet.field("reads", grouped(sum.reads));
    let (usual, least) = sum.memory_bytes(&reader.geometry, threads);
    sheet.field("memory", size(usual));
    sheet.field("memory, at least", size(least));
    for (name, seconds) in sum.seconds(threads) {
        sheet.field(format!("time, {name}"), duration(seconds));
    }
    sheet
}

fn duration(seconds: f64) -> String {
    if seconds < 10.0 {
        return format!("{seconds:.3} s");
    }
    if seconds < 100.0 {
        return format!("{seconds:.2} s");
    }
    let minutes = (seconds / 60.0).round() as u64;
    if minutes < 120 {
        format!("{minutes} min")
    } else {
        format!("{} h {} min", minutes / 60, minutes % 60)
    }
}

/// A NUL-padded text field, escaped for printing.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    bytes[..end].escape_ascii().to_string()
}

/// A time in seconds since 1970, as a date in UTC.
pub(crate) fn time(seconds: u64) -> String {
    if seconds == 0 {
        return "never".to_owned();
    }
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days.cast_signed());
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(time(0), "never");
        assert_eq!(time(951_782_399), "2000-02-28 23:59:59 UTC");
        assert_eq!(time(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(time(1_704_067_200), "2024-01-01 00:00:00 UTC");
        assert_eq!(time(u64::from(u32::MAX)), "2106-02-07 06:28:15 UTC");
    }

    #[test]
    fn durations_read_well() {
        assert_eq!(duration(0.5), "0.500 s");
        assert_eq!(duration(600.0), "10 min");
        assert_eq!(duration(9000.0), "2 h 30 min");
    }
}
