//! The command line of e2fsck(8): bundled flags, values attached or apart, options after the device.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::table::{EXTENDED, flag_of};
use crate::input::device::block_size;
use crate::input::files::{Files, InputPath, OutputPath};
use crate::input::size::bytes;

/// The options on e2fsck's command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // flags of a command line
pub(crate) struct Options {
    /// The device or image, as given.
    pub(crate) device: InputPath,
    /// -n: change nothing, answer no.
    pub(crate) no: bool,
    /// -y: answer yes.
    pub(crate) yes: bool,
    /// -p or -a: make the repairs that are safe unattended.
    pub(crate) preen: bool,
    /// -f: check even if the file system is marked clean.
    pub(crate) force: bool,
    /// -F: flush the device's buffers first.
    pub(crate) flush: bool,
    /// -v: verbose.
    pub(crate) verbose: bool,
    /// -t: print times; number of occurrences.
    pub(crate) timing: u8,
    /// -V: only print the version.
    pub(crate) version: bool,
    /// -M: skip a mounted file system.
    pub(crate) skip_mounted: bool,
    /// -D: optimise directories.
    pub(crate) optimize_dirs: bool,
    /// -c: scan for bad blocks; number of occurrences.
    pub(crate) scan: u8,
    /// -k: keep the bad block list.
    pub(crate) keep: bool,
    /// -l: a file of bad blocks to add.
    pub(crate) add_list: Option<InputPath>,
    /// -L: a file of all bad blocks.
    pub(crate) set_list: Option<InputPath>,
    /// -b: superblock location.
    pub(crate) superblock: Option<u64>,
    /// -B: block size in bytes.
    pub(crate) block_size: Option<u32>,
    /// -C: file descriptor for progress.
    pub(crate) progress: Option<i32>,
    /// -j: the external journal.
    pub(crate) journal: Option<InputPath>,
    /// -N: name of the file system in messages.
    pub(crate) name: Option<String>,
    /// -z: undo file to write; empty: one in the default folder.
    pub(crate) undo: Option<OutputPath>,
    /// -E memory: memory limit in bytes.
    pub(crate) memory_bytes: Option<u64>,
    /// -E: extended options, as given.
    pub(crate) extended: Vec<String>,
}

impl Options {
    /// Whether an extended option is given, and not its opposite after it.
    pub(crate) fn has_extended(&self, name: &str) -> bool {
        let opposite = match name {
            "discard" => "nodiscard",
            "nodiscard" => "discard",
            "optimize_extents" => "no_optimize_extents",
            "no_optimize_extents" => "optimize_extents",
            _ => "",
        };
        let about = |option: &&String| *option == name || *option == opposite;
        self.extended.iter().rev().find(about).is_some_and(|option| option == name)
    }

    /// Whether the bad block list is to be changed.
    pub(crate) fn bad_blocks(&self) -> bool {
        self.scan > 0 || self.add_list.is_some() || self.set_list.is_some()
    }

    /// Whether more is said than to check, so that e2fsck counts repairs which it otherwise makes in passing.
    pub(crate) fn has_work(&self) -> bool {
        self.optimize_dirs
            || self.bad_blocks()
            || self.superblock.is_some()
            || self.has_extended("bmap2extent")
    }

    /// The files that the options name; `device` is the resolved name of the device.
    pub(crate) fn files(&self, device: &Path) -> Files {
        let mut files = Files::default();
        files.input("the device", device);
        let inputs = [("-j", &self.journal), ("-l", &self.add_list), ("-L", &self.set_list)];
        for (option, path) in inputs {
            path.iter().for_each(|path| files.input(option, path));
        }
        let undo = self.undo.iter().filter(|path| !path.as_os_str().is_empty());
        undo.for_each(|path| files.output("-z", path));
        files
    }

    /// Parses the arguments after the command's name.
    ///
    /// # Errors
    /// A description of the fault; the exit code is then 16.
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
            if bytes.starts_with(b"--") {
                let why =
                    "e2fsck's options have one dash; floe check and floe repair have long options";
                return Err(format!("there is no option {}: {why}", argument.display()));
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
            [device] => options.device = InputPath::from(device),
            [] => return Err("no device given".to_owned()),
            [_, second, ..] => return Err(format!("more than one device: {}", second.display())),
        }
        options.judge()
    }

    /// Parses one argument of bundled flags, such as `-fn` or `-yb32768`.
    fn bundle<'a>(
        &mut self,
        flags: &[u8],
        rest: &mut impl Iterator<Item = &'a OsString>,
    ) -> Result<(), String> {
        for (index, &letter) in flags.iter().enumerate() {
            let Some(flag) = flag_of(letter) else {
                let letter = char::from(letter).escape_default();
                return Err(format!("there is no option -{letter}"));
            };
            if flag.value.is_none() {
                self.plain(letter);
                continue;
            }
            let attached = &flags[index + 1..];
            let value = match attached {
                [] => {
                    rest.next().ok_or_else(|| format!("-{} needs a value", char::from(letter)))?
                }
                _ => OsStr::from_bytes(attached),
            };
            return self.with_value(letter, value);
        }
        Ok(())
    }

    fn plain(&mut self, flag: u8) {
        match flag {
            b'n' => self.no = true,
            b'y' => self.yes = true,
            b'p' | b'a' => self.preen = true,
            b'f' => self.force = true,
            b'F' => self.flush = true,
            b'k' => self.keep = true,
            b'v' => self.verbose = true,
            b't' => self.timing = self.timing.saturating_add(1),
            b'V' => self.version = true,
            b'M' => self.skip_mounted = true,
            b'D' => self.optimize_dirs = true,
            b'c' => self.scan = self.scan.saturating_add(1),
            // -r, -s, -S and -T have no effect; -d does not affect the verdict.
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
        let file = || match value.is_empty() {
            true => Err(format!("-{} needs a file name", char::from(flag))),
            false => Ok(Some(InputPath::from(value))),
        };
        match flag {
            // Block 0 is the primary one, as without the option.
            b'b' => self.superblock = Some(number()?).filter(|&block| block != 0),
            b'B' => {
                let size = block_size(&text).map_err(|why| format!("-B {text}: {why}"))?;
                self.block_size = Some(size);
            }
            b'j' => self.journal = file()?,
            b'l' => self.add_list = file()?,
            b'L' => self.set_list = file()?,
            b'E' => return self.extended(&text),
            b'C' => {
                let fd: i32 =
                    text.parse().map_err(|_| format!("-C needs a number, not {text:?}"))?;
                if fd == i32::MIN {
                    return Err(format!("-C {text}: there is no such file descriptor"));
                }
                self.progress = Some(fd);
            }
            b'I' | b'P' => {
                number()?;
            }
            b'N' => self.name = Some(text.into_owned()),
            // Empty: a file in the default folder.
            b'z' => self.undo = Some(OutputPath::from(value)),
            // The table has no other flags.
            _ => {}
        }
        Ok(())
    }

    fn extended(&mut self, text: &str) -> Result<(), String> {
        for option in text.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            let Some(known) = EXTENDED.iter().find(|known| known.name == name) else {
                let names: Vec<&str> = EXTENDED.iter().map(|known| known.name).collect();
                let names = names.join(", ");
                return Err(format!("there is no extended option {name:?}; there are {names}"));
            };
            match (known.value, value) {
                (Some(kind), None) => {
                    return Err(format!("-E {name} needs a value: {name}={kind}"));
                }
                (None, Some(_)) => return Err(format!("-E {name} takes no value")),
                _ => {}
            }
            let number: Option<Result<u64, _>> = value.map(str::parse);
            match (name, &number) {
                ("memory", _) => {
                    let size = value.map(bytes).transpose();
                    self.memory_bytes = size.map_err(|why| format!("-E {option}: {why}"))?;
                }
                ("ea_ver", Some(Ok(1 | 2))) | (_, None) => {}
                ("ea_ver", _) => return Err(format!("-E {option}: must be 1 or 2")),
                (_, Some(Ok(_))) => {}
                (_, Some(Err(_))) => return Err(format!("-E {option}: must be a number")),
            }
            self.extended.push(option.to_owned());
        }
        Ok(())
    }

    /// Refuses contradictory options.
    fn judge(self) -> Result<Self, String> {
        if usize::from(self.no) + usize::from(self.yes) + usize::from(self.preen) > 1 {
            return Err("only one of -n, -y and -p (-a) can be given".to_owned());
        }
        if self.no && self.bad_blocks() {
            return Err("-n changes nothing, -c, -l and -L do".to_owned());
        }
        let lists = [self.scan > 0, self.add_list.is_some(), self.set_list.is_some()];
        if lists.into_iter().filter(|given| *given).count() > 1 {
            return Err("only one of -c, -l and -L can be given".to_owned());
        }
        if self.no && self.optimize_dirs {
            return Err("-n changes nothing, -D does".to_owned());
        }
        let extends = self.optimize_dirs || self.has_extended("bmap2extent");
        if extends && self.has_extended("fixes_only") {
            return Err(
                "fixes_only allows only repairs, so it excludes -D and bmap2extent".to_owned()
            );
        }
        if self.block_size.is_some() && self.superblock.is_none() {
            // e2fsck accepts and ignores it.
            return Ok(Self { block_size: None, ..self });
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::e2fsck::table::FLAGS;

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
    fn every_file_is_judged() {
        for flag in FLAGS.iter().filter(|flag| matches!(flag.value, Some("file" | "journal"))) {
            let letter = char::from(flag.letter);
            let options = parse(&format!("-{letter} named dev")).unwrap();
            let files = format!("{:?}", options.files(&options.device));
            assert!(files.contains("named") && files.contains("\"dev\""), "-{letter}: {files}");
        }
    }

    #[test]
    fn values_may_be_attached_or_apart() {
        for text in ["-b 8193 dev", "-b8193 dev", "-nb8193 dev", "-nb 8193 dev", "-b 0x2001 dev"] {
            assert_eq!(parse(text).unwrap().superblock, Some(8193), "{text}");
        }
        let both = parse("-fn -b 32768 -B4096 dev").unwrap();
        assert_eq!((both.superblock, both.block_size), (Some(32768), Some(4096)));
        let primary = parse("-b 8193 -b 0 dev").unwrap();
        assert_eq!((primary.superblock, primary.block_size), (None, None));
        assert_eq!(parse("-j jnl dev").unwrap().journal, Some("jnl".into()));
        assert_eq!(parse("-jjnl dev").unwrap().journal, Some("jnl".into()));
        assert_eq!(parse("-fyz undo dev").unwrap().undo, Some("undo".into()));
        assert_eq!(parse("-C0 dev").unwrap().progress, Some(0));
        assert_eq!(parse("-C -3 dev").unwrap().progress, Some(-3));
        assert_eq!(parse("-aC4 dev").unwrap().progress, Some(4));
        assert_eq!(parse("-yl list dev").unwrap().add_list, Some("list".into()));
        assert_eq!(parse("-yL list dev").unwrap().set_list, Some("list".into()));
        assert_eq!(parse("-N root -p dev").unwrap().name.as_deref(), Some("root"));
    }

    #[test]
    fn flags_may_be_given_twice() {
        let options = parse("-yccktt dev").unwrap();
        assert_eq!((options.scan, options.keep, options.timing), (2, true, 2));
    }

    #[test]
    fn of_opposites_the_last_counts() {
        let options = parse("-E discard,nodiscard,no_optimize_extents dev").unwrap();
        assert!(!options.has_extended("discard") && options.has_extended("nodiscard"));
        assert!(options.has_extended("no_optimize_extents"));
        let options = parse("-E nodiscard,no_optimize_extents -E optimize_extents,discard dev");
        let options = options.unwrap();
        assert!(options.has_extended("discard") && !options.has_extended("no_optimize_extents"));
    }

    #[test]
    fn extended_options_are_known_by_name() {
        let options = parse("-E journal_only,ea_ver=2 -E fixes_only dev").unwrap();
        assert!(options.has_extended("journal_only") && options.has_extended("fixes_only"));
        assert_eq!(parse("-E discard,memory=64M dev").unwrap().memory_bytes, Some(64 << 20));
        assert!(parse("-E nonsense dev").is_err());
        for wrong in ["ea_ver", "ea_ver=3", "discard=1", "readahead_kb=x", "memory", "memory=64X"] {
            assert!(parse(&format!("-E {wrong} dev")).is_err(), "{wrong}");
        }
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
            "-cy -l list dev",
            "-C -2147483648 dev",
            "--yes dev",
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
