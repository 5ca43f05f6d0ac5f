//! `cargo xtask tuned`: the program without any library, built twice: once to count what checks and repairs of
//! made-up images run, and once with these counts (profile-guided optimisation of rustc). What is hot lies
//! together and is built for speed, the rest is built small and lies apart: fewer pages of the program are ever in memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use floe_testkit::fill::aged::Map;
use floe_testkit::{Profile, build, damage, tool};

use crate::bench::{self, Kind, scattered};

/// Options of the chore.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The target of rustc to build for
    #[arg(long)]
    target: String,
    /// Where the program goes
    #[arg(long, default_value = "target/static/floe")]
    output: PathBuf,
    /// Build once only, without counts
    #[arg(long)]
    plain: bool,
}

/// Inodes of the images that are checked and repaired for the counts.
const INODES: u32 = 60_000;

/// Damaged images of each profile of the tests that are checked and repaired.
const DAMAGED: u64 = 3;

/// Size of one without files.
const NEW_BYTES: u64 = 4 << 30;

/// At a fixed address, because half a megabyte of relocations is more than what a check of a small file system
/// keeps.
const FLAGS: &str = "-C target-feature=+crt-static -C relocation-model=static";

/// Runs the chore.
pub(crate) fn run(args: &Args) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    let output = root.join(&args.output);
    let counts = if args.plain { None } else { counts(args, &root)? };
    let flags = counts.map(|counts| format!("-C profile-use={}", counts.display()));
    let program = built(args, &root, flags.as_deref().unwrap_or(""))?;
    fs::create_dir_all(output.parent().context("a file has a folder")?)?;
    fs::copy(&program, &output).with_context(|| format!("cannot write {}", output.display()))?;
    println!("{}", args.output.display());
    Ok(())
}

/// Builds the program with some more flags of rustc, and says where it is.
fn built(args: &Args, root: &Path, flags: &str) -> Result<PathBuf> {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--profile", "tuned", "--package", "floe"])
        .args(["--target", &args.target])
        // Whatever CARGO_TARGET_DIR says: the program is looked for there.
        .args(["--target-dir", "target"])
        .env("RUSTFLAGS", format!("{FLAGS} {flags}"))
        .current_dir(root)
        .status()?;
    ensure!(status.success(), "the build failed");
    Ok(root.join("target").join(&args.target).join("tuned/floe"))
}

/// Builds a program that counts, lets it work, and says where the counts are; `None` where it cannot be run or
/// nothing reads its counts.
fn counts(args: &Args, root: &Path) -> Result<Option<PathBuf>> {
    let Some(reader) = counts_reader()? else {
        eprintln!("Not tuned: llvm-profdata is missing (rustup component add llvm-tools)");
        return Ok(None);
    };
    let folder = root.join("target/tuned-counts");
    let (raw, merged) = (folder.join("raw"), folder.join("floe.profdata"));
    if raw.exists() {
        fs::remove_dir_all(&raw)?;
    }
    fs::create_dir_all(&raw)?;
    let counting = built(args, root, &format!("-C profile-generate={}", raw.display()))?;
    let runs = Command::new(&counting).arg("--version").stdout(Stdio::null()).status();
    if !runs.is_ok_and(|status| status.success()) {
        eprintln!("Not tuned: a program for {} does not run here", args.target);
        return Ok(None);
    }
    work(&counting, &folder)?;
    let status = Command::new(reader).arg("merge").arg("-o").arg(&merged).arg(&raw).status()?;
    ensure!(status.success(), "the counts cannot be merged");
    Ok(Some(merged))
}

/// The program of the toolchain in use that reads counts, which is got if rustup can get it.
fn counts_reader() -> Result<Option<PathBuf>> {
    let of_rustc = |what: &[&str]| -> Result<String> {
        let said = Command::new("rustc").args(what).output()?;
        ensure!(said.status.success(), "rustc {} failed", what.join(" "));
        Ok(String::from_utf8(said.stdout)?)
    };
    let version = of_rustc(&["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let folder = Path::new(of_rustc(&["--print", "sysroot"])?.trim()).join("lib/rustlib");
    let reader = folder.join(host.context("rustc names no host")?).join("bin/llvm-profdata");
    if !reader.exists() {
        // Where there is no rustup, the message of the caller says what is missing.
        drop(Command::new("rustup").args(["component", "add", "llvm-tools"]).status());
    }
    Ok(reader.exists().then_some(reader))
}

/// What the program is tuned for: what is not run here is built small, and slow.
fn work(floe: &Path, folder: &Path) -> Result<()> {
    features(floe, folder)?;
    let trees = folder.join(format!("trees-{INODES}.img"));
    bench::kept(&trees, |path| bench::aged::build(path, Map::Extents, INODES))?;
    let kinds = [Kind::FileIntensive, Kind::DirectoryIntensive, Kind::Aged];
    let [files, directories, blocks] = kinds.map(|kind| bench::image(folder, INODES, kind));
    let files = files?;
    for image in [&files, &directories?, &blocks?, &trees] {
        for way in [
            &["check", "--threads", "1"][..],
            &["check", "--threads", "2"],
            &["check", "--threads", "1", "--accounting", "fingerprint"],
            &["check", "--threads", "1", "--json"],
            &["fsck", "-fn"],
            &["fsck", "-p"],
        ] {
            expect(floe, way, image, Some(0))?;
        }
    }
    let (damaged, scratch) = (scattered::damaged(&files, INODES)?, folder.join("scratch.img"));
    expect(floe, &["check", "--threads", "1"], &damaged, Some(4))?;
    for way in [&["repair", "--yes", "--threads", "1"][..], &["fsck", "-fy"]] {
        scattered::copy(&damaged, &scratch)?;
        expect(floe, way, &scratch, Some(1))?;
    }
    fs::remove_file(&scratch)?;
    Ok(())
}

/// Checks and repairs of small images with each feature, and of one without files.
fn features(floe: &Path, folder: &Path) -> Result<()> {
    let new = folder.join("new.img");
    fs::File::create(&new)?.set_len(NEW_BYTES)?;
    let mke2fs = tool::locate("mke2fs");
    let made = Command::new(mke2fs).args(["-q", "-F", "-t", "ext4"]).arg(&new).status()?;
    ensure!(made.success(), "mke2fs failed");
    for way in [&["check"][..], &["check", "--threads", "2"], &["fsck", "-fn"], &["fsck", "-p"]] {
        expect(floe, way, &new, Some(0))?;
    }
    fs::remove_file(&new)?;
    for &profile in Profile::ALL {
        let sound = build::base(profile)?;
        for way in [&["check"][..], &["check", "--threads", "1"], &["fsck", "-fn"]] {
            expect(floe, way, sound.path(), Some(0))?;
        }
        for seed in 0..DAMAGED {
            let (damaged, _) = damage::damaged_image(profile, seed)?;
            for way in [&["check"][..], &["fsck", "-fy"]] {
                expect(floe, way, damaged.path(), None)?;
            }
        }
    }
    Ok(())
}

/// Runs the program on an image; it has to end with `exit`, if that is known, but not by a signal.
fn expect(floe: &Path, way: &[&str], image: &Path, exit: Option<i32>) -> Result<()> {
    let output = Command::new(floe).args(way).arg(image).output()?;
    let status = output.status;
    if status.code().is_none() || exit.is_some() && status.code() != exit {
        bail!("floe {} {}: {status}, not {exit:?}", way.join(" "), image.display());
    }
    Ok(())
}
