//! Floe's development commands: `cargo xtask tidy | ci | images | bench | differential`.

mod bench;
mod boot;
mod ci;
mod conflicts;
mod crash;
mod differential;
mod engines;
mod eta;
mod faulty_device;
mod fs_bench;
mod fuzz;
mod guest;
mod image_bench;
mod kernel_load;
mod link_memory;
mod linux_fields;
mod linux_judge;
mod measure;
mod memory;
mod mount_damage;
mod mount_ends;
mod mount_suite;
mod mounted;
mod online_lvm;
mod roofline;
mod salvage_compare;
mod scaling;
mod screenshots;
mod shards;
mod simulate;
mod tidy;
mod tuned;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "xtask", about = "Floe's own chores")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Verify the rules of the repository layout
    Tidy(tidy::Args),
    /// Run everything that continuous integration runs
    Ci,
    /// Compare Floe with e2fsck on randomly damaged images
    Differential(differential::Args),
    /// Build the static program, optimised by a profile of checks and repairs (`make static`)
    Tuned(tuned::Args),
    /// Measure Floe, e2fsck and the roofline on large images
    Bench(bench::Args),
    /// Compare progress predictions with actual times
    Eta(eta::Args),
    /// Count pairs of commutative calls that touch the same memory (needs cc and ar)
    Conflicts(conflicts::Args),
    /// Fail the power at every write of journals and of their recovery
    Crash(crash::Args),
    /// Let Linux fill file systems in a guest, cut its power, and judge the result (needs qemu)
    KernelLoad(kernel_load::Args),
    /// The part of `kernel-load` inside its guest
    #[command(hide = true)]
    GuestLoad(kernel_load::GuestArgs),
    /// Set fields of system inodes, files and the superblock to odd values, and judge with Floe,
    /// e2fsck and Linux
    LinuxFields(linux_fields::Args),
    /// The part of the Linux judge inside its guest
    #[command(hide = true)]
    GuestJudge(linux_judge::GuestArgs),
    /// Check mounted file systems on LVM volumes, thin and thick, in a guest (needs qemu and lvm2)
    OnlineLvm(online_lvm::Args),
    /// The part of `online-lvm` inside its guest
    #[command(hide = true)]
    GuestLvm(online_lvm::GuestArgs),
    /// Check, repair and undo on a block device with a bad block, in a guest (needs dmsetup and a kernel)
    FaultyDevice(faulty_device::Args),
    /// The part of `faulty-device` inside its guest
    #[command(hide = true)]
    GuestFaulty(faulty_device::GuestArgs),
    /// Install the Debian packages in a complete Debian and boot it with damage (needs root,
    /// debootstrap, a kernel)
    Boot(boot::Args),
    /// Measure image builders: floe mkfs --from, mke2fs -d, genext2fs, tar onto a mount
    ImageBench(image_bench::Args),
    /// Destroy metadata and compare the files that floe salvage, e2fsck, photorec, ext4magic and
    /// extundelete bring back
    SalvageCompare(salvage_compare::Args),
    /// Write the base images of the tests to a folder, optionally damaged
    Images(bench::ImageArgs),
    /// Take screenshots of report pages for docs/images (needs chromium)
    Screenshots(screenshots::Args),
    /// Only read, checksum and walk an image: the lower bound that `bench` compares with
    Roofline(roofline::Args),
    /// Count the work of each of many threads in a check, regardless of the machine's cores (needs
    /// valgrind and strace)
    Scaling(scaling::Args),
    /// Count the work of one check by many machines: of shards and of their merge
    Shards(shards::Args),
    /// Replay the reads of a check by io_uring and by blocking threads, beside Floe (needs strace
    /// and fio)
    Engines(engines::Args),
    /// Simulate the scheduling policies with more workers than this machine has cores
    SimulateSchedule(simulate::Args),
    /// Measure the memory for counting links, by structure and inodes in use
    LinkMemory(link_memory::Args),
    /// Measure the memory of checks, by method, inodes in use and size; fit a formula; verify
    /// memory limits
    Memory(memory::Args),
    /// Let a load use mounts of damaged images, and see whether they spread the damage (needs root)
    MountDamage(mount_damage::Args),
    /// Let programs that others wrote use a mount (needs root; skips programs not installed)
    MountSuite(mount_suite::Args),
    /// Measure loads on mounts by Linux, fuse2fs and Floe, and on the least that FUSE costs (needs
    /// root, cc and fuse2fs)
    FsBench(fs_bench::Args),
    /// End mounts in use by umount, signals and SIGKILL, and see whether anything is lost (needs root)
    MountEnds(mount_ends::Args),
    /// Run one program and print its time and memory (used by `bench`)
    #[command(hide = true)]
    Measure(measure::Args),
    /// Read the ranges in a list (used by `bench --cold`)
    #[command(hide = true)]
    ReadSameBytes(bench::same_bytes::Args),
    /// Fuzz the decoders, or the checker with whole images (needs nightly and cargo-fuzz)
    Fuzz(fuzz::Args),
}

fn main() -> ExitCode {
    match run(Args::parse().chore) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> Result<()> {
    match chore {
        Chore::Tidy(args) => tidy::run(&args),
        Chore::Ci => ci::run(),
        Chore::Differential(args) => differential::run(&args),
        Chore::Tuned(args) => tuned::run(&args),
        Chore::Bench(args) => bench::run(&args),
        Chore::ImageBench(args) => image_bench::run(&args),
        Chore::Eta(args) => eta::run(&args),
        Chore::Conflicts(args) => conflicts::run(&args),
        Chore::Crash(args) => crash::run(&args),
        Chore::KernelLoad(args) => kernel_load::run(&args),
        Chore::GuestLoad(args) => kernel_load::inside(&args),
        Chore::LinuxFields(args) => linux_fields::run(&args),
        Chore::GuestJudge(args) => linux_judge::inside(&args),
        Chore::OnlineLvm(args) => online_lvm::run(&args),
        Chore::GuestLvm(args) => online_lvm::inside(&args),
        Chore::FaultyDevice(args) => faulty_device::run(&args),
        Chore::GuestFaulty(args) => faulty_device::inside(&args),
        Chore::Boot(args) => boot::run(&args),
        Chore::SalvageCompare(args) => salvage_compare::run(&args),
        Chore::Images(args) => bench::images(&args),
        Chore::Screenshots(args) => screenshots::run(&args),
        Chore::Roofline(args) => roofline::run(&args),
        Chore::Scaling(args) => scaling::run(&args),
        Chore::Shards(args) => shards::run(&args),
        Chore::Engines(args) => engines::run(&args),
        Chore::SimulateSchedule(args) => simulate::run(&args),
        Chore::LinkMemory(args) => link_memory::run(&args),
        Chore::Memory(args) => memory::run(&args),
        Chore::MountDamage(args) => mount_damage::run(&args),
        Chore::FsBench(args) => fs_bench::run(&args),
        Chore::MountEnds(args) => mount_ends::run(&args),
        Chore::MountSuite(args) => mount_suite::run(&args),
        Chore::Measure(args) => measure::run(&args),
        Chore::ReadSameBytes(args) => bench::same_bytes::run(&args),
        Chore::Fuzz(args) => fuzz::run(&args),
    }
}
