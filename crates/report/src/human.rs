//! The report for people: findings by object, a summary, and the verdict.

use std::collections::BTreeMap;
use std::io::{self, Write};

use floe_check::problem::{Evidence, Problem, ROWS, Severity, Weight};
use floe_check::report::{Cost, JournalState, PipelineUse, Report, Verdict};
use floe_format::ext::inode::FileType;
use floe_format::words::agree;
use floe_format::{GroupNr, InodeNr};

use super::place::Place;
use super::rank::Rank;

/// Findings of one kind shown per object before the rest is only counted.
const SHOWN_PER_KIND: usize = 10;
/// Places with the same kinds of findings shown before the rest is only counted.
const SHOWN_ALIKE: usize = 10;
/// Total findings shown before the rest is only counted.
const SHOWN_IN_ALL: usize = 1000;

/// Maximum columns of an explanation.
const WIDTH: usize = 96;

/// Level of detail for the report of a check or repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Show every finding and change with its code, repair and evidence, and the time of each
    /// phase.
    pub verbose: bool,
}

/// Writes the whole report.
///
/// # Errors
/// A write error of `out`.
pub fn write(out: &mut impl Write, report: &Report, cost: &Cost, style: Style) -> io::Result<()> {
    header(out, report)?;
    findings(out, report, style)?;
    if style.verbose {
        phases(out, report)?;
    }
    summary(out, report, cost)?;
    if let Some(advice) = advice(report) {
        writeln!(out, "{advice}")?;
    }
    writeln!(out, "{}", verdict_line(report))
}

/// Writes the identity of the file system: label, UUID, size, and whether a backup superblock was
/// used.
///
/// # Errors
/// A write error of `out`.
pub fn identity(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let geometry = &report.geometry;
    let label = match report.superblock.label() {
        label if label.is_empty() => "File system without a label".to_owned(),
        label => format!("File system \"{}\"", label.escape_debug()),
    };
    let sizes = format!(
        "{} blocks of {} bytes, {} inodes, {} groups",
        grouped(geometry.blocks_count),
        geometry.block_size,
        grouped(u64::from(geometry.inodes_count)),
        grouped(u64::from(geometry.group_count)),
    );
    writeln!(out, "{label}, UUID {}\n{}", report.superblock.uuid_text(), agree(&sizes))?;
    if let Some(block) = report.used_backup {
        writeln!(
            out,
            "Checked with the backup superblock at {block}, which may be older than the data.",
        )?;
    }
    Ok(())
}

fn header(out: &mut impl Write, report: &Report) -> io::Result<()> {
    identity(out, report)?;
    match report.journal {
        JournalState::None | JournalState::Clean => Ok(()),
        JournalState::Replayed { transactions, blocks } => writeln!(
            out,
            "The journal holds {} transaction{} ({} block{}) to replay: checked as it will be \
             after recovery.\nNothing was written.",
            grouped(transactions),
            plural(transactions),
            grouped(blocks),
            plural(blocks),
        ),
        JournalState::Ignored => writeln!(
            out,
            "Warning: the journal holds transactions that were not replayed. Findings may be due \
             to that."
        ),
        JournalState::Unusable => writeln!(
            out,
            "Warning: the journal cannot be replayed: the file system was checked without it."
        ),
    }
}

fn findings(out: &mut impl Write, report: &Report, style: Style) -> io::Result<()> {
    let mut by_place: BTreeMap<Place, Vec<&Problem>> = BTreeMap::new();
    for problem in &report.found {
        by_place.entry(Place::of(problem)).or_default().push(problem);
    }
    // Data at risk first: bitmaps of thousands of groups must not hide the one damaged file.
    let places: BTreeMap<(Rank, Place), Vec<&Problem>> = by_place
        .into_iter()
        .map(|(place, problems)| ((Rank::of_all(problems.iter().copied()), place), problems))
        .collect();
    let mut left = if style.verbose { usize::MAX } else { SHOWN_IN_ALL };
    let mut alike: BTreeMap<(Rank, Vec<u32>), Alike> = BTreeMap::new();
    for ((rank, place), mut problems) in places {
        if left == 0 {
            break;
        }
        if !style.verbose && !matches!(place, Place::Filesystem(_)) {
            let mut codes: Vec<u32> = problems.iter().map(|problem| problem.row().code).collect();
            codes.dedup();
            let alike = alike.entry((rank, codes)).or_insert(Alike { first: place, count: 0 });
            alike.count += 1;
            if alike.count > SHOWN_ALIKE {
                continue;
            }
        }
        // Stable sort: within a rank the order of the codes stays.
        problems.sort_by_key(|problem| Rank::of(problem));
        writeln!(out, "\n{}", place.title(&|inode| report.path(inode)))?;
        for same in problems.chunk_by(|one, other| one.row().code == other.row().code) {
            let most = if style.verbose { usize::MAX } else { SHOWN_PER_KIND };
            let shown = same.len().min(most).min(left);
            left -= shown;
            kind(out, report, place, same, shown, style)?;
        }
    }
    for ((_, codes), alike) in alike.iter().filter(|(_, alike)| alike.count > SHOWN_ALIKE) {
        let more = grouped((alike.count - SHOWN_ALIKE) as u64);
        let (what, first) = match alike.first {
            Place::Group(group) => ("groups", group.to_string()),
            Place::Inode(inode) => ("inodes", inode.to_string()),
            Place::Filesystem(_) => continue,
        };
        let ids: Vec<_> = codes.iter().filter_map(|&code| id_of(code)).collect();
        let like = format!("... and {more} more {what} like {first} ({})", ids.join(", "));
        writeln!(out, "\n{like}")?;
    }
    if left == 0 && report.found.len() > SHOWN_IN_ALL {
        writeln!(out, "\nOnly the first {SHOWN_IN_ALL} findings are shown; --verbose shows all.")?;
    }
    if report.found.is_empty() { Ok(()) } else { writeln!(out) }
}

/// Places with the same kinds of findings.
struct Alike {
    first: Place,
    count: usize,
}

fn id_of(code: u32) -> Option<&'static str> {
    ROWS.iter().find(|row| row.code == code).map(|row| row.id)
}

/// Findings of one kind in one place: the first `shown` of them, then their meaning.
fn kind(
    out: &mut impl Write,
    report: &Report,
    place: Place,
    same: &[&Problem],
    shown: usize,
    style: Style,
) -> io::Result<()> {
    for problem in &same[..shown] {
        let message = place.message_of(report, problem);
        writeln!(out, "  {}: {message}", tag(problem))?;
        if style.verbose {
            evidence(out, problem)?;
        }
    }
    let row = same[0].row();
    if shown < same.len() {
        writeln!(out, "  ... and {} more of this kind", grouped((same.len() - shown) as u64))?;
    }
    wrapped(out, row.meaning)?;
    if style.verbose {
        let preen = if row.preen { " An unattended repair may do this." } else { "" };
        wrapped(out, &format!("Repair: {}{preen}", row.repair))?;
        wrapped(out, &format!("See: floe explain {}", row.id))?;
    }
    Ok(())
}

/// Writes a paragraph, indented and wrapped at 96 columns.
///
/// # Errors
/// A write error of `out`.
pub fn wrapped(out: &mut impl Write, text: &str) -> io::Result<()> {
    let mut column = 0;
    for word in text.split(' ') {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > WIDTH {
            writeln!(out)?;
            column = 0;
        }
        if column == 0 {
            write!(out, "      {word}")?;
            column = 6 + width;
        } else {
            write!(out, " {word}")?;
            column += 1 + width;
        }
    }
    writeln!(out)
}

/// Label of findings with data at risk.
const AT_RISK: &str = "DATA AT RISK";

/// The label of a finding: `damage`, `DATA AT RISK`.
pub fn tag(problem: &Problem) -> &'static str {
    let row = problem.row();
    match (row.weight, row.severity) {
        (Weight::Remark, _) => "remark",
        (Weight::Fatal, _) => "FATAL",
        (Weight::Damage, Severity::DataRisk | Severity::Fatal) => AT_RISK,
        (Weight::Damage, Severity::Metadata | Severity::Cosmetic) => "damage",
    }
}

fn evidence(out: &mut impl Write, problem: &Problem) -> io::Result<()> {
    let row = problem.row();
    write!(out, "      {:#08x} {}", row.code, row.id)?;
    for (name, value) in problem.evidence() {
        match value {
            Evidence::Inode(InodeNr(number)) => write!(out, " {name}={number}")?,
            Evidence::Group(GroupNr(number)) => write!(out, " {name}={number}")?,
            Evidence::Block(block) => write!(out, " {name}={}", block.0)?,
            Evidence::Logical(block) => write!(out, " {name}={}", block.0)?,
            Evidence::Number(number) => write!(out, " {name}={number}")?,
            Evidence::Signed(number) => write!(out, " {name}={number}")?,
            Evidence::Text(text) => write!(out, " {name}={text:?}")?,
        }
    }
    writeln!(out)
}

fn phases(out: &mut impl Write, report: &Report) -> io::Result<()> {
    for phase in &report.phases {
        writeln!(out, "  {:<24} {:>9.3} s", phase.name, phase.time.as_secs_f64())?;
    }
    if let Some(used) = &report.pipeline {
        pipeline(out, used)?;
    }
    match report.rescanned_groups {
        None => Ok(()),
        Some(0) => writeln!(out, "  proved by fingerprints, in one scan"),
        Some(groups) => {
            let all = format!("{} groups", grouped(u64::from(report.geometry.group_count)));
            writeln!(
                out,
                "  proved by fingerprints, except {} of {}, which needed a second scan",
                grouped(u64::from(groups)),
                agree(&all),
            )
        }
    }
}

/// Writes figures of the pipeline, in which directories are checked while inodes are scanned.
fn pipeline(out: &mut impl Write, used: &PipelineUse) -> io::Result<()> {
    let PipelineUse { policy, counts, blocks } = used;
    writeln!(
        out,
        "  inodes and directories overlapped ({policy}): {} directory blocks ahead, {} of them \
         proved later, {} left to the directory pass",
        grouped(blocks.plain + blocks.delayed),
        grouped(blocks.delayed),
        grouped(blocks.left),
    )?;
    writeln!(
        out,
        "  queues: {} batches, {} locks, {} changes of pass, {} sleeps",
        grouped(counts.batches),
        grouped(counts.locks),
        grouped(counts.migrations),
        grouped(counts.sleeps),
    )
}

fn summary(out: &mut impl Write, report: &Report, cost: &Cost) -> io::Result<()> {
    let of_type = |wanted: &[FileType], one: &str, several: &str| {
        let count: u64 = wanted.iter().map(|&wanted| report.totals.by_type[wanted as usize]).sum();
        format!("{} {}", grouped(count), if count == 1 { one } else { several })
    };
    let special = [FileType::CharDevice, FileType::BlockDevice, FileType::Fifo, FileType::Socket];
    let line = format!(
        "{} of {} inodes in use ({}, {}, {}, {}), {} of {} blocks",
        grouped(report.totals.inodes_used),
        grouped(u64::from(report.geometry.inodes_count)),
        of_type(&[FileType::Regular], "file", "files"),
        of_type(&[FileType::Directory], "directory", "directories"),
        of_type(&[FileType::Symlink], "symbolic link", "symbolic links"),
        of_type(&special, "special", "special"),
        grouped(report.blocks_used()),
        grouped(report.geometry.blocks_count),
    );
    writeln!(out, "{}", agree(&line))?;
    self::cost(out, cost)
}

/// Writes the line of time, reads and memory.
///
/// # Errors
/// A write error of `out`.
pub fn cost(out: &mut impl Write, cost: &Cost) -> io::Result<()> {
    let line = format!(
        "{:.2} s with {} threads, {} read in {} reads",
        cost.elapsed.as_secs_f64(),
        cost.threads,
        size(cost.bytes_read),
        grouped(cost.reads),
    );
    write!(out, "{}", agree(&line))?;
    match cost.peak_memory_bytes {
        Some(bytes) => writeln!(out, ", at most {} of memory", size(bytes)),
        None => writeln!(out),
    }
}

/// Advice for the user before any action on the damage.
fn advice(report: &Report) -> Option<&'static str> {
    let worst = report.worst_damage()?;
    let cut_off =
        report.found.iter().any(|found| matches!(found, Problem::FilesystemExceedsDevice { .. }));
    Some(if cut_off {
        "Part of the file system is not on this device: provide all of it before any repair."
    } else if worst >= Severity::DataRisk {
        "Files, names or attributes are at risk: copy the device before any repair.\n\
         `floe repair --dry-run` shows what a repair would do, and what it would cost."
    } else {
        "No finding is known to put files, names or attributes at risk.\n\
         `floe repair --dry-run` shows what a repair would do, and what it would cost."
    })
}

/// The last line: the verdict.
pub(crate) fn verdict_line(report: &Report) -> String {
    let remarks = (report.found.len() - report.damage_count()) as u64;
    let damage = report.damage_count() as u64;
    let and_remarks = match remarks {
        0 => String::new(),
        _ => format!(", {} remark{}", grouped(remarks), plural(remarks)),
    };
    match report.verdict() {
        Verdict::Clean => match remarks {
            0 => "CLEAN: nothing is wrong.".to_owned(),
            _ => format!("CLEAN{and_remarks}: nothing needs repair."),
        },
        Verdict::Damaged => {
            let at_risk = report.found.iter().filter(|problem| tag(problem) == AT_RISK).count();
            let of_them = match at_risk as u64 {
                0 => String::new(),
                at_risk => format!(" ({} with data at risk)", grouped(at_risk)),
            };
            format!(
                "DAMAGED: {} finding{} need{} repair{of_them}{and_remarks}. Nothing was changed.",
                grouped(damage),
                plural(damage),
                if damage == 1 { "s" } else { "" },
            )
        }
        Verdict::Incomplete => format!(
            "INCOMPLETE: the check could not be completed ({} finding{}{and_remarks}). Nothing was \
             changed.",
            grouped(damage),
            plural(damage),
        ),
    }
}

/// The plural ending of a noun.
pub const fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// A number with commas between thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in the largest unit that leaves a number of at least 1.
pub fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return agree(&format!("{bytes} bytes")).into_owned();
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::sample;

    fn written(report: &Report, verbose: bool) -> String {
        let mut out = Vec::new();
        write(&mut out, report, &Cost::default(), Style { verbose }).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn findings_stand_under_their_object() {
        let text = written(&sample(), false);
        let inode = text.find("\nInode 13: /home/bob\n  DATA AT RISK: entry").unwrap();
        let group = text.find("\nGroup 1\n  damage: ").unwrap();
        let superblock = text.find("\nSuperblock\n  remark: ").unwrap();
        assert!(inode < group && group < superblock, "remarks come last: {text}");
        assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
        assert!(text.contains("\"lost\\xff\\n\""), "names are escaped: {text}");
        assert!(text.contains("checked as it will be after recovery"), "{text}");
        assert!(!text.contains("Repair:"), "{text}");
        let last = text.lines().last().unwrap();
        assert!(
            last.starts_with("DAMAGED: 3 findings need repair (1 with data at risk), 1 remark."),
            "{last}"
        );
    }

    #[test]
    fn other_inodes_have_their_paths() {
        let mut report = sample();
        report.found = vec![
            Problem::MultiplyClaimedSharer { inode: InodeNr(20), sharer: InodeNr(13) },
            Problem::DirectoryUnconnected { dir: InodeNr(21), parent: InodeNr(22) },
        ];
        let text = written(&report, false);
        assert!(text.contains("shares blocks with inode 13 [inode 13 is /home/bob]\n"), "{text}");
        assert!(text.contains("(its '..' says inode 22)\n"), "an unknown path is left out: {text}");
        let asked = floe_check::report::inodes_of(&report.found);
        assert_eq!(asked, [13, 20, 21, 22].map(InodeNr).into());
    }

    #[test]
    fn advice_goes_by_what_is_at_risk() {
        let mut report = sample();
        let risk = "copy the device before any repair";
        assert!(written(&report, false).contains(risk));
        let exceeds = Problem::FilesystemExceedsDevice { blocks: 65536, device_blocks: 9 };
        report.found.push(exceeds);
        let text = written(&report, false);
        assert!(!text.contains(risk) && text.contains("provide all of it before"), "{text}");
        report.found.retain(|problem| problem.row().severity < Severity::DataRisk);
        let text = written(&report, false);
        assert!(!text.contains(risk) && text.contains("`floe repair --dry-run` shows"), "{text}");
        assert!(text.contains("DAMAGED: 2 findings need repair, 1 remark."), "{text}");
        report.found.retain(|problem| problem.row().weight == Weight::Remark);
        assert!(!written(&report, false).contains("floe repair"), "nothing to do, nothing advised");
    }

    #[test]
    fn verbose_gives_code_evidence_and_repair() {
        let text = written(&sample(), true);
        assert!(text.contains("0x040003 inode-link-count-wrong inode=12 stored=3 counted=2"));
        assert!(text.contains("Repair: Store the counted number."));
    }

    #[test]
    fn a_flood_is_counted_and_not_printed() {
        let of = |group: u32, stored: u32| Problem::GroupFreeBlockCountWrong {
            group: GroupNr(group),
            stored,
            counted: 0,
        };
        let mut report = sample();
        report.found = (0..30_000).map(|number| of(number / 15, number)).collect();
        let text = written(&report, false);
        assert!(text.contains("  ... and 5 more of this kind"), "{text}");
        let rest = "... and 1,990 more groups like group 0 (group-free-block-count-wrong)";
        assert!(text.contains(rest), "{text}");
        assert!(text.lines().count() < 200, "{}", text.lines().count());
        let all = written(&report, true);
        assert_eq!(all.matches("group-free-block-count-wrong group=").count(), 30_000);
    }

    #[test]
    fn a_flood_of_different_findings_ends_too() {
        // Each inode has another set of kinds, so that no two places are alike.
        let inode = |number: u32| InodeNr(number + 100);
        let mut report = sample();
        report.found = (0..400u32)
            .flat_map(|number| {
                let all = [
                    Problem::InodeInUseDtimeSet { inode: inode(number), dtime: 1 },
                    Problem::DirectoryWithoutBlocks { inode: inode(number) },
                    Problem::SpecialFileSizeNonzero { inode: inode(number), size: 1 },
                    Problem::ExtentsFlagMissing { inode: inode(number) },
                    Problem::InodeFaddrNonzero { inode: inode(number), value: 1 },
                    Problem::UnattachedInode { inode: inode(number), links: 1 },
                    Problem::CasefoldFlagUnsupported { inode: inode(number) },
                    Problem::IndexFlagOnNonDirectory { inode: inode(number) },
                    Problem::InodeChecksumBad { inode: inode(number), stored: 1, expected: 2 },
                ];
                let bits = number + 1;
                all.into_iter().enumerate().filter(move |(at, _)| bits >> at & 1 != 0)
            })
            .map(|(_, problem)| problem)
            .collect();
        report.found.sort();
        let text = written(&report, false);
        assert!(text.contains("Only the first 1000 findings are shown"), "{text}");
    }

    #[test]
    fn a_clean_file_system_says_so() {
        let mut report = sample();
        report.found.clear();
        assert_eq!(verdict_line(&report), "CLEAN: nothing is wrong.");
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(size(1), "1 byte");
        assert_eq!(size(1023), "1023 bytes");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(u64::MAX), "16.0 EiB");
    }
}
