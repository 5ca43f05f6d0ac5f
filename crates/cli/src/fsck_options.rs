//! The command line of e2fsck(8): bundled flags, values attached or apart, options after the device.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::device::block_size;

/// Flags that take a value.
const WITH_VALUE: &[u8] = b"CBEbIjPlLzM";
/// Flags without one.
const PLAIN: &[u8] = b"panyrcdfkvtFVDSs";
/// Names that -E takes; those with '=' need a value.
const EXTENDED: &[&str] = &[
    "bmap2extent",
    "check_encoding",
    "discard",
    "ea_ver=",
    "fixes_only",
    "fragcheck",
    "inode_count_fullmap",
    "journal_only",
    "no_inode_count_fullmap",
    "no_optimize_extents",
    "nodiscard",
    "optimize_extents",
    "readahead_kb=",
    "unshare_blocks",
];

/// What e2fsck's command line asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// The device or image.
    pub(crate) device: PathBuf,
    /// -n: change nothing, answer no.
    pub(crate) no: bool,
    /// -y: answer yes.
    pub(crate) yes: bool,
    /// -p or -a: repair what is safe.
    pub(crate) preen: bool,
    /// -f: check even if the file system says that it is clean.
    pub(crate) force: bool,
    /// -v: say more.
    pub(crate) verbose: bool,
    /// -t: say how long it took.
    pub(crate) timing: bool,
    /// -V: only say the version.
    pub(crate) version: bool,
    /// -D: optimise directories.
    pub(crate) optimize_dirs: bool,
    /// -c, -l or -L: change the list of bad blocks.
    pub(crate) bad_blocks: bool,
    /// -b: block of the superblock.
    pub(crate) superblock: Option<u64>,
    /// -B: bytes of a block.
    pub(crate) block_size: Option<u32>,
    /// -j: the external journal.
    pub(crate) journal: Option<PathBuf>,
    /// -z: the undo file to write.
    pub(crate) undo: Option<PathBuf>,
    /// -E: extended options, as given.
    pub(crate) extended: Vec<String>,
}

impl Options {
    /// Whether an extended option was given.
    pub(crate) fn has_extended(&self, name: &str) -> bool {
        self.extended.iter().any(|option| option == name)
    }

    /// Parses the arguments behind the command's name.
    ///
    /// # Errors
    /// What is wrong with them, for a person; the exit code is then 16.
    pub(crate) fn parse(arguments: &[OsString]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut devices: Vec<&OsString> = Vec::new();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let bytes = argument.as_bytes();
            if bytes == b"--" {
                devices.extend(rest);
                break;
            }
            match bytes.strip_prefix(b"-") {
                Some(flags) if !flags.is_empty() => options.bundle(flags, &mut rest)?,
                _ => devices.push(argument),
            }
        }
        if options.version {
            return Ok(options);
        }
        match devices.as_slice() {
            [device] => options.device = PathBuf::from(device),
            [] => return Err("no device was named".to_owned()),
            [_, second, ..] => return Err(format!("one device too many: {}", second.display())),
        }
        options.judge()
    }

    /// One argument of flags, such as `-fn` or `-yb32768`.
    fn bundle<'a>(
        &mut self,
        flags: &[u8],
        rest: &mut impl Iterator<Item = &'a OsString>,
    ) -> Result<(), String> {
        for (index, &flag) in flags.iter().enumerate() {
            if PLAIN.contains(&flag) {
                self.plain(flag);
            } else if WITH_VALUE.contains(&flag) {
                let attached = &flags[index + 1..];
                let value = match attached {
                    [] => {
                        rest.next().ok_or_else(|| format!("-{} needs a value", char::from(flag)))?
                    }
                    _ => OsStr::from_bytes(attached),
                };
                return self.with_value(flag, value);
            } else {
                return Err(format!("there is no option -{}", char::from(flag).escape_default()));
            }
        }
        Ok(())
    }

    fn plain(&mut self, flag: u8) {
        match flag {
            b'n' => self.no = true,
            b'y' => self.yes = true,
            b'p' | b'a' => self.preen = true,
            b'f' => self.force = true,
            b'v' => self.verbose = true,
            b't' => self.timing = true,
            b'V' => self.version = true,
            b'D' => self.optimize_dirs = true,
            b'c' => self.bad_blocks = true,
            // -r, -s, -S do nothing in e2fsck either; -d and -F make no difference to a verdict; -k
            // only changes what -c does.
            _ => {}
        }
    }

    fn with_value(&mut self, flag: u8, value: &OsStr) -> Result<(), String> {
        let text = value.to_string_lossy();
        let number = || {
            let (digits, radix) = match text.strip_prefix("0x") {
                Some(hex) => (hex, 16),
                None => (text.as_ref(), 10),
            };
            u64::from_str_radix(digits, radix)
                .map_err(|_| format!("-{} needs a number, not {text:?}", char::from(flag)))
        };
        match flag {
            b'b' => self.superblock = Some(number()?),
            b'B' => {
                let size = block_size(&text).map_err(|why| format!("-B {text}: {why}"))?;
                self.block_size = Some(size);
            }
            b'j' => self.journal = Some(PathBuf::from(value)),
            b'l' | b'L' => self.bad_blocks = true,
            b'E' => return self.extended(&text),
            b'C' => {
                text.parse::<i32>().map_err(|_| format!("-C needs a number, not {text:?}"))?;
            }
            b'I' | b'P' => {
                number()?;
            }
            b'z' if text.is_empty() => return Err("-z needs the name of a file".to_owned()),
            b'z' => self.undo = Some(PathBuf::from(value)),
            // The rest takes a value and does nothing, as in e2fsck.
            _ => {}
        }
        Ok(())
    }

    fn extended(&mut self, text: &str) -> Result<(), String> {
        for option in text.split(',').filter(|option| !option.is_empty()) {
            let name = match option.split_once('=') {
                Some((name, _)) => format!("{name}="),
                None => option.to_owned(),
            };
            if !EXTENDED.contains(&name.as_str()) {
                return Err(format!("there is no extended option {option:?}"));
            }
            self.extended.push(option.to_owned());
        }
        Ok(())
    }

    /// Refuses what e2fsck refuses.
    fn judge(self) -> Result<Self, String> {
        if usize::from(self.no) + usize::from(self.yes) + usize::from(self.preen) > 1 {
            return Err("only one of -n, -y and -p (-a) can be given".to_owned());
        }
        if self.no && self.bad_blocks {
            return Err("-n changes nothing, -c, -l and -L do".to_owned());
        }
        if self.no && self.optimize_dirs {
            return Err("-n changes nothing, -D does".to_owned());
        }
        let extends = self.optimize_dirs || self.has_extended("bmap2extent");
        if extends && self.has_extended("fixes_only") {
            return Err("fixes_only mends and does nothing else, -D and bmap2extent do".to_owned());
        }
        if self.block_size.is_some() && self.superblock.is_none() {
            // e2fsck takes it and ignores it; so do we.
            return Ok(Self { block_size: None, ..self });
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, String> {
        let words: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
        Options::parse(&words)
    }

    #[test]
    fn flags_may_be_bundled_and_stand_behind_the_device() {
        let expected =
            Options { device: "dev".into(), no: true, force: true, ..Options::default() };
        for text in ["-fn dev", "-nf dev", "-f -n dev", "dev -fn", "-f dev -n", "-fn -- dev"] {
            assert_eq!(parse(text), Ok(expected.clone()), "{text}");
        }
        assert!(parse("-yf dev").unwrap().yes);
        assert!(parse("-a dev").unwrap().preen);
    }

    #[test]
    fn values_may_be_attached_or_apart() {
        for text in ["-b 8193 dev", "-b8193 dev", "-nb8193 dev", "-nb 8193 dev", "-b 0x2001 dev"] {
            assert_eq!(parse(text).unwrap().superblock, Some(8193), "{text}");
        }
        let both = parse("-fn -b 32768 -B4096 dev").unwrap();
        assert_eq!((both.superblock, both.block_size), (Some(32768), Some(4096)));
        assert_eq!(parse("-j jnl dev").unwrap().journal, Some("jnl".into()));
        assert_eq!(parse("-jjnl dev").unwrap().journal, Some("jnl".into()));
        assert_eq!(parse("-fyz undo dev").unwrap().undo, Some("undo".into()));
        assert!(parse("-C0 dev").is_ok() && parse("-C -3 dev").is_ok());
    }

    #[test]
    fn extended_options_are_known_by_name() {
        let options = parse("-E journal_only,ea_ver=2 -E fixes_only dev").unwrap();
        assert!(options.has_extended("journal_only") && options.has_extended("fixes_only"));
        assert!(parse("-E nonsense dev").is_err());
        assert!(parse("-E ea_ver dev").is_err());
    }

    #[test]
    fn wrong_lines_are_refused() {
        for text in [
            "",
            "-f",
            "-n -y dev",
            "-p -n dev",
            "-n -D dev",
            "-yD -E fixes_only dev",
            "-y -E bmap2extent,fixes_only dev",
            "-nc dev",
            "-b dev",
            "-b x dev",
            "-B 1000 -b 1 dev",
            "-Q dev",
            "dev other",
            "-C x dev",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert!(parse("-V").unwrap().version);
    }
}
