//! `cargo xtask online-lvm`: tests `floe check --online` on LVM volumes with real LVM tools and a
//! real device mapper, which few test machines have: in a guest (`guest`).

mod inside;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use floe_testkit::Image;

use crate::guest::{Kernel, Machine, Root};
use crate::kernel_load;
use floe_testkit::tool::built_floe;

pub(crate) use inside::{Args as GuestArgs, run as inside};

/// Device mapper modules, in addition to those for disks and ext4.
const MODULES: &[&str] =
    &["dm_mod", "dm_bufio", "dm_snapshot", "dm_bio_prison", "dm_persistent_data", "dm_thin_pool"];
/// There is no udev to wait for, and no other process that could change the volumes.
const LVM_CONF: &str = "devices {
    use_devicesfile = 0
    obtain_device_list_from_udev = 0
    external_device_info_source = \"none\"
    types = [ \"ubd\", 16 ]
}
activation {
    udev_sync = 0
    udev_rules = 0
    monitoring = 0
}
global {
    thin_check_executable = \"\"
    use_lvmpolld = 0
    event_activation = 0
}
backup {
    backup = 0
    archive = 0
}
";
const MEMORY_MIB: u32 = 640;
const DISK_MIB: u64 = 512;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of checks of each file system under load
    #[arg(long, default_value_t = 10)]
    checks: u32,
    /// The program to test; by default target/release/floe or target/debug/floe
    #[arg(long)]
    floe: Option<PathBuf>,
    /// The program `lvm` (Debian: apt install lvm2)
    #[arg(long, default_value = "/sbin/lvm")]
    lvm: PathBuf,
    /// The kernel to boot, as for `kernel-load`
    #[arg(long)]
    kernel: Option<PathBuf>,
}

/// Runs the command; fails if a check gives a wrong result or leaves a snapshot behind.
pub(crate) fn run(args: &Args) -> Result<()> {
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
    if !args.lvm.exists() {
        bail!("no {}: apt install lvm2, or give its path with --lvm", args.lvm.display());
    }
    let kernel = Kernel::find(args.kernel.as_deref())?;
    let mut root = Root::new(&std::env::current_exe().context("finding this program")?)?;
    root.program("bin/floe", &floe)?;
    root.program("sbin/lvm", &args.lvm)?;
    for name in ["lvs", "lvcreate", "lvremove"] {
        root.link(&format!("sbin/{name}"), "lvm");
    }
    for name in ["mke2fs", "debugfs"] {
        let path = ["/usr/sbin", "/sbin"].map(|folder| Path::new(folder).join(name));
        let path = path.iter().find(|path| path.exists());
        root.program(&format!("sbin/{name}"), path.with_context(|| format!("no {name}"))?)?;
    }
    root.text("etc/lvm/lvm.conf", LVM_CONF);
    let modules = [kernel_load::MODULES, MODULES].concat();
    let machine = Machine::new(&kernel, root, &modules, MEMORY_MIB)?;
    let disk = Image::empty(DISK_MIB << 20)?;
    let order = vec!["guest-lvm".to_owned(), format!("--checks={}", args.checks)];
    let mut guest = machine.boot(&[disk.path()], &order)?;
    for _ in 0..inside::PARTS {
        println!("{}", guest.wait_for("tried")?);
    }
    guest.wait_for("done")?;
    guest.finish(Duration::from_secs(60))?;
    Ok(())
}
