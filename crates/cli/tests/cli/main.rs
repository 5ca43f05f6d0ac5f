//! The `floe` command on real images and on bad input.

#![allow(clippy::unwrap_used, clippy::panic)] // a test may

mod automation;
mod bad_input;
mod checkpoint;
mod claims;
mod commands;
mod cube_moves;
mod cubes;
mod docs;
mod examples;
mod external_journals;
mod fleet;
mod fleet_report;
mod fsck;
mod fsck_callers;
mod fsck_codes;
mod fsck_differential;
mod fsck_discard;
mod fsck_options;
mod fsck_orphans;
mod full_disk;
mod image_files;
mod images;
mod journals;
mod killed;
mod limits;
mod loop_device;
mod memory;
mod mkfs;
mod mkfs_archives;
mod mkfs_block_map;
mod mkfs_from;
mod mkfs_lists;
mod monitoring;
mod mount;
mod mount_attributes;
mod mount_killed;
mod mount_limits;
mod mount_losses;
mod mount_started;
mod mounted_cubes;
mod multi_mount;
mod native;
mod native_resized;
mod odd_calls;
mod online;
mod outputs;
mod own_mount;
mod packaging;
mod pages;
mod pasted;
mod python;
mod random_calls;
mod recipes;
mod relays;
mod repair;
mod repair_undo;
mod rext3;
mod salvage;
mod schema;
mod shards;
mod shared_blocks;
mod signals;
mod terminal;
mod transcripts;
mod undo;
mod unmounts;
mod valgrind;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use floe_testkit::{Image, Profile, build, tool};

/// Output and exit code of a run of `floe`.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

fn floe<S: AsRef<OsStr>>(arguments: &[S]) -> Ran {
    floe_env(arguments, &[])
}

/// Runs with additional environment variables.
fn floe_env<S: AsRef<OsStr>>(arguments: &[S], variables: &[(&str, &str)]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    ran(&command.args(arguments).envs(variables.iter().copied()).output().unwrap())
}

fn ran(output: &Output) -> Ran {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    // A panic would exit with 101, a signal gives no code: no input may cause either.
    let code = output.status.code().expect("floe was killed by a signal");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_ne!(code, 101, "floe panicked: {err}");
    Ran { code, out, err }
}

/// Floe under another name, through a link like those of packages.
struct Fsck {
    folder: tempfile::TempDir,
    program: &'static str,
}

impl Fsck {
    fn new(program: &'static str) -> Self {
        let folder = tool::scratch("floe-link-").unwrap();
        symlink(env!("CARGO_BIN_EXE_floe"), folder.path().join(program)).unwrap();
        Self { folder, program }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(self.program)
    }

    fn run(&self, options: &[&str], device: &Path, variables: &[(&str, &str)]) -> Ran {
        let mut command = Command::new(self.path());
        // The tester's environment must not interfere.
        command.env_remove("E2FSCK_CONFIG").env_remove("SOURCE_DATE_EPOCH");
        command.args(options).arg(device).envs(variables.iter().copied()).stdin(Stdio::null());
        ran(&command.output().unwrap())
    }
}

/// Runs with a path as the last argument.
fn floe_on(arguments: &[&str], path: &Path) -> Ran {
    let mut all: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
    all.push(path.as_os_str());
    floe(&all)
}

/// A populated image of a profile, or a printed reason for skipping the test.
fn image(profile: &str) -> Option<Image> {
    if tool::missing() {
        return None;
    }
    Some(build::base(Profile::by_name(profile).unwrap()).unwrap())
}

/// An image of many small groups, with `files` files in 40 directories: its check has many units of
/// work.
fn image_of_many_groups(files: u32, mib: u64, inodes: &str) -> Option<Image> {
    if tool::missing() {
        return None;
    }
    let folder = tool::scratch("floe-many-").unwrap();
    for at in 0..files {
        let path = folder.path().join(format!("{}/{at}", at % 40));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join(format!("file-{at}")), at.to_string()).unwrap();
    }
    let image = Image::empty(mib << 20).unwrap();
    let source = folder.path().to_str().unwrap();
    let options = ["-t", "ext4", "-b", "1024", "-g", "1024", "-N", inodes, "-d", source];
    build::mke2fs(image.path(), &options).unwrap();
    Some(image)
}

/// A disk with an MBR partition table, whose only partition begins at 1 MiB and holds `content`.
fn disk_with_partition(content: &[u8]) -> Vec<u8> {
    const FIRST_SECTOR: u32 = 2048;
    let mut disk = vec![0; FIRST_SECTOR as usize * 512];
    // The first entry: type Linux, start and number of sectors.
    disk[446 + 4] = 0x83;
    disk[446 + 8..446 + 12].copy_from_slice(&FIRST_SECTOR.to_le_bytes());
    let sectors = u32::try_from(content.len() / 512).unwrap();
    disk[446 + 12..446 + 16].copy_from_slice(&sectors.to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk.extend(content);
    disk
}
