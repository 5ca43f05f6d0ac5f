//! Every option of e2fsck: for the parser, the usage text and the man page, and for
//! `docs/e2fsck-options.md`, which must have a row for each.

/// A short option.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flag {
    /// The letter after the dash.
    pub(crate) letter: u8,
    /// Name of its value; `None` if it takes none.
    pub(crate) value: Option<&'static str>,
    /// Its effect, for the usage text and the man page.
    pub(crate) help: &'static str,
}

/// An extended option (`-E`) or a relation of `e2fsck.conf`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    /// Its name.
    pub(crate) name: &'static str,
    /// Name of its value; `None` if it takes none.
    pub(crate) value: Option<&'static str>,
    /// Its effect.
    pub(crate) help: &'static str,
}

const fn flag(letter: u8, help: &'static str) -> Flag {
    Flag { letter, value: None, help }
}

const fn with(letter: u8, value: &'static str, help: &'static str) -> Flag {
    Flag { letter, value: Some(value), help }
}

/// All short options.
pub(crate) const FLAGS: &[Flag] = &[
    flag(b'a', "the same as -p"),
    with(b'b', "superblock", "use the backup superblock in this block"),
    with(b'B', "blocksize", "search only for superblocks with this block size"),
    flag(b'c', "scan for bad blocks and list them; twice: read-write test"),
    with(
        b'C',
        "fd",
        "write progress to this file descriptor; 0: show a bar; negative: after SIGUSR1",
    ),
    flag(b'd', "ignored: -v prints all there is"),
    flag(b'D', "rebuild all directories, sorted and indexed"),
    with(b'E', "options", "extended options, separated by commas"),
    flag(b'f', "check even if the file system is marked clean"),
    flag(b'F', "flush the device's buffers first"),
    with(b'I', "blocks", "ignored: there is no inode buffer"),
    with(b'j', "journal", "the external journal: a device or file"),
    flag(b'k', "with -c: keep the existing bad block list"),
    with(b'l', "file", "add the blocks listed in this file to the bad block list"),
    with(b'L', "file", "replace the bad block list by the blocks listed in this file"),
    flag(b'M', "do nothing if the file system is mounted"),
    flag(b'n', "open read-only and answer no to all questions"),
    with(b'N', "name", "use this name for the file system in messages"),
    flag(b'p', "make repairs that are safe unattended, else halt"),
    with(b'P', "size", "ignored: the size of an unused buffer"),
    flag(b'r', "ignored, as by e2fsck"),
    flag(b's', "ignored: byte swapping is obsolete"),
    flag(b'S', "ignored: byte swapping is obsolete"),
    flag(b't', "print timing; twice: for each phase"),
    flag(b'T', "ignored: no title is printed"),
    flag(b'v', "say more"),
    flag(b'V', "print the version and exit"),
    flag(b'y', "answer yes to all questions"),
    with(b'z', "file", "save the old content for floe undo and e2undo"),
];

/// The short option with a letter.
pub(crate) fn flag_of(letter: u8) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.letter == letter)
}

const fn plain(name: &'static str, help: &'static str) -> Named {
    Named { name, value: None, help }
}

const fn valued(name: &'static str, value: &'static str, help: &'static str) -> Named {
    Named { name, value: Some(value), help }
}

/// All extended options.
pub(crate) const EXTENDED: &[Named] = &[
    plain("bmap2extent", "convert block maps to extents"),
    plain("check_encoding", "verify the encoding of names in casefolded directories"),
    plain("discard", "discard unused blocks if the file system is clean"),
    valued("ea_ver", "version", "ignored: the attribute block states its version"),
    plain("fixes_only", "only repair: no indexes, no smaller extent trees"),
    plain("fragcheck", "list the discontinuities of files"),
    plain("inode_count_fullmap", "ignored: link counts are always exact and fast"),
    plain("journal_only", "only replay the journal"),
    valued("memory", "size", "memory limit, with units K, M, G and T"),
    plain("no_inode_count_fullmap", "ignored: see inode_count_fullmap"),
    plain("no_optimize_extents", "do not rebuild extent trees that could be smaller"),
    plain("nodiscard", "do not discard; the default"),
    plain("optimize_extents", "rebuild extent trees that could be smaller; the default"),
    valued("readahead_kb", "n", "ignored: prefetching is planned by location"),
    plain("unshare_blocks", "give files that share blocks their own copies"),
];

/// All relations of `e2fsck.conf`, by section.
#[cfg(any(test, feature = "generate"))]
pub(crate) const CONF: &[(&str, &[Named])] = &[
    (
        "options",
        &[
            valued("accept_time_fudge", "bool", "tolerate times up to a day in the future"),
            valued("allow_cancellation", "bool", "exit with 0 instead of 32 if the user cancels"),
            valued("broken_system_clock", "bool", "do not trust the clock"),
            valued("buggy_init_scripts", "bool", "old name of accept_time_fudge"),
            valued("clear_test_fs_flag", "bool", "offer to clear the flag of test file systems"),
            valued("defer_check_on_battery", "bool", "check half as often on battery power"),
            valued("indexed_dir_slack_percentage", "percent", "taken; directories keep 20 percent"),
            valued("inode_count_fullmap", "bool", "ignored"),
            valued("log_dir", "folder", "folder of the log"),
            valued("log_dir_fallback", "folder", "folder of the log if log_dir cannot be used"),
            valued("log_dir_wait", "bool", "ignored: no log is written if no folder is usable"),
            valued("log_filename", "name", "file that gets a copy of the output"),
            valued("max_count_problems", "n", "maximum findings of a kind to show"),
            valued("no_optimize_extents", "bool", "as -E no_optimize_extents"),
            valued("problem_log_filename", "name", "file that gets the findings as JSON"),
            valued("readahead_kb", "n", "ignored"),
            valued("readahead_mem_pct", "percent", "ignored"),
            valued("report_features", "bool", "print the features with -v"),
            valued("report_time", "bool", "as -tt"),
            valued("report_verbose", "bool", "as -v"),
        ],
    ),
    ("defaults", &[valued("undo_dir", "folder", "folder of undo files; none: do not write any")]),
    (
        "problems",
        &[
            valued("description", "text", "ignored: messages are Floe's own"),
            valued("force_no", "bool", "never repair it"),
            valued("max_count", "n", "maximum findings of this kind to show"),
            valued("no_default", "bool", "ignored: questions have no default answer"),
            valued("no_nomsg", "bool", "ignored: all findings are reported"),
            valued("no_ok", "bool", "not damage if it is left"),
            valued("not_a_fix", "bool", "its repair does not count as one"),
            valued("preen_nomessage", "bool", "-p does not report it"),
            valued("preen_ok", "bool", "whether -p repairs it"),
        ],
    ),
    (
        "scratch_files",
        &[
            valued("directory", "folder", "folder of a repair's scratch files"),
            valued("dirinfo", "bool", "ignored"),
            valued("icount", "bool", "ignored"),
            valued("numdirs_threshold", "n", "ignored"),
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_has_one_row() {
        assert!(FLAGS.is_sorted_by(|one, next| {
            let key = |letter: u8| (letter.to_ascii_lowercase(), letter.is_ascii_uppercase());
            key(one.letter) < key(next.letter)
        }));
        assert!(EXTENDED.is_sorted_by(|one, next| one.name < next.name));
        for (section, relations) in CONF {
            assert!(relations.is_sorted_by(|one, next| one.name < next.name), "{section}");
        }
    }

    /// The documentation's table has exactly one row per option.
    #[test]
    fn the_documentation_has_the_same_rows() {
        let text = include_str!("../../../../docs/e2fsck-options.md");
        let documented: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
        let flags = FLAGS.iter().map(|flag| match flag.value {
            Some(value) => format!("-{} {value}", char::from(flag.letter)),
            None => format!("-{}", char::from(flag.letter)),
        });
        let extended = EXTENDED.iter().map(|option| match option.value {
            Some(value) => format!("-E {}={value}", option.name),
            None => format!("-E {}", option.name),
        });
        let conf = CONF.iter().flat_map(|(section, relations)| {
            relations.iter().map(move |relation| format!("[{section}] {}", relation.name))
        });
        let wanted: Vec<String> = flags.chain(extended).chain(conf).collect();
        for row in &wanted {
            let found = documented.iter().filter(|name| *name == row).count();
            assert_eq!(found, 1, "rows of docs/e2fsck-options.md for {row:?}");
        }
        // Environment variables also have rows, but no parser.
        let others: Vec<&&str> = documented
            .iter()
            .filter(|name| !wanted.iter().any(|row| row == *name) && !name.starts_with('$'))
            .collect();
        assert!(others.is_empty(), "rows of no option: {others:?}");
        for line in text.lines().filter(|line| line.starts_with("| `")) {
            let verdict = line.split('|').nth(2).unwrap_or_default().trim();
            assert!(matches!(verdict, "same" | "better" | "different"), "{line}");
            let why = line.split('|').nth(3).unwrap_or_default().trim();
            assert!(verdict == "same" || !why.is_empty(), "{line}");
        }
    }
}
