//! Linux in a guest, as a judge of images and as a source of file systems: `cargo xtask kernel-load`,
//! `linux-fields`, `boot` and others. Other tools use the judge.

mod boot;
mod faulty_device;
pub mod findings;
mod guest;
mod kernel_load;
mod linux_fields;
pub mod linux_judge;
mod online_lvm;
mod vm_host;

pub use guest::user_mode_linux;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Trials of Floe with Linux in a guest")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Install the Debian packages in a complete Debian and boot it with damage (needs root,
    /// debootstrap, a kernel)
    Boot(boot::Args),
    /// Check, repair and undo on a block device with a bad block, in a guest (needs dmsetup and a kernel)
    FaultyDevice(faulty_device::Args),
    /// Let Linux fill file systems in a guest, cut its power, and judge the result (needs qemu)
    KernelLoad(kernel_load::Args),
    /// Set fields of system inodes, files and the superblock to odd values, and judge with Floe,
    /// e2fsck and Linux
    LinuxFields(linux_fields::Args),
    /// Check mounted file systems on LVM volumes, thin and thick, in a guest (needs qemu and lvm2)
    OnlineLvm(online_lvm::Args),
    /// Damage the cube of one of three guests whose disks lie in cubes of one mount (needs root, FUSE and a kernel)
    VmHost(vm_host::Args),
    /// The part of `faulty-device` inside its guest
    #[command(hide = true)]
    GuestFaulty(faulty_device::GuestArgs),
    /// The part of the Linux judge inside its guest
    #[command(hide = true)]
    GuestJudge(linux_judge::GuestArgs),
    /// The part of `kernel-load` inside its guest
    #[command(hide = true)]
    GuestLoad(kernel_load::GuestArgs),
    /// The part of `online-lvm` inside its guest
    #[command(hide = true)]
    GuestLvm(online_lvm::GuestArgs),
    /// The part of `vm-host` inside its guests
    #[command(hide = true)]
    GuestTenant(vm_host::GuestArgs),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    match run(Args::parse().chore) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vm: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> Result<()> {
    match chore {
        Chore::Boot(args) => boot::run(&args),
        Chore::FaultyDevice(args) => faulty_device::run(&args),
        Chore::KernelLoad(args) => kernel_load::run(&args),
        Chore::LinuxFields(args) => linux_fields::run(&args),
        Chore::OnlineLvm(args) => online_lvm::run(&args),
        Chore::VmHost(args) => vm_host::run(&args),
        Chore::GuestFaulty(args) => faulty_device::inside(&args),
        Chore::GuestJudge(args) => linux_judge::inside(&args),
        Chore::GuestLoad(args) => kernel_load::inside(&args),
        Chore::GuestLvm(args) => online_lvm::inside(&args),
        Chore::GuestTenant(args) => vm_host::inside(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn xtask_knows_all_commands() {
        let listed = include_str!("../../../xtask/src/tools.rs");
        for command in super::Args::command().get_subcommands().filter(|at| !at.is_hide_set()) {
            assert!(listed.contains(&format!("\"{}\"", command.get_name())), "{command}");
        }
    }
}
