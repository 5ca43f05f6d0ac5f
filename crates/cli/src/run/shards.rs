//! `--shard I/N --out PART`, `--refine I/N --out PART` and `--merge PART...`: one check by many machines
//! (`docs/fleet.md`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use floe_blockdev::{NewFile, UNFINISHED};
use floe_check::checkpoint::{MAGIC, Part, Parts, Round, Share};
use floe_check::{Accounting, CheckError};
use floe_format::words::agree;
use floe_report::human::size;
use floe_sync::thread;

use crate::exit::Ended;
use crate::input::clock::now_seconds;
use crate::input::files::{InputPath, Judged, OutputPath, SHARD_KEY_HEAD};
use crate::input::random::random_bytes;
use crate::message::message;
use crate::run::checkpoint::open_own;
use crate::terminal::shell::quoted_path;

/// Name of that file beside a part, unless an option names another.
const KEY_NAME: &str = "floe-shards.key";

/// How long a shard waits for another process that writes the same part.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// How often it looks meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Options of a check by several machines.
#[derive(Debug, clap::Args)]
pub(crate) struct ShardArgs {
    /// Check only shard I of N (I counts from 0) and write what was found to --out: N machines
    /// check one file system. --merge makes the report from all parts (see docs/fleet.md)
    #[arg(
        long,
        value_name = "I/N",
        value_parser = share,
        requires = "out",
        conflicts_with_all = ["refine", "merge", "checkpoint", "online", "json", "html", "fail_on"],
    )]
    shard: Option<Share>,
    /// Look closer at share I of N of what the parts after --merge leave unproved, and write the
    /// evidence to --out, so that --merge need not: run it on N machines, then once more with the
    /// new parts after --merge as well (see docs/fleet.md)
    #[arg(
        long,
        value_name = "I/N",
        value_parser = share,
        requires_all = ["out", "merge"],
        conflicts_with_all = ["checkpoint", "online", "json", "html", "fail_on"],
    )]
    refine: Option<Share>,
    /// The file for the part of this shard, replacing an earlier one
    #[arg(long, value_name = "PART")]
    out: Option<OutputPath>,
    /// File with the random key that all shards share; the first shard creates it. By default
    /// `floe-shards.key` in the folder of PART, if PART is a regular file
    #[arg(long, value_name = "FILE", requires = "shard")]
    shard_key: Option<OutputPath>,
    /// Report on the whole file system from the parts of all shards, in any order. Reads from the
    /// device only what no shard could judge alone. Write DEVICE before --merge
    #[arg(
        long,
        value_name = "PART",
        num_args = 1..,
        conflicts_with_all = ["checkpoint", "online"],
    )]
    merge: Vec<InputPath>,
}

/// Parses `I/N`.
fn share(text: &str) -> Result<Share, String> {
    let numbers = text
        .split_once('/')
        .and_then(|(index, count)| Some((index.parse::<u32>().ok()?, count.parse::<u32>().ok()?)));
    let Some((index, count)) = numbers else {
        return Err("it is not I/N, such as 0/16".to_owned());
    };
    Share::new(index, count).ok_or_else(|| match count {
        0 => "there must be one shard at least".to_owned(),
        _ if index >= count => {
            format!("shards count from 0: the last one is {}/{count}", count - 1)
        }
        _ => "there are too many shards".to_owned(),
    })
}

/// One shard of a check or of a refinement, and the file for its part.
pub(crate) struct Shard<'a> {
    pub(crate) share: Share,
    out: &'a Path,
    /// The file of the key; `None` for a refinement, which takes the key from the parts.
    key: Option<PathBuf>,
}

/// The values that all shards of a check have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Common {
    /// The key of the fingerprints.
    pub(crate) key: [u8; 16],
    /// The time that counts as now, in seconds since 1970.
    pub(crate) now_seconds: i64,
}

impl ShardArgs {
    /// The shard to check, if one is wanted.
    ///
    /// # Errors
    /// The file of the key would overwrite an input.
    pub(crate) fn shard(&self, files: &Judged) -> anyhow::Result<Option<Shard<'_>>> {
        let (share, out) = match (self.shard.or(self.refine), self.out.as_deref()) {
            (Some(share), Some(out)) => (share, out),
            (None, Some(_)) => return Err(Ended::usage("--out needs --shard or --refine")),
            (_, None) => return Ok(None),
        };
        if self.refine.is_some() {
            return Ok(Some(Shard { share, out, key: None }));
        }
        let key = match self.shard_key.as_deref() {
            Some(key) => key.to_owned(),
            None if fs::metadata(out).is_ok_and(|found| !found.is_file()) => {
                // A key beside a device or a pipe would be in nobody's folder of parts.
                return Err(Ended::usage(format!(
                    "{} is not a regular file: name the file of the key with --shard-key",
                    out.display()
                )));
            }
            None => {
                let key = out.with_file_name(KEY_NAME);
                files.refuse_output("--shard-key", &key)?;
                key
            }
        };
        if key == out {
            return Err(Ended::usage(format!("--out must not be {KEY_NAME}")));
        }
        Ok(Some(Shard { share, out, key: Some(key) }))
    }

    /// The parts to merge, if any are. Whatever else a pattern such as `part-*` or `*` names in their folder is none: the
    /// key, and parts that a shard is writing for the second time, or was killed while it wrote them. If one is lacking,
    /// the merge will tell.
    pub(crate) fn merge(&self) -> Option<PartFiles<'_>> {
        if self.merge.is_empty() {
            return None;
        }
        let is_part = |path: &&InputPath| {
            let is_unfinished = path.as_os_str().as_bytes().ends_with(UNFINISHED.as_bytes());
            !is_unfinished && !path.ends_with(KEY_NAME)
        };
        let (parts, others): (Vec<_>, Vec<_>) = self.merge.iter().partition(is_part);
        for path in others {
            let why =
                if path.ends_with(KEY_NAME) { "the key of the shards" } else { "not finished" };
            message!("floe: {} is {why}, and not read as a part", quoted_path(path));
        }
        Some(PartFiles(parts))
    }

    /// How a check is accounted for that asks for `wanted`: by fingerprints in shards, because shards can prove
    /// most by these alone.
    pub(crate) fn accounting(&self, wanted: Accounting) -> Accounting {
        let in_shards = self.shard.is_some() || !self.merge.is_empty();
        match wanted {
            Accounting::Auto if in_shards => Accounting::Fingerprint,
            named => named,
        }
    }
}

impl Shard<'_> {
    /// Reads the values that all shards have in common. The first shard draws them, and gets the file that it
    /// created. `None`: the parts have them.
    ///
    /// # Errors
    /// The file of the key cannot be made or read, or is something else.
    pub(crate) fn common(&self) -> anyhow::Result<Option<(Common, Option<CreatedKey<'_>>)>> {
        let Some(path) = self.key.as_deref() else { return Ok(None) };
        let cannot = |what| format!("cannot {what} the key of the shards, {}", path.display());
        let mut created = None;
        if open_own(path).with_context(|| cannot("read"))?.is_none() {
            let drawn = Common { key: random_bytes()?, now_seconds: now_seconds() };
            if drawn.offer(path).with_context(|| cannot("create"))? {
                created = Some(CreatedKey { path, alone: self.share.count() == 1 });
            }
        }
        let mut text = String::new();
        let file = open_own(path).with_context(|| cannot("read"))?;
        let file = file.with_context(|| cannot("find"))?;
        file.take(1024).read_to_string(&mut text).with_context(|| cannot("read"))?;
        let common = Common::parse(&text)
            .ok_or_else(|| Ended::usage(format!("{}: this is no key of shards", path.display())))?;
        Ok(Some((common, created)))
    }

    /// Tests early whether the part can be written: before the shard reads anything, and before it creates the key.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn probe(&self) -> anyhow::Result<()> {
        // Opening a pipe would make its reader see the end.
        if self.out.metadata().is_ok_and(|found| !found.is_file()) {
            return Ok(());
        }
        match NewFile::replacing(self.out, 0o600, MAGIC) {
            // The same shard, started before this one, writes its part at this moment.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
            probed => probed.map(drop),
        }
        .with_context(|| format!("cannot write {}", self.out.display()))
    }

    /// The file of the part, to be written. Waits while the same shard, started twice, writes it elsewhere: retries and
    /// speculative runs overlap.
    fn create(&self) -> io::Result<NewFile> {
        let begun = Instant::now();
        loop {
            match NewFile::replacing(self.out, 0o600, MAGIC) {
                Err(error)
                    if error.kind() == io::ErrorKind::ResourceBusy
                        && begun.elapsed() < LONGEST_WAIT =>
                {
                    thread::sleep(LOOK_EVERY);
                }
                created => return created,
            }
        }
    }

    /// Writes the part. It appears under its name only when it is complete.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(&self, part: &Part) -> anyhow::Result<String> {
        let path = self.out;
        let cannot = || format!("cannot write {}", path.display());
        // It contains the key, so other users must not read it.
        let new = self.create().with_context(cannot)?;
        let mut out = BufWriter::new(new.file());
        part.write(&mut out).and_then(|()| out.flush()).with_context(cannot)?;
        drop(out);
        let file = new.finish().with_context(cannot)?;
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        let (index, count) = (self.share.index(), self.share.count());
        let found = match (part.round(), part.inodes_and_directories()) {
            (Round::Shards, Some((inodes, directories))) => {
                let found = format!("{inodes} inodes in use, {directories} directories; ");
                agree(&found).into_owned()
            }
            (Round::Inodes, _) => "merge with it to refine once more; ".to_owned(),
            _ => String::new(),
        };
        Ok(format!(
            "{} {index}/{count}: {found}{} written to {}",
            part.round().shard(),
            size(bytes),
            path.display()
        ))
    }
}

/// The file of the key, created by this shard.
pub(crate) struct CreatedKey<'a> {
    path: &'a Path,
    /// No other shard uses it.
    alone: bool,
}

impl CreatedKey<'_> {
    /// Removes the file after this shard failed, if no other shard can have checked with it: there is none, or the
    /// file system (`error`) cannot be checked by any. Otherwise the file stays, because the shard that is run again
    /// needs the key of the others.
    pub(crate) fn remove_after_failure(self, error: Option<&CheckError>) {
        let nobody_can = matches!(
            error,
            Some(
                CheckError::NoSuperblock { .. }
                    | CheckError::UnknownFeatures { .. }
                    | CheckError::Fatal { .. }
            )
        );
        if self.alone || nobody_can {
            // If removing fails, the file is as harmless as after a shard that was killed.
            let _ = fs::remove_file(self.path);
        }
    }
}

impl Common {
    /// Creates the file, complete or not at all. `false`: another shard was faster.
    fn offer(self, path: &Path) -> io::Result<bool> {
        let random = random_bytes().map_err(io::Error::other)?;
        let name = path.with_extension(format!("{:032x}", u128::from_le_bytes(random)));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&name)?;
        let made = file.write_all(self.text().as_bytes()).and_then(|()| file.sync_all());
        // A link is made by one shard only, also on NFS.
        let made = made.and_then(|()| match fs::hard_link(&name, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            made => made.map(|()| true),
        });
        fs::remove_file(&name)?;
        made
    }

    fn text(self) -> String {
        let head = String::from_utf8_lossy(SHARD_KEY_HEAD);
        format!("{head}{:032x} {}\n", u128::from_be_bytes(self.key), self.now_seconds)
    }

    fn parse(text: &str) -> Option<Self> {
        let rest = text.as_bytes().strip_prefix(SHARD_KEY_HEAD)?;
        let (key, now) = std::str::from_utf8(rest).ok()?.trim_end().split_once(' ')?;
        let digits = key.len() == 32 && key.bytes().all(|byte| byte.is_ascii_hexdigit());
        let key = u128::from_str_radix(key, 16).ok().filter(|_| digits)?;
        Some(Self { key: key.to_be_bytes(), now_seconds: now.parse().ok()? })
    }
}

/// The files of parts.
pub(crate) struct PartFiles<'a>(Vec<&'a InputPath>);

impl Parts for PartFiles<'_> {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn name(&self, at: usize) -> String {
        self.0.get(at).map_or_else(String::new, |path| path.display().to_string())
    }

    fn open(&self, at: usize) -> io::Result<Box<dyn Read + '_>> {
        let file: Option<File> = self.0.get(at).map(|path| open_own(path)).transpose()?.flatten();
        let file = file.ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(BufReader::new(file)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read() {
        assert_eq!(share("3/16").unwrap(), Share::new(3, 16).unwrap());
        for bad in ["", "3", "3/", "/3", "3/3", "0/0", "-1/3", "0/70000", "1/2/3"] {
            assert!(share(bad).is_err(), "{bad}");
        }
        assert!(share("16/16").unwrap_err().contains("15/16"));
    }

    #[test]
    fn keys_are_read_back_and_nothing_else_is() {
        let key = Common { key: [0xab; 16], now_seconds: -7 };
        assert_eq!(Common::parse(&key.text()), Some(key));
        let text = key.text();
        for bad in ["", "floe-shards-key 1 ", &text[..40], &text.replace("ab", "+b")] {
            assert_eq!(Common::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_first_shard_draws_the_key_of_all() {
        let folder = tempfile::tempdir().unwrap();
        let (out, key) = (folder.path().join("part"), folder.path().join("key"));
        let shard =
            || Shard { share: Share::new(0, 2).unwrap(), out: &out, key: Some(key.clone()) };
        let common = |shard: Shard<'_>| {
            let (common, created) = shard.common().unwrap().unwrap();
            (common, created.is_some())
        };
        let drawn: Vec<(Common, bool)> = thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(|| common(shard()))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let keys: Vec<Common> = drawn.iter().map(|(common, _)| *common).collect();
        assert_eq!(drawn.iter().filter(|(_, created)| *created).count(), 1);
        assert!(keys.iter().all(|key| *key == keys[0]));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "something was left");
        let other = folder.path().join("other");
        let (next, _) = common(Shard { key: Some(other), ..shard() });
        assert_ne!(next.key, keys[0].key, "each check has a key of its own");
    }
}
