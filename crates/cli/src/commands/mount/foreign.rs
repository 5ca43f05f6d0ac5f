//! Options of mount(8), ext4, fuse2fs and FUSE that are no concern of Floe's, and those that it refuses because a program or a
//! person would rely on what it does not do.

/// Options without effect here, with or without a value: what they ask for is always or never done, matters to speed or
/// display alone, or is done by mount(8) and systemd.
const WITHOUT_EFFECT: &[&str] = &[
    // mount(8), fstab, systemd
    "defaults",
    "auto",
    "noauto",
    "user",
    "users",
    "nouser",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "loop",
    "comment",
    "lazytime",
    "nolazytime",
    "iversion",
    "noiversion",
    "mand",
    "nomand",
    "silent",
    "loud",
    "dev",
    "suid",
    "exec",
    // ext2, ext3, ext4
    "bsddf",
    "minixdf",
    "check",
    "nocheck",
    "orlov",
    "oldalloc",
    "user_xattr",
    "acl",
    "block_validity",
    "noblock_validity",
    "auto_da_alloc",
    "noauto_da_alloc",
    "barrier",
    "nobarrier",
    "journal_checksum",
    "nojournal_checksum",
    "stripe",
    "init_itable",
    "noinit_itable",
    "inode_readahead_blks",
    "max_batch_time",
    "min_batch_time",
    "journal_ioprio",
    "i_version",
    "prefetch_block_bitmaps",
    "no_prefetch_block_bitmaps",
    "mb_optimize_scan",
    "dioread_lock",
    "nodioread_nolock",
    "dioread_nolock",
    "debug",
    "mbcache",
    "nombcache",
    "no_mbcache",
    // fuse2fs and libfuse
    "kernel",
    "fuse2fs_debug",
    "auto_unmount",
    "entry_timeout",
    "attr_timeout",
    "negative_timeout",
    "no_default_opts",
    "cache_size",
    "directio",
    "timing",
    "oom_score_adj",
    "default_permissions",
    "max_read",
    "big_writes",
    "nonempty",
    "blkdev",
    "blksize",
];

/// Options that promise something that is not kept here, the values that ask for nothing else than is done anyway, and what to
/// do instead.
const REFUSED: &[(&str, &[&str], &str)] = &[
    (
        "data",
        &["ordered", "writeback"],
        "content is written before the change that maps it, and not to the journal as well; `sync` makes each write durable",
    ),
    (
        "data_err",
        &["ignore"],
        "programs are told of content that cannot be written by fsync; `errors=remount-ro` or `errors=shutdown` ends writing then",
    ),
    ("resuid", &["0"], "the last blocks are kept for root alone"),
    ("resgid", &["0"], "the last blocks are kept for root alone"),
    ("max_dir_size_kb", &["0"], "directories may become as large as the disk has room for"),
    ("noacl", &[], "access lists always count; `setfacl -b` removes one"),
    ("nouser_xattr", &[], "extended attributes of users are always served"),
    ("nouid32", &[], "owners have 32 bits"),
    ("abort", &[], "`floe umount` ends a mount, and `errors=shutdown` ends one that meets damage"),
    ("journal_dev", &[], "`--external-journal PATH` names a journal, and mounts read-only"),
    ("journal_path", &[], "`--external-journal PATH` names a journal, and mounts read-only"),
    // Without a name they are switched off.
    ("usrjquota", &[""], QUOTA),
    ("grpjquota", &[""], QUOTA),
    ("jqfmt", &[], QUOTA),
    ("dax", &["never"], "content goes through memory"),
    ("inlinecrypt", &[], ENCRYPTED),
    ("test_dummy_encryption", &[], ENCRYPTED),
    ("context", &[], LABELS),
    ("fscontext", &[], LABELS),
    ("defcontext", &[], LABELS),
    ("rootcontext", &[], LABELS),
    ("remount", &[], "unmount it, and mount it with other options"),
    ("nosymfollow", &[], "symbolic links are followed"),
];

const QUOTA: &str = "quota files with names are not kept; `tune2fs -O quota` makes the hidden ones, for which `usrquota`, \
                     `grpquota` and `prjquota` are the options";
const ENCRYPTED: &str = "encrypted files are shown without their keys";
const LABELS: &str = "labels of security modules are not given";

/// Judges an option that is not one of Floe's: `None` if it is unknown, `Err` with the reason if it is refused.
pub(super) fn judge(name: &str, value: Option<&str>) -> Option<Result<(), &'static str>> {
    if let Some((_, as_is, why)) = REFUSED.iter().find(|(refused, ..)| *refused == name) {
        let is_done = value.is_some_and(|value| as_is.contains(&value));
        return Some(if is_done { Ok(()) } else { Err(why) });
    }
    let elsewhere = name.starts_with("x-") || name.starts_with("X-");
    (elsewhere || WITHOUT_EFFECT.contains(&name)).then_some(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::super::options::Options;
    use super::*;

    /// The options that ext4(5) and the kernel's page on ext4 name, with those for all file systems of mount(8): `+` is obeyed,
    /// `=` asks for nothing that would be noticed, `-` is refused.
    const ALL: &str = "
        + ro rw atime noatime diratime nodiratime relatime norelatime strictatime nostrictatime nodev noexec nosuid
        + sync async dirsync errors=continue errors=remount-ro errors=panic commit=7 commit=0 norecovery noload sb=8193
        + delalloc nodelalloc discard nodiscard quota noquota usrquota grpquota prjquota grpid bsdgroups nogrpid sysvgroups
        + journal_async_commit
        = defaults auto noauto dev suid exec group owner user nouser users nofail _netdev lazytime nolazytime iversion
        = noiversion mand nomand silent loud x-systemd.automount X-mount.mkdir=755 acl user_xattr bsddf minixdf check=none
        = nocheck debug orlov oldalloc barrier barrier=0 barrier=1 nobarrier journal_checksum nojournal_checksum
        = inode_readahead_blks=32 stripe=16 max_batch_time=15000 min_batch_time=0 journal_ioprio=3
        = auto_da_alloc noauto_da_alloc noinit_itable init_itable=10 init_itable block_validity noblock_validity
        = dioread_lock dioread_nolock i_version nombcache mb_optimize_scan=1 prefetch_block_bitmaps data=ordered
        = data=writeback data_err=ignore resuid=0 resgid=0 max_dir_size_kb=0 dax=never usrjquota= grpjquota= sb=1
        - data=journal data_err=abort resuid=1000 resgid=4 max_dir_size_kb=1024 noacl nouser_xattr nouid32 abort
        - journal_dev=2049 journal_path=/dev/sdb usrjquota=aquota.user grpjquota=aquota.group jqfmt=vfsv1 dax dax=always
        - dax=inode inlinecrypt test_dummy_encryption context=x fscontext=x defcontext=x rootcontext=x remount nosymfollow";

    #[test]
    fn every_option_of_ext4_is_obeyed_harmless_or_refused_with_a_reason() {
        let standard = Options::parse(&[], false).unwrap();
        let page =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/mount.md"));
        let page = page.unwrap();
        let mut seen = 0;
        for line in ALL.lines().filter(|line| !line.is_empty()) {
            let mut words = line.split_whitespace();
            let class = words.next().unwrap();
            for word in words {
                let parsed = Options::parse(&[word.to_owned()], false);
                let name = word.split('=').next().unwrap();
                match class {
                    // That each has its effect, the tests of `options.rs` and of mounts say; here, that it is not among the others.
                    "+" => assert!(parsed.is_ok() && judge(name, None).is_none(), "{word}"),
                    "=" => assert_eq!(parsed.unwrap(), standard, "{word}"),
                    _ => {
                        let text = parsed.unwrap_err().to_string();
                        assert!(
                            text.contains(name) && text.len() > name.len() + 30,
                            "{word}: {text}"
                        );
                        assert!(
                            page.contains(&format!("`{name}")),
                            "docs/mount.md does not name {name}"
                        );
                    }
                }
                seen += 1;
            }
        }
        assert!(seen > 120, "{seen}");
    }
}
