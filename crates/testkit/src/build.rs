//! Builds populated, clean images without root: mke2fs, then a debugfs script, then `e2fsck -fyD`,
//! which builds the hash trees and corrects quotas and link counts.

mod populate;

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};

use crate::image::{Contents, Image};
use crate::profile::Profile;
use crate::{oracle, tool};

/// The mke2fs configuration, so that images do not depend on the distribution's.
const MKE2FS_CONF: &str = "[defaults]
base_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr
default_mntopts = acl,user_xattr
enable_periodic_fsck = 0
blocksize = 4096
inode_size = 256
inode_ratio = 8192
[fs_types]
ext3 = {
features = has_journal
}
ext4 = {
features = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize
}
";

/// UUID of every image.
pub const UUID: &str = "f10e0000-0001-4002-8003-000000000004";
/// Hash seed of every image.
const HASH_SEED: &str = "f10e0000-0005-4006-8007-000000000008";

/// A private copy of the populated image of a profile. The image itself is built once per process.
///
/// The module `populate` lists its files.
///
/// # Errors
/// A tool is missing or fails, or e2fsck does not find the image clean.
pub fn base(profile: Profile) -> Result<Image> {
    base_contents(profile)?.to_image()
}

/// The contents of [`base`], for callers that copy them themselves.
///
/// # Errors
/// As [`base`].
pub fn base_contents(profile: Profile) -> Result<Contents> {
    const COUNT: usize = Profile::ALL.len() + Profile::UNUSUAL.len();
    static BUILT: [OnceLock<Result<Contents, String>>; COUNT] = [const { OnceLock::new() }; COUNT];
    // Variants are numbered from 0 in the order of `ALL`, then `UNUSUAL`.
    BUILT[profile as usize]
        .get_or_init(|| build(profile).map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(|error| anyhow::anyhow!("building profile {profile}: {error}"))
}

/// An image of a profile as mke2fs makes it, without further files.
///
/// # Errors
/// mke2fs is missing or fails.
pub fn empty(profile: Profile) -> Result<Image> {
    let image = Image::empty(profile.size_mib() << 20)?;
    mke2fs(image.path(), profile.mke2fs_args())?;
    Ok(image)
}

/// Makes a file system in the file `path`, with fixed identifiers and clock.
///
/// # Errors
/// mke2fs is missing or fails.
pub fn mke2fs(path: &Path, args: &[&str]) -> Result<()> {
    let folder = tool::scratch("floe-mke2fs-")?;
    let config = folder.path().join("mke2fs.conf");
    fs::write(&config, MKE2FS_CONF)?;
    let mut command = tool::command("mke2fs");
    command.env("MKE2FS_CONFIG", &config).args(["-q", "-F", "-U", UUID]);
    // mke2fs honours only one -E.
    let mut extended = format!("hash_seed={HASH_SEED},lazy_itable_init=0,root_owner=0:0");
    let mut args = args.iter();
    while let Some(&arg) = args.next() {
        if arg == "-E" {
            extended.push(',');
            extended.push_str(args.next().copied().unwrap_or_default());
        } else {
            command.arg(arg);
        }
    }
    command.args(["-E", &extended]).arg(path);
    tool::run(&command, 120)?.expect("mke2fs", &[0])?;
    Ok(())
}

/// Runs debugfs commands, one per line, on an image, and fails on any complaint.
///
/// # Errors
/// debugfs complains or is missing.
pub fn debugfs(image: &Image, script: &str) -> Result<String> {
    let folder = tool::scratch("floe-debugfs-")?;
    populate::debugfs(image.path(), folder.path(), script)
}

/// The same for commands that tell something, such as a checksum, which [`debugfs`] takes for a complaint.
///
/// # Errors
/// debugfs is missing, or ends with an error, which it does not for a command that fails.
pub fn debugfs_that_tells(image: &Image, script: &str) -> Result<()> {
    let folder = tool::scratch("floe-debugfs-")?;
    populate::run_debugfs(image.path(), folder.path(), script).map(drop)
}

fn build(profile: Profile) -> Result<Contents> {
    // With MMP, tools that open an image for writing wait for many seconds, so enable it only after
    // the image is populated.
    let protected = profile.has("mmp");
    let image = if protected { empty(Profile::Ext4K1)? } else { empty(profile)? };
    populate::populate(profile, &image)?;
    // Link counts, hash trees, quotas: exit status 1 means that something was corrected.
    let settled = oracle::run(image.path(), &["-fyD"])?;
    ensure!(
        matches!(settled.exit, Some(0 | 1)),
        "e2fsck -fyD ended with {:?}: {}",
        settled.exit,
        settled.text
    );
    if protected {
        tool::must("tune2fs", &["-O", "mmp", "-E", "mmp_update_interval=1", path(&image)?], &[0])?;
    }
    populate::still_clock(&image)?;
    let judged = oracle::e2fsck(&image)?;
    ensure!(judged.clean(), "the new image is not clean ({:?}): {}", judged.exit, judged.text);
    Contents::read(image.path()).context("reading the new image")
}

fn path(image: &Image) -> Result<&str> {
    image.path().to_str().context("scratch folders have plain names")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_builds_clean_and_twice_the_same() {
        if tool::missing() {
            return;
        }
        let mut faults = Vec::new();
        for &profile in Profile::ALL.iter().chain(Profile::UNUSUAL) {
            let begin = std::time::Instant::now();
            let pair = (base_contents(profile), build(profile));
            eprintln!("{profile}: twice in {:?}", begin.elapsed());
            match pair {
                (Ok(first), Ok(second)) if first.same_as(&second) => {}
                (Ok(first), Ok(second)) => faults.push(format!(
                    "{profile} depends on more than its profile: {:x?}",
                    first.differences(&second)
                )),
                (Err(fault), _) | (_, Err(fault)) => faults.push(format!("{profile}: {fault:#}")),
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
}
