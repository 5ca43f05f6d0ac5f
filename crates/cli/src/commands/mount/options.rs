//! Mount options: those of ext4, fuse2fs and FUSE.

use std::path::PathBuf;

use anyhow::Result;
use floe_format::ext::quota::QuotaKind;
use floe_fs::{AccessTimes, Dependencies, Limits, OnError};
use floe_fuse::{Synchronous, Transport};

use super::foreign;
use super::memory::{self, Memory};
use crate::exit::{Ended, Outcome};
use crate::input::size;

/// Exit code of mount(8) for a refused mount.
pub(super) const REFUSED: u8 = 32;

/// Options that need a value, each with an example of one.
const WITH_VALUE: [(&str, &str); 12] = [
    ("commit", "5"),
    ("lockfile", "/run/lock/image.lock"),
    ("fsname", "backup"),
    ("subtype", "floe"),
    ("offset", "1M"),
    ("sb", "32768"),
    ("memory", "512M"),
    ("transport", "auto"),
    ("open", "fast"),
    ("errors", "remount-ro"),
    ("journals", "wait"),
    ("threads", "2"),
];

/// The options of `-o`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// `ro` or `rw` stands there; `None`: read-write where that can be done safely.
    pub(super) read_only: Option<bool>,
    /// Seconds after which changes are durable without anybody asking for it.
    pub(super) commit_seconds: Option<u64>,
    /// Do not replay the journal.
    pub(super) no_recovery: bool,
    /// Byte offset of the file system.
    pub(super) offset: Option<u64>,
    /// The superblock, in units of 1 KiB.
    pub(super) superblock_kib: Option<u64>,
    /// All users may access the mount.
    pub(super) allow_other: Option<bool>,
    pub(super) no_suid: bool,
    pub(super) no_devices: bool,
    pub(super) no_exec: bool,
    /// `noatime`, which the kernel shows.
    pub(super) no_atime: bool,
    /// When reading changes the time of the last access; not of directories, if the second one is set.
    pub(super) access_times: (AccessTimes, bool),
    /// Everybody may do everything, as root may.
    pub(super) everybody: bool,
    /// A file that is there as long as the image is in use.
    pub(super) lock_file: Option<PathBuf>,
    /// The displayed source.
    pub(super) fsname: Option<String>,
    /// Displayed after `fuse.`.
    pub(super) subtype: Option<String>,
    /// Number of serving threads.
    pub(super) threads: Option<usize>,
    /// Bytes of memory for what is kept and what waits.
    pub(super) memory: Memory,
    /// Each change reaches the journal at once.
    pub(super) immediate: bool,
    /// The kernel keeps nothing of what is written.
    pub(super) write_through: bool,
    /// Files are used without opening them.
    pub(super) open_fast: bool,
    /// How requests come.
    pub(super) transport: Transport,
    /// Metadata are put together at the beginning of groups.
    pub(super) colocate: bool,
    /// Quotas whose limits count.
    pub(super) quotas: Vec<QuotaKind>,
    /// Changes are durable when their call returns.
    pub(super) synchronous: Synchronous,
    /// New files get the group of their directory.
    pub(super) group_of_directory: bool,
    /// The mount may be mounted again with mapped ids.
    pub(super) mapped_ids: bool,
    /// Blocks that are freed are given back to the device.
    pub(super) discard: bool,
    /// Reaction to damaged metadata; by default the superblock's.
    pub(super) on_error: Option<OnError>,
    /// One flush a commit in native file systems, too.
    pub(super) async_commits: bool,
    /// How changes of several journals of the root cube are whole.
    pub(super) dependencies: Dependencies,
}

impl Options {
    /// Parses lists of options, later ones last. `sloppy` ignores unknown ones, like `mount -s`.
    ///
    /// # Errors
    /// An unknown option or an invalid value: exit code 32, as of mount(8).
    pub(super) fn parse(lists: &[String], sloppy: bool) -> Result<Self> {
        let mut options = Self::default();
        for word in lists.iter().flat_map(|list| list.split(',')).filter(|word| !word.is_empty()) {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            if !options.take(name, value)? && !sloppy {
                return Err(refused(format!("unknown mount option {word}")));
            }
        }
        if options.mapped_ids && options.everybody {
            let why = "with `fakeroot` nobody is judged, and ids that are mapped are";
            return Err(bad("idmap", &why));
        }
        Ok(options)
    }

    /// The same where no more memory may be used than this.
    pub(super) fn within(self, limit_bytes: Option<u64>) -> Self {
        Self { memory: self.memory.within(limit_bytes), ..self }
    }

    /// How much may wait and be kept in memory.
    pub(super) fn limits(&self) -> Limits {
        let limits = Limits::of_memory(self.memory.bytes());
        Limits { immediate: self.immediate, ..limits }
    }

    /// Parses one option; `false` if it is unknown.
    fn take(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        if let Some((_, example)) = WITH_VALUE.iter().find(|(with, _)| *with == name)
            && value.is_none_or(str::is_empty)
        {
            return Err(bad(name, &format!("it needs a value, such as `{name}={example}`")));
        }
        match (name, value) {
            ("ro", None) => self.read_only = Some(true),
            ("rw", None) => self.read_only = Some(false),
            ("norecovery" | "noload", None) => self.no_recovery = true,
            ("commit", Some(value)) => {
                let seconds: u32 = value
                    .parse()
                    .map_err(|_| bad(name, &"must be seconds, from 0 to 4294967295"))?;
                // As for Linux, 0 is the default.
                self.commit_seconds = Some(seconds.into()).filter(|seconds| *seconds > 0);
            }
            ("allow_other", None) => self.allow_other = Some(true),
            ("noallow_other", None) => self.allow_other = Some(false),
            ("nosuid", None) => self.no_suid = true,
            ("nodev", None) => self.no_devices = true,
            ("noexec", None) => self.no_exec = true,
            ("uid" | "gid" | "umask" | "fmask" | "dmask", _) => {
                return Err(bad(name, &OWNERS));
            }
            ("fakeroot", None) => self.everybody = true,
            ("lockfile", Some(value)) => self.lock_file = Some(value.into()),
            ("fsname", Some(value)) => self.fsname = Some(value.to_owned()),
            ("subtype", Some(value)) => self.subtype = Some(value.to_owned()),
            ("offset", Some(value)) => {
                self.offset = Some(size::bytes(value).map_err(|why| bad(name, &why))?);
            }
            ("sb", Some(value)) => {
                let kib: u64 = value.parse().map_err(|_| bad(name, &"must be a number of KiB"))?;
                // That is the primary one, whatever the size of blocks.
                self.superblock_kib = Some(kib).filter(|kib| *kib != 1);
            }
            ("memory", Some(value)) => self.memory = Memory::Given(memory(value)?),
            ("quota" | "usrquota", None) => self.quotas.push(QuotaKind::User),
            ("grpquota", None) => self.quotas.push(QuotaKind::Group),
            ("prjquota", None) => self.quotas.push(QuotaKind::Project),
            ("noquota", None) => self.quotas.clear(),
            ("writeback_cache", None) => self.write_through = false,
            ("nowriteback_cache", None) => self.write_through = true,
            ("transport", Some(value)) => {
                self.transport =
                    transport(value).ok_or_else(|| bad(name, &"must be auto, ring or dev"))?;
            }
            ("open", Some("fast")) => self.open_fast = true,
            ("open", Some("safe")) => self.open_fast = false,
            ("errors", Some(value)) => {
                self.on_error = Some(match value {
                    "continue" => OnError::Continue,
                    "remount-ro" => OnError::ReadOnly,
                    "panic" | "shutdown" => OnError::Shutdown,
                    _ => return Err(bad(name, &"must be continue, remount-ro, panic or shutdown")),
                });
            }
            ("journals", Some("list")) => self.dependencies = Dependencies::Listed,
            ("journals", Some("wait")) => self.dependencies = Dependencies::Awaited,
            ("threads", Some(value)) => {
                let count = value.parse().ok().filter(|count| (1..=64).contains(count));
                self.threads = Some(count.ok_or_else(|| bad(name, &"must be from 1 to 64"))?);
            }
            _ if value.is_none() && (self.take_times(name) || self.take_switch(name)) => {}
            _ => {
                return match foreign::judge(name, value) {
                    Some(Err(why)) => Err(bad(name, &why)),
                    judged => Ok(judged.is_some()),
                };
            }
        }
        Ok(true)
    }
}

impl Options {
    /// Takes an option without a value that is on or off; `false` if it is none.
    fn take_switch(&mut self, name: &str) -> bool {
        match name {
            "async" => self.synchronous = Synchronous::default(),
            "sync" => self.synchronous = Synchronous::ALL,
            "dirsync" => self.synchronous.names = true,
            "grpid" | "bsdgroups" => self.group_of_directory = true,
            "nogrpid" | "sysvgroups" => self.group_of_directory = false,
            "journal_async_commit" => self.async_commits = true,
            "idmap" | "noidmap" => self.mapped_ids = name == "idmap",
            "discard" | "nodiscard" => self.discard = name == "discard",
            "colocate" | "nocolocate" => self.colocate = name == "colocate",
            "delalloc" | "nodelalloc" => self.immediate = name == "nodelalloc",
            _ => return false,
        }
        true
    }

    /// Takes an option about times of access; `false` if it is none.
    fn take_times(&mut self, name: &str) -> bool {
        let times = match name {
            "noatime" => AccessTimes::Never,
            "atime" | "relatime" | "nostrictatime" => AccessTimes::Relative,
            "strictatime" | "norelatime" => AccessTimes::Always,
            "diratime" | "nodiratime" => {
                self.access_times.1 = name == "nodiratime";
                return true;
            }
            _ => return false,
        };
        (self.no_atime, self.access_times.0) = (times == AccessTimes::Never, times);
        true
    }
}

/// Why owners and modes are not options.
const OWNERS: &str = "the image says who owns its files, and which modes they have; `fakeroot` lets everybody who may use the \
                      mount do everything, and `floe mkfs --from` makes images with other owners";

/// The transport of a name.
pub(super) fn transport(name: &str) -> Option<Transport> {
    match name {
        "auto" => Some(Transport::Auto),
        "ring" => Some(Transport::Ring),
        "dev" => Some(Transport::Device),
        _ => None,
    }
}

/// The value of `memory=`.
fn memory(value: &str) -> Result<u64> {
    let bytes = size::bytes(value).map_err(|why| bad("memory", &why))?;
    if bytes < memory::LEAST_BYTES {
        return Err(bad("memory", &"must be 1M at least; K, M and G are units"));
    }
    if let Some(most) = machine_bytes().filter(|most| bytes > *most) {
        let most = most >> 20;
        return Err(bad(
            "memory",
            &format!("{value} is more than this machine has, which is {most}M"),
        ));
    }
    Ok(bytes)
}

/// Bytes of the machine's memory; `None` if the system does not say.
fn machine_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn bad(name: &str, why: &dyn std::fmt::Display) -> anyhow::Error {
    refused(format!("mount option {name}: {why}"))
}

/// The error of a refused mount.
pub(super) fn refused(text: impl Into<String>) -> anyhow::Error {
    Ended::with(Outcome::own(REFUSED), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<Options> {
        Options::parse(&[list.to_owned()], false)
    }

    #[test]
    fn an_fstab_line_is_understood() {
        let options = parse("rw,nofail,x-systemd.requires-mounts-for=/data,offset=1M,ro").unwrap();
        assert_eq!(options.offset, Some(1 << 20));
        assert_eq!(options.read_only, Some(true), "the last option counts");
    }

    #[test]
    fn unknown_options_are_refused_with_32_unless_sloppy() {
        let error = parse("ro,colour=blue").unwrap_err();
        assert_eq!(Outcome::of_error(&error).code(), 32);
        assert!(error.to_string().contains("colour=blue"));
        assert!(Options::parse(&["colour=blue".to_owned()], true).is_ok());
        assert!(parse("memory=1M,nodelalloc").unwrap().limits().immediate);
        let limits = parse("memory=1M").unwrap().limits();
        assert_eq!((limits.content_bytes, limits.immediate), (1 << 17, false));
        assert_eq!(parse("errors=panic").unwrap().on_error, Some(OnError::Shutdown));
        assert!(parse("errors=ignore").is_err());
        assert!(parse("data=journal").unwrap_err().to_string().contains("sync"));
        let durable = |list| parse(list).unwrap().synchronous;
        assert_eq!((durable("sync"), durable("dirsync").data), (Synchronous::ALL, false));
        assert_eq!((durable("sync,async"), durable("dirsync").names), (durable("rw"), true));
        assert!(parse("idmap").unwrap().mapped_ids && parse("idmap,fakeroot").is_err());
        let quotas = |list| parse(list).unwrap().quotas;
        assert_eq!(quotas("usrquota,prjquota"), [QuotaKind::User, QuotaKind::Project]);
        assert!(quotas("quota,noquota").is_empty());
        let times = |list| parse(list).unwrap().access_times;
        assert_eq!(times("noatime,relatime,nodiratime"), (AccessTimes::Relative, true));
        assert_eq!(times("strictatime"), (AccessTimes::Always, false));
        assert_eq!(times("strictatime,noatime"), (AccessTimes::Never, false));
        assert!(parse("X-mount.mkdir,x-systemd.automount").is_ok());
        assert!(parse("uid=1000").unwrap_err().to_string().contains("fakeroot"));
        assert!(parse("threads=0").is_err() && parse("offset=x").is_err());
    }

    #[test]
    fn an_option_without_its_value_says_how_it_is_written() {
        for (name, example) in WITH_VALUE {
            for list in [name.to_owned(), format!("{name}=")] {
                let why = parse(&list).unwrap_err().to_string();
                assert!(why.contains(&format!("such as `{name}={example}`")), "{why}");
            }
            assert!(parse(&format!("{name}={example}")).is_ok(), "{name}={example}");
        }
    }

    #[test]
    fn values_out_of_range_are_refused_with_the_range() {
        let why = |list: &str| parse(list).unwrap_err().to_string();
        assert!(why("memory=100").contains("1M at least") && parse("memory=1M").is_ok());
        for value in ["-1", "soon", "4294967296"] {
            assert!(why(&format!("commit={value}")).contains("seconds, from 0"), "{value}");
        }
        assert!(why("sb=first").contains("KiB"));
        let most = why("memory=99999T");
        assert!(most.contains("99999T is more than this machine has"), "{most}");
        // The primary superblock, with which nothing is unusual.
        assert_eq!(parse("sb=1").unwrap(), Options::default());
        assert_eq!(parse("sb=8193").unwrap().superblock_kib, Some(8193));
        // Without a name quota files are off, which they are.
        assert_eq!(parse("usrjquota=,grpjquota=").unwrap(), Options::default());
        assert!(why("usrjquota=aquota.user").contains("tune2fs") && parse("usrjquota").is_err());
    }
}
