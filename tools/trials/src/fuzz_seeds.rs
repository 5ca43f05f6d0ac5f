//! The seeds of the fuzz targets, from real images; `cargo xtask fuzz` asks for them.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use floe_archive::{Entry, Kind, Part, Writer};
use floe_testkit::damage::script::Maker;
use floe_testkit::volume::{Volume, survey};
use floe_testkit::{Profile, build, tool};

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The fuzz target
    target: String,
    /// Output folder
    folder: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    tool::available().map_err(anyhow::Error::msg)?;
    fs::create_dir_all(&args.folder)?;
    let seeds = match &*args.target {
        "decode" => structures()?,
        "check_image" => scripts(&[])?,
        "repair_image" => scripts(&[Maker::Native, Maker::Rext3])?,
        "mount_image" => scripts(&[Maker::Native])?,
        "archive" => vec![("pax".to_owned(), archive()?)],
        other => bail!("no seeds for a fuzz target {other}"),
    };
    for (name, bytes) in &seeds {
        fs::write(args.folder.join(name), bytes)?;
    }
    println!("{} seeds in {}", seeds.len(), args.folder.display());
    Ok(())
}

/// An archive with a long name, an attribute and a hole.
fn archive() -> Result<Vec<u8>> {
    let mut writer = Writer::new(Vec::new());
    let attributes = vec![(b"user.a".to_vec(), b"1".to_vec())];
    let parts = vec![Part { at: 512, len: 4, from: 0 }];
    let entry = Entry { size: 4096, parts, attributes, ..Entry::new(&[b'n'; 120], Kind::File) };
    writer.append_sparse(&entry)?;
    writer.write_all(b"data")?;
    Ok(writer.finish()?)
}

/// One structure of each kind, from images of several profiles.
fn structures() -> Result<Vec<(String, Vec<u8>)>> {
    let mut seeds = Vec::new();
    for &profile in Profile::ALL {
        let image = build::base(profile)?;
        let volume = Volume::open(&image)?;
        let mut kinds = Vec::new();
        for place in survey(&volume)? {
            let kind = std::mem::discriminant(&place);
            // A few of each kind, because inodes and directory blocks vary.
            if kinds.iter().filter(|&&seen| seen == kind).count() >= 3 {
                continue;
            }
            kinds.push(kind);
            let (at, len) = volume.range_of(place)?;
            let mut bytes = vec![0; len];
            image.read(at, &mut bytes)?;
            seeds.push((format!("seed-{profile}-{}", kinds.len()), bytes));
        }
    }
    Ok(seeds)
}

/// For every profile and each other maker, a script without damage and one for each action.
fn scripts(others: &[Maker]) -> Result<Vec<(String, Vec<u8>)>> {
    let mut seeds = Vec::new();
    let profiles = Profile::ALL.iter().map(|profile| Maker::Mke2fs(*profile));
    for maker in profiles.chain(others.iter().copied()) {
        let head = maker.head();
        let name = match maker {
            Maker::Mke2fs(profile) => profile.name(),
            Maker::Native => "native",
            Maker::Rext3 => "rext3",
        };
        seeds.push((format!("seed-{name}"), head.to_vec()));
        for action in 0..8 {
            let place = 5 * action;
            let edit = [0x80 | action, place, 0, 3, 0, 1, 0, 0, 0, 0, 0, 0, 0];
            let script = [&head[..], &edit, &edit].concat();
            seeds.push((format!("seed-{name}-{action}"), script));
        }
    }
    Ok(seeds)
}
