//! The boots: the damage of each, and the expected observations. `scenes.sh` runs in the guest.

/// A disk of the guest, in device order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disk {
    /// `/`, fsck pass 1.
    Root,
    /// `/data`, fsck pass 2: systemd-fsck@ checks it.
    Data,
    /// `/vault`, which floe-repair@ repairs before it is mounted, and which is optional.
    Vault,
}

/// How a boot ends.
#[derive(Clone, Copy)]
pub(super) enum End {
    /// The scene completed.
    Done,
    /// The system prints this and waits for a person.
    Stops(&'static str),
}

/// Final state of a disk.
pub(super) enum Left {
    /// A clean file system.
    Clean,
    /// The old content, except that the superblock records errors.
    AsItWas,
    /// Damage, according to e2fsck.
    Damaged,
}

/// The checker of the root file system.
#[derive(Clone, Copy)]
pub(super) enum Initramfs {
    /// The initramfs, which includes the program.
    Checks,
    /// systemd-fsck-root, because this initramfs lacks the program.
    LeavesIt,
}

/// One boot.
pub(super) struct Scene {
    pub(super) name: &'static str,
    pub(super) initramfs: Initramfs,
    /// Commands for debugfs.
    pub(super) damage: &'static [(Disk, &'static str)],
    pub(super) end: End,
    /// Texts that must appear on the console, which includes the journal.
    pub(super) heard: &'static [&'static str],
    /// Texts that must not appear.
    pub(super) never: &'static [&'static str],
    pub(super) left: &'static [(Disk, Left)],
}

/// Not unmounted, and a wrong link count: preen repairs it.
const HARMLESS: &str = "ssv state 0\nsif <2> links_count 77\n";
/// A file without a name: needs a person, according to e2fsck too.
const NAMELESS: &str = "ssv state 0\nunlink letter\n";
/// A dangling name: removing it is a loss.
const LOSS: &str = "ssv state 0\nclri letter\n";

/// The boots, in this order: each finds the result of the previous one.
pub(super) const SCENES: &[Scene] = &[
    // After a repair of the mounted root, systemd reboots the system.
    Scene {
        name: "mended",
        initramfs: Initramfs::LeavesIt,
        damage: &[(Disk::Root, HARMLESS), (Disk::Data, HARMLESS), (Disk::Vault, HARMLESS)],
        end: End::Done,
        heard: &[
            "root: inode 2 says that it has 77 names",
            "root: this is the mounted root file system",
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
