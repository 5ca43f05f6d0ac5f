//! Every option of e2fsck, once: what the parser knows, what the usage text and the man page say,
//! and what `docs/e2fsck-options.md` must have a row for.

/// A short option.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flag {
    /// The letter behind the dash.
    pub(crate) letter: u8,
    /// What its value is; `None` if it takes none.
    pub(crate) value: Option<&'static str>,
    /// What it does, for the usage text and the man page.
    pub(crate) help: &'static str,
}

/// An extended option (`-E`) or a relation of `e2fsck.conf`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    /// Its name.
    pub(crate) name: &'static str,
    /// What its value is; `None` if it takes none.
    pub(crate) value: Option<&'static str>,
    /// What it does.
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
    with(b'b', "superblock", "use the superblock in this block, a backup"),
    with(b'B', "blocksize", "look for superblocks of this block size only"),
    flag(b'c', "look for bad blocks and list them; twice: by writing, too"),
    with(
        b'C',
        "fd",
        "say how far it is on this file descriptor; 0: as a bar; negative: on SIGUSR1",
    ),
    flag(b'd', "taken and ignored: -v says what there is to say"),
    flag(b'D', "write all directories anew, sorted and indexed"),
    with(b'E', "options", "extended options, separated by commas"),
    flag(b'f', "check even if the file system says that it is clean"),
    flag(b'F', "drop what the system remembers of the device first"),
    with(b'I', "blocks", "taken and ignored: there is no buffer of inode blocks to size"),
    with(b'j', "journal", "the journal is on this device or in this file"),
    flag(b'k', "with -c: keep what the list of bad blocks holds"),
    with(b'l', "file", "add the blocks named in this file to the list of bad blocks"),
    with(b'L', "file", "the blocks named in this file become the list of bad blocks"),
    flag(b'M', "do nothing if the file system is mounted"),
    flag(b'n', "change nothing, answer no"),
    with(b'N', "name", "call the file system so in messages"),
    flag(b'p', "repair what is safe without a person, else halt"),
    with(b'P', "size", "taken and ignored: the size of a buffer that is not used"),
    flag(b'r', "taken and ignored, as by e2fsck"),
    flag(b's', "taken and ignored: byte swapping is no more"),
    flag(b'S', "taken and ignored: byte swapping is no more"),
    flag(b't', "say how long it took; twice: each phase"),
    flag(b'T', "taken and ignored: no title is printed"),
    flag(b'v', "say more"),
    flag(b'V', "say the version and end"),
    flag(b'y', "repair everything, without a question"),
    with(b'z', "file", "save what is written over, for floe undo and e2undo"),
];

/// The short option of a letter.
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
    plain("bmap2extent", "files with block maps get extents"),
    plain("check_encoding", "names in casefolded directories must be valid text"),
    plain("discard", "tell the device which blocks and inodes are unused, if it is clean"),
    valued("ea_ver", "version", "taken; the version that a block of attributes states is judged"),
    plain("fixes_only", "mend and do nothing else: no indexes, no smaller extent trees"),
    plain("fragcheck", "list where files are not contiguous"),
    plain("inode_count_fullmap", "taken and ignored: link counts are exact and fast either way"),
    plain("journal_only", "replay the journal and do nothing else"),
    valued("memory", "size", "take no more memory than this; K, M, G and T are units"),
    plain("no_inode_count_fullmap", "taken and ignored: see inode_count_fullmap"),
    plain("no_optimize_extents", "leave extent trees that could be smaller"),
    plain("nodiscard", "do not discard; the default"),
    plain("optimize_extents", "make extent trees smaller; the default"),
    valued("readahead_kb", "n", "taken and ignored: reads are planned by place"),
    plain("unshare_blocks", "files that share blocks get their own"),
];

/// All relations of `e2fsck.conf`, by section.
#[cfg(any(test, feature = "generate"))]
pub(crate) const CONF: &[(&str, &[Named])] = &[
    (
        "options",
        &[
            valued("accept_time_fudge", "bool", "times up to a day in the future are believed"),
            valued("allow_cancellation", "bool", "exit 0 instead of 32 if the user ends it"),
            valued("broken_system_clock", "bool", "do not judge by the clock"),
            valued("buggy_init_scripts", "bool", "an older name of accept_time_fudge"),
            valued("clear_test_fs_flag", "bool", "offer to clear the flag of test file systems"),
            valued("defer_check_on_battery", "bool", "check half as often on battery"),
            valued("indexed_dir_slack_percentage", "percent", "taken; directories keep 20 percent"),
            valued("inode_count_fullmap", "bool", "taken and ignored"),
            valued("log_dir", "folder", "folder of the log"),
            valued("log_dir_fallback", "folder", "folder of the log if log_dir cannot be used"),
            valued("log_dir_wait", "bool", "taken; the log is left out if no folder can be used"),
            valued("log_filename", "name", "file that gets a copy of the output"),
            valued("max_count_problems", "n", "findings of a kind that are shown"),
            valued("no_optimize_extents", "bool", "as -E no_optimize_extents"),
            valued("problem_log_filename", "name", "file that gets the findings as JSON"),
            valued("readahead_kb", "n", "taken and ignored"),
            valued("readahead_mem_pct", "percent", "taken and ignored"),
            valued("report_features", "bool", "say the features with -v"),
            valued("report_time", "bool", "as -tt"),
            valued("report_verbose", "bool", "as -v"),
        ],
    ),
    ("defaults", &[valued("undo_dir", "folder", "undo files are made here; none: they are not")]),
    (
        "problems",
        &[
            valued("description", "text", "taken and ignored: messages are Floe's own"),
            valued("force_no", "bool", "never repair it"),
            valued("max_count", "n", "findings of this kind that are shown"),
            valued("no_default", "bool", "taken and ignored: questions have no default answer"),
            valued("no_nomsg", "bool", "taken and ignored: what is found is said"),
            valued("no_ok", "bool", "it is no damage if it stays"),
            valued("not_a_fix", "bool", "its repair is not counted as one"),
            valued("preen_nomessage", "bool", "-p does not mention it"),
            valued("preen_ok", "bool", "-p repairs it, or does not"),
        ],
    ),
    (
        "scratch_files",
        &[
            valued("directory", "folder", "scratch files of a repair are made here"),
            valued("dirinfo", "bool", "taken and ignored"),
            valued("icount", "bool", "taken and ignored"),
            valued("numdirs_threshold", "n", "taken and ignored"),
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

    /// The table in the documentation has a row for each option, and none for others.
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
        // Variables of the environment have rows, too, which no parser knows.
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
