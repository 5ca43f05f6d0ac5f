//! Each field of the headers in quota files, with several values: no damage that only e2fsck finds, and after a repair
//! e2fsck finds nothing, limits included.

use floe_check::{CheckOptions, check};
use floe_ext4::make::quota_file::Limits;
use floe_format::InodeNr;
use floe_format::ext::quota::{BLOCK_SIZE, QuotaHeader, QuotaKind};
use floe_repair::policy::Yes;
use floe_repair::{RepairOptions, repair};
use floe_testkit::quota::set_limits;
use floe_testkit::{Image, Profile, Volume, build, oracle, tool};

/// Whether it is something that Floe alone finds: `docs/differences.md` has the reasons.
fn is_stricter(block: u64, at: usize, text: &str) -> bool {
    match block {
        0 if at < 8 => text.contains("does not begin as a quota file"),
        0 => text.contains("cannot be one") || text.contains("the list of"),
        _ => ["out of the file", "was met before", "does not count its entries", "tree leads"]
            .iter()
            .any(|reason| text.contains(reason)),
    }
}

struct File {
    kind: QuotaKind,
    /// Offset of each KiB in the image.
    places: Vec<u64>,
}

fn files(image: &Image) -> Vec<File> {
    let volume = Volume::open(image).unwrap();
    let sb = &volume.superblock;
    let numbers = [sb.usr_quota_inum, sb.grp_quota_inum, sb.prj_quota_inum];
    let size = volume.block_bytes();
    let of = |(number, kind): (u32, QuotaKind)| {
        let blocks = volume.map(InodeNr(number)).unwrap().data.into_values();
        let pieces = |block: floe_format::BlockNr| {
            (0..size).step_by(BLOCK_SIZE).map(move |at| block.0 * size as u64 + at as u64)
        };
        File { kind, places: blocks.flat_map(pieces).collect() }
    };
    let named = numbers.into_iter().zip(QuotaKind::ALL).filter(|(number, _)| *number != 0);
    named.map(of).collect()
}

fn limits(image: &Image, file: &File) -> Limits {
    let mut content = vec![0; file.places.len() * BLOCK_SIZE];
    for (bytes, place) in content.chunks_exact_mut(BLOCK_SIZE).zip(&file.places) {
        image.read(*place, bytes).unwrap();
    }
    Limits::of(file.kind, &content)
}

/// The verdicts on one value; a fault is a text.
fn judge(image: &Image, file: &File, block: u64, at: usize, value: u32) -> Option<String> {
    let what = format!("{:?} block {block} byte {at} = {value:#x}", file.kind);
    let damaged = image.copy().unwrap();
    damaged.write(file.places[block as usize] + at as u64, &value.to_le_bytes()).unwrap();
    let options = CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    let found = check(&damaged, &options).unwrap();
    let text: Vec<String> = found.found.iter().map(ToString::to_string).collect();
    let theirs = oracle::e2fsck(&damaged).unwrap();
    match (theirs.damaged(), text.is_empty()) {
        (true, true) => return Some(format!("{what}: only e2fsck: {}", theirs.text)),
        (false, false) if !is_stricter(block, at, &text.join("; ")) => {
            return Some(format!("{what}: only Floe: {text:?}"));
        }
        (_, true) => return None,
        _ => (),
    }
    let options = RepairOptions { check: options, ..RepairOptions::default() };
    let repaired = repair(&damaged, &options, &mut Yes).unwrap();
    let after = damaged.with_staged(&repaired.staged).unwrap();
    let verdict = oracle::e2fsck(&after).unwrap();
    if !repaired.is_clean() || verdict.damaged() {
        return Some(format!("{what}: after the repair: {:?} {}", repaired.left, verdict.text));
    }
    // A file that does not begin as one gives no limits, and a pointer that is lost loses what it led to.
    let keeps = block == 0 && at >= 16 || block + 1 == file.places.len() as u64;
    let kept =
        files(&after).iter().find(|one| one.kind == file.kind).map(|one| limits(&after, one));
    let before = limits(&damaged, file);
    (keeps && kept.as_ref() != Some(&before))
        .then(|| format!("{what}: limits: {before:?} {kept:?}"))
}

fn image_of(profile: Profile) -> Image {
    let image = build::base(profile).unwrap();
    let mut script = String::new();
    // More ids than two leaves hold.
    for id in 1..32 {
        script += &format!(
            "mknod fifo{id} p\nsif fifo{id} uid {}\nsif fifo{id} gid {}\n",
            id + 599,
            id * 70
        );
    }
    build::debugfs(&image, &script).unwrap();
    oracle::run(image.path(), &["-fy"]).unwrap();
    set_limits(&image, QuotaKind::User, 600, (100, 50), |entry| entry.inode_hard_limit = 9)
        .unwrap();
    assert!(oracle::e2fsck(&image).unwrap().clean());
    image
}

/// Fields by block and offset: all of the header, and, on one profile, those of the first levels and of the last blocks.
fn fields(profile: Profile, blocks: u64) -> Vec<(u64, usize)> {
    let header = (0..QuotaHeader::SIZE).step_by(4).map(|at| (0, at));
    let is_all = profile == Profile::Quota;
    let more = (1..blocks).filter(|block| is_all && (*block < 6 || block + 4 > blocks));
    header.chain(more.flat_map(|block| [(block, 0), (block, 4), (block, 8)])).collect()
}

#[test]
fn no_header_of_a_quota_file_is_wrong_for_e2fsck_alone() {
    if tool::missing() {
        return;
    }
    let mut faults = Vec::new();
    for profile in [Profile::Quota, Profile::Everything, Profile::BigallocMore] {
        let image = image_of(profile);
        let whole = files(&image);
        assert!(whole.len() >= 2, "{profile}");
        for file in &whole {
            let mut head = [0; QuotaHeader::SIZE];
            image.read(file.places[0], &mut head).unwrap();
            let blocks = QuotaHeader::decode(&head).blocks;
            for (block, at) in fields(profile, blocks.into()) {
                let few = block > 0 || at < 20;
                let values = [0, 1, 2, blocks - 1, blocks, blocks + 1, u32::MAX];
                for &value in &values[if few { 5 } else { 0 }..] {
                    let fault = judge(&image, file, block, at, value);
                    faults.extend(fault.map(|fault| format!("{profile}: {fault}")));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
