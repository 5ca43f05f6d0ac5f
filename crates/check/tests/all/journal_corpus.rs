//! The journal images of a corpus of damaged images, replayed by e2fsck and by Floe. Runs only where
//! the environment variable `FLOE_CORPUS` names the directory of the images (`*.img.gz`).

use std::path::Path;
use std::process::Command;

use floe_blockdev::FileDevice;

use crate::journal_support::{
    differing_kib, dump, find, recover, replayed_by_e2fsck, run, text_of,
};

fn unpack(from: &Path, to: &Path) {
    let to = std::fs::File::create(to).unwrap();
    let status = Command::new("gunzip").arg("-c").arg(from).stdout(to).status().unwrap();
    assert!(status.success());
}

#[test]
fn replay_agrees_with_e2fsck_on_the_corpus() {
    let Some(corpus) = std::env::var_os("FLOE_CORPUS") else {
        println!("skipped: FLOE_CORPUS is not set");
        return;
    };
    let scratch = tempfile::tempdir().unwrap();
    let mut failed = Vec::new();
    let mut names: Vec<_> = std::fs::read_dir(&corpus)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".img.gz").map(str::to_owned))
        .filter(|name| name.starts_with("j_"))
        .collect();
    names.sort();
    for name in names {
        let image = scratch.path().join("x.img");
        unpack(&Path::new(&corpus).join(format!("{name}.img.gz")), &image);
        let packed_journal = Path::new(&corpus).join(format!("{name}.jnl.gz"));
        let journal = scratch.path().join("x.jnl");
        let external = packed_journal.exists().then(|| {
            unpack(&packed_journal, &journal);
            journal.as_path()
        });
        let (found, events) = find(&image, external);
        println!("{name}: {events:?}");
        let Some(found) = found.filter(|found| found.needs_replay) else { continue };
        let replay = recover(&image, external);
        let (blocks, revoked) = (replay.blocks, replay.revoked_blocks);
        println!("  {:?} {blocks} blocks, {revoked} revoked, {:?}", found.place, replay.events);
        let oracle = FileDevice::open(&replayed_by_e2fsck(&image, external)).unwrap();
        if replay.fast_commit_tags > 0 {
            // Blocks may be allocated elsewhere: e2fsck's verdict counts.
            let dumped = image.with_extension("floe");
            dump(&replay.overlay, &dumped);
            let output = run("e2fsck", &["-fn", dumped.to_str().unwrap()]);
            println!("  {} tags: {}", replay.fast_commit_tags, text_of(&output));
            if !output.status.success() {
                failed.push(name);
            }
            continue;
        }
        let differing = differing_kib(&replay.overlay, &oracle);
        if !differing.is_empty() {
            println!("  differing: {:?}", &differing[..differing.len().min(20)]);
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
