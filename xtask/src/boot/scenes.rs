//! The boots: with what damage, and what has to be seen. What runs in the guest is `scenes.sh`.

/// A disk of the guest, in the order of its disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disk {
    /// `/`, pass number 1.
    Root,
    /// `/data`, pass number 2: systemd-fsck@ checks it.
    Data,
    /// `/vault`, which floe-repair@ repairs before it is mounted, and which nobody has to have.
    Vault,
}

/// How a boot ends.
#[derive(Clone, Copy)]
pub(super) enum End {
    /// The scene was played to its end.
    Done,
    /// Somebody says this and waits for a person.
    Stops(&'static str),
}

/// What is on a disk in the end.
pub(super) enum Left {
    /// A clean file system.
    Clean,
    /// What was there before, but for the superblock, which notes errors.
    AsItWas,
    /// Damage, as e2fsck sees it.
    Damaged,
}

/// Who checks the root.
#[derive(Clone, Copy)]
pub(super) enum Initramfs {
    /// The initramfs, which has the program.
    Checks,
    /// systemd-fsck-root, for this initramfs has no program.
    LeavesIt,
}

/// One boot.
pub(super) struct Scene {
    pub(super) name: &'static str,
    pub(super) initramfs: Initramfs,
    /// Requests to debugfs.
    pub(super) damage: &'static [(Disk, &'static str)],
    pub(super) end: End,
    /// What some line of the console, which has the journal, contains.
    pub(super) heard: &'static [&'static str],
    /// What no line contains.
    pub(super) never: &'static [&'static str],
    pub(super) left: &'static [(Disk, Left)],
}

/// Nobody unmounted it, and a count of links is wrong: preen mends it.
const HARMLESS: &str = "ssv state 0\nsif <2> links_count 77\n";
/// A file has no name any more: a person has to look, says e2fsck, too.
const NAMELESS: &str = "ssv state 0\nunlink letter\n";
/// A name leads nowhere: to remove it is a loss.
const LOSS: &str = "ssv state 0\nclri letter\n";

/// The boots, in this order: each finds what the one before left.
pub(super) const SCENES: &[Scene] = &[
    // systemd starts the system anew after a repair of the mounted root.
    Scene {
        name: "mended",
        initramfs: Initramfs::LeavesIt,
        damage: &[(Disk::Root, HARMLESS), (Disk::Data, HARMLESS), (Disk::Vault, HARMLESS)],
        end: End::Done,
        heard: &[
            "root: inode 2 says that it has 77 names",
            "root: this is the root file system, and it is mounted",
            "fsck failed with exit status 3.",
            "Requesting reboot.target",
            "data: inode 2 says that it has 77 names",
            "inode 2 says that it has 77 names, found are 3",
        ],
        never: &["emergency mode"],
        left: &[(Disk::Root, Left::Clean), (Disk::Data, Left::Clean), (Disk::Vault, Left::Clean)],
    },
    Scene {
        name: "initramfs",
        initramfs: Initramfs::Checks,
        damage: &[(Disk::Root, HARMLESS)],
        end: End::Done,
        heard: &["[/sbin/fsck.ext4 (1) -- "],
        never: &["Requesting reboot.target", "fsck not present"],
        left: &[(Disk::Root, Left::Clean)],
    },
    Scene {
        name: "units",
        initramfs: Initramfs::Checks,
        damage: &[],
        end: End::Done,
        heard: &[],
        never: &[],
        left: &[(Disk::Root, Left::Clean)],
    },
    Scene {
        name: "repair-refused",
        initramfs: Initramfs::Checks,
        damage: &[(Disk::Vault, LOSS)],
        end: End::Done,
        heard: &["DAMAGE LEFT"],
        never: &["emergency mode"],
        left: &[(Disk::Data, Left::Clean), (Disk::Vault, Left::Damaged)],
    },
    Scene {
        name: "emergency",
        initramfs: Initramfs::Checks,
        damage: &[(Disk::Data, NAMELESS)],
        end: End::Done,
        heard: &[
            "data: THIS NEEDS A PERSON",
            "fsck failed with exit status 4.",
            "Dependency failed for data.mount",
            "Reached target emergency.target",
        ],
        never: &["Reached target multi-user.target"],
        left: &[(Disk::Data, Left::AsItWas)],
    },
    Scene {
        name: "initramfs-stops",
        initramfs: Initramfs::Checks,
        damage: &[(Disk::Root, NAMELESS)],
        end: End::Stops("requires a manual fsck"),
        heard: &["root: THIS NEEDS A PERSON", "fsck exited with status code 4"],
        never: &["Welcome to"],
        left: &[(Disk::Root, Left::Damaged)],
    },
];
