//! `cargo xtask tuned`: builds the program without shared libraries, in two steps: once to count
//! the functions that checks and repairs of generated images run, and once with these counts
//! (profile-guided optimisation of rustc). Hot code is placed together and optimised for speed, the
//! rest for size. The functions that checks of undamaged file systems run come first in the
//! program, because Linux maps the pages around a touched one too, and all of these count as
//! memory.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use floe_testkit::{Profile, build, damage, tool};
use floe_workload::fill::aged::Map;

use crate::bench::{self, Kind, scattered};

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The target of rustc to build for
    #[arg(long)]
    target: String,
    /// Path of the result
    #[arg(long, default_value = "target/static/floe")]
    output: PathBuf,
    /// Build only once, without profiling
    #[arg(long)]
    plain: bool,
}

/// Inodes of the images that are checked and repaired for the profile.
const INODES: u32 = 60_000;

/// Damaged images per test profile that are checked and repaired.
const DAMAGED: u64 = 3;

/// Size of an image without files.
const NEW_BYTES: u64 = 4 << 30;

/// Non-relocatable, because half a megabyte of relocations exceeds the memory that a check of a
/// small file system needs.
const FLAGS: &str = "-C target-feature=+crt-static -C relocation-model=static";

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let output = root.join(&args.output);
    let flags = if args.plain { None } else { counts(args, &root)? };
    let program = built(args, &root, flags.as_deref().unwrap_or(""))?;
    fs::create_dir_all(output.parent().context("a file has a folder")?)?;
    fs::copy(&program, &output).with_context(|| format!("cannot write {}", output.display()))?;
    println!("{}", args.output.display());
    Ok(())
}

/// Builds the program with additional rustc flags, and returns its path.
fn built(args: &Args, root: &Path, flags: &str) -> Result<PathBuf> {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--profile", "tuned", "--package", "floe"])
        .args(["--target", &args.target])
        // The result is expected there, regardless of CARGO_TARGET_DIR.
        .args(["--target-dir", "target"])
        .env("RUSTFLAGS", format!("{FLAGS} {flags}"))
        .current_dir(root)
        .status()?;
    ensure!(status.success(), "the build failed");
    Ok(root.join("target").join(&args.target).join("tuned/floe"))
}

/// Builds an instrumented program, runs the workload, and returns the rustc flags that use its
/// counts; `None` if it cannot run here or no tool can read its counts.
fn counts(args: &Args, root: &Path) -> Result<Option<String>> {
    let tools = rustc_tools()?;
    let Some(reader) = counts_reader(&tools) else {
        eprintln!("Not tuned: llvm-profdata is missing (rustup component add llvm-tools)");
        return Ok(None);
    };
    let folder = root.join("target/tuned-counts");
    let raw = folder.join("raw");
    let sound = Sound { young: folder.join("sound"), aged: folder.join("sound-aged") };
    for folder in [&raw, &sound.young, &sound.aged] {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        fs::create_dir_all(folder)?;
    }
    let counting = built(args, root, &format!("-C profile-generate={}", raw.display()))?;
    let runs = Command::new(&counting).arg("--version").stdout(Stdio::null()).status();
    if !runs.is_ok_and(|status| status.success()) {
        eprintln!("Not tuned: a program for {} does not run here", args.target);
        return Ok(None);
    }
    work(&counting, &folder, &sound)?;
    let all = merged(&reader, &raw)?;
    let mut flags = format!("-C profile-use={}", all.display());
    let linker = tools.join("gcc-ld");
    if linker.join("ld.lld").exists() {
        let order = folder.join("order.txt");
        let first = [merged(&reader, &sound.young)?, merged(&reader, &sound.aged)?];
        fs::write(&order, in_order(&tools, &counting, &first)?)?;
        flags += &format!(
            " -C link-arg=-B{} -C link-arg=-fuse-ld=lld -C link-arg=-Wl,--symbol-ordering-file={} \
             -C link-arg=-Wl,--no-warn-symbol-ordering",
            linker.display(),
            order.display()
        );
    } else {
        eprintln!("Functions not reordered: this toolchain lacks lld");
    }
    Ok(Some(flags))
}

/// Merges the counts of all runs in a folder into a file beside it.
fn merged(reader: &Path, raw: &Path) -> Result<PathBuf> {
    let merged = raw.with_extension("profdata");
    let status = Command::new(reader).arg("merge").arg("-o").arg(&merged).arg(raw).status()?;
    ensure!(status.success(), "the counts cannot be merged");
    Ok(merged)
}

/// Folders of counts for usual checks of undamaged file systems.
struct Sound {
    /// For new ones with contiguous files.
    young: PathBuf,
    /// For ones with hundreds of directories and fragmented files.
    aged: PathBuf,
}

/// The symbols of the program in the desired order, one per line: functions counted in each folder
/// of `first`, and those of precompiled libraries, which have no counts. All others follow.
fn in_order(tools: &Path, counting: &Path, first: &[PathBuf; 2]) -> Result<String> {
    /// Parts of libraries that run only when the program fails.
    const OF_FAILURES: [&str; 4] = ["gimli", "addr2line", "backtrace", "libunwind"];
    let said = |tool: &str, what: &[&str], file: &Path| -> Result<String> {
        let output = Command::new(tools.join(tool)).args(what).arg(file).output()?;
        ensure!(output.status.success(), "{tool} cannot read {}", file.display());
        Ok(String::from_utf8(output.stdout)?)
    };
    // Symbols local to one codegen unit are prefixed with it: "unit;symbol".
    let symbol = |name: &str| name.rsplit(';').next().unwrap_or(name).to_owned();
    let (mut order, mut listed) = (Vec::new(), BTreeSet::new());
    for counts in first {
        let ran = said("llvm-profdata", &["show", "--covered"], counts)?;
        order.extend(ran.lines().map(symbol).filter(|name| listed.insert(name.clone())));
    }
    let all = said("llvm-profdata", &["show", "--all-functions"], &first[0])?;
    let counted = all.lines().filter_map(|line| line.trim().strip_suffix(':'));
    let counted: BTreeSet<String> = counted.map(symbol).collect();
    let symbols = said("llvm-nm", &["--defined-only"], counting)?;
    // "address type symbol": select the code symbols.
    let code = symbols.lines().filter_map(|line| line.split_once(" t ").or(line.split_once(" T ")));
    // A crate name at the end only tells for which crate a generic function was instantiated.
    let is_of = |name: &str, part: &str| name.strip_suffix(part).unwrap_or(name).contains(part);
    let uncounted = code.map(|(_, name)| name).filter(|&name| {
        !counted.contains(name) && !OF_FAILURES.iter().any(|part| is_of(name, part))
    });
    order.extend(uncounted.map(str::to_owned));
    Ok(order.join("\n") + "\n")
}

/// The folder of the tools in the current toolchain.
fn rustc_tools() -> Result<PathBuf> {
    let of_rustc = |what: &[&str]| -> Result<String> {
        let said = Command::new("rustc").args(what).output()?;
        ensure!(said.status.success(), "rustc {} failed", what.join(" "));
        Ok(String::from_utf8(said.stdout)?)
    };
    let version = of_rustc(&["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let folder = Path::new(of_rustc(&["--print", "sysroot"])?.trim()).join("lib/rustlib");
    Ok(folder.join(host.context("rustc names no host")?).join("bin"))
}

/// The tool that reads the counts; installs it with rustup if possible.
fn counts_reader(tools: &Path) -> Option<PathBuf> {
    let reader = tools.join("llvm-profdata");
    if !reader.exists() {
        // Without rustup, the caller's message says what is missing.
        drop(Command::new("rustup").args(["component", "add", "llvm-tools"]).status());
    }
    reader.exists().then_some(reader)
}

/// The most common ways to check a file system.
const USUAL: [&[&str]; 4] =
    [&["check", "--threads", "1"], &["check", "--threads", "2"], &["fsck", "-fn"], &["fsck", "-p"]];

/// The workload for the profile: code that it does not run is optimised for size, and slow. Usual
/// checks of undamaged file systems are also counted separately, in the folders of `sound`.
fn work(floe: &Path, folder: &Path, sound: &Sound) -> Result<()> {
    let new = new_image(folder)?;
    for way in USUAL {
        expect(floe, way, &new, Some(0))?;
        counted_in(&sound.young, floe, way, &new)?;
    }
    fs::remove_file(&new)?;
    features(floe)?;
    let trees = folder.join(format!("trees-{INODES}.img"));
    bench::kept(&trees, |path| bench::aged::build(path, Map::Extents, INODES))?;
    let kinds = [Kind::FileIntensive, Kind::DirectoryIntensive, Kind::Aged];
    let [files, directories, blocks] = kinds.map(|kind| bench::image(folder, INODES, kind));
    let (files, aged) = (files?, [directories?, blocks?, trees]);
    for image in std::iter::once(&files).chain(&aged) {
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
    for way in USUAL {
        counted_in(&sound.young, floe, way, &files)?;
        for image in &aged {
            counted_in(&sound.aged, floe, way, image)?;
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

/// Creates a file system without files.
fn new_image(folder: &Path) -> Result<PathBuf> {
    let new = folder.join("new.img");
    fs::File::create(&new)?.set_len(NEW_BYTES)?;
    let mke2fs = tool::locate("mke2fs");
    let made = Command::new(mke2fs).args(["-q", "-F", "-t", "ext4"]).arg(&new).status()?;
    ensure!(made.success(), "mke2fs failed");
    Ok(new)
}

/// Checks and repairs small images with each feature.
fn features(floe: &Path) -> Result<()> {
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

/// Runs the program on an undamaged image; its counts go to a separate folder.
fn counted_in(folder: &Path, floe: &Path, way: &[&str], image: &Path) -> Result<()> {
    let mut run = Command::new(floe);
    run.env("LLVM_PROFILE_FILE", folder.join("%p.profraw"));
    ended(run.args(way).arg(image), Some(0))
}

/// Runs the program on an image; it must end with `exit`, if known, and not by a signal.
fn expect(floe: &Path, way: &[&str], image: &Path, exit: Option<i32>) -> Result<()> {
    ended(Command::new(floe).args(way).arg(image), exit)
}

/// Runs a command, which must end with `exit`.
fn ended(run: &mut Command, exit: Option<i32>) -> Result<()> {
    let status = run.output()?.status;
    if status.code().is_none() || exit.is_some() && status.code() != exit {
        bail!("{run:?}: {status}, not {exit:?}");
    }
    Ok(())
}
