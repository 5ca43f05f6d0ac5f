//! A Debian with Floe's packages and an initramfs in a folder, and a disk image made from it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use floe_testkit::{Image, build};
use tempfile::TempDir;

use super::scenes::Initramfs;
use crate::guest::Kernel;

/// Packages beyond debootstrap's minimum: without them the system would not resemble a server.
const PACKAGES: &str = "systemd-sysv,udev,kmod,e2fsprogs,initramfs-tools,busybox,zstd,lvm2,man-db";
/// Floe's packages.
const NAMES: [&str; 2] = ["floe", "floe-fsck"];
/// A file that exists once debootstrap has completed.
const MADE: &str = "var/lib/dpkg/info/lvm2.list";
/// Size of its disk.
const DISK_MIB: u64 = 2048;
/// The boot locates file systems by label. The vault is optional.
const FSTAB: &str = "LABEL=root / ext4 errors=remount-ro 0 1
LABEL=data /data ext4 defaults 0 2
LABEL=vault /vault ext4 nofail,x-systemd.requires=floe-repair@dev-disk-by\\x2dlabel-vault.service 0 0
";
/// Without this, an initramfs built without a visible root device lacks the fsck program.
const INITRAMFS: &str = "FSTYPE=ext4\n";
/// Forwards the journal to the console.
const JOURNAL: &str = "[Journal]\nForwardToConsole=yes\nMaxLevelConsole=info\n";
const SCENE_UNIT: &str = "[Unit]
Description=What is to be seen after this boot
DefaultDependencies=no
After=multi-user.target emergency.target
Conflicts=shutdown.target
Before=shutdown.target

[Service]
Type=oneshot
ExecStart=/bin/bash /usr/local/sbin/floe-scene
TimeoutStartSec=infinity

[Install]
WantedBy=multi-user.target emergency.target
";

/// A system in a folder.
pub(super) struct System {
    folder: TempDir,
    /// Version of the kernel whose modules are installed.
    version: String,
}

impl System {
    /// Creates the system, from the folder `base` or with debootstrap.
    pub(super) fn make(
        base: Option<&Path>,
        suite: &str,
        mirror: &str,
        kernel: &Kernel,
    ) -> Result<Self> {
        let modules = kernel.modules().context("the kernel has no folder with modules")?;
        let version = modules.file_name().and_then(OsStr::to_str);
        let version = version.context("a version that is not UTF-8")?.to_owned();
        // On disk, because the system is too large for a memory file system.
        let folder = tempfile::Builder::new().prefix("floe-boot-").tempdir()?;
        let system = Self { folder, version };
        fs::set_permissions(system.folder.path(), fs::Permissions::from_mode(0o755))?;
        let root = system.root();
        match base {
            Some(base) => {
                if !base.join(MADE).exists() {
                    debootstrap(base, suite, mirror)?;
                }
                run(Command::new("cp").arg("-a").arg(base).arg(&root))?;
            }
            None => debootstrap(&root, suite, mirror)?,
        }
        let below = root.join("usr/lib/modules");
        fs::create_dir_all(&below)?;
        run(Command::new("cp").arg("-a").arg(modules).arg(&below))?;
        system.inside(&["depmod", &system.version])?;
        // Installed like a kernel package's files, so that other packages detect a kernel.
        let boot = root.join("boot");
        fs::write(boot.join(format!("config-{}", system.version)), kernel.config()?)?;
        fs::copy(kernel.image(), boot.join(format!("vmlinuz-{}", system.version)))?;
        for (path, text) in [
            ("etc/fstab", FSTAB),
            ("etc/hostname", "floe\n"),
            ("etc/systemd/journald.conf.d/console.conf", JOURNAL),
            ("etc/systemd/system/floe-scene.service", SCENE_UNIT),
            ("usr/local/sbin/floe-scene", include_str!("scenes.sh")),
            ("letter", "a file of the root\n"),
        ] {
            let path = root.join(path);
            if let Some(above) = path.parent() {
                fs::create_dir_all(above)?;
            }
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        for folder in ["data", "vault", "srv"] {
            fs::create_dir_all(root.join(folder))?;
        }
        system.inside(&["systemctl", "enable", "floe-scene.service"])?;
        Ok(system)
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// Installs, updates, removes and reinstalls the packages, with an initramfs; returns the
    /// observations.
    pub(super) fn try_packages(&self, packages: &Path) -> Result<Vec<String>> {
        let root = self.root();
        for name in NAMES {
            let package = newest(packages, &format!("{name}_"))?;
            fs::copy(&package, root.join("var/tmp").join(format!("{name}.deb")))?;
        }
        fs::write(root.join("var/tmp/packages.sh"), include_str!("packages.sh"))?;
        let without = self.initramfs(Initramfs::LeavesIt);
        let inside = Path::new("/").join(without.strip_prefix(&root)?);
        self.inside(&[
            "mkinitramfs".as_ref(),
            "-o".as_ref(),
            inside.as_os_str(),
            self.version.as_ref(),
        ])?;
        fs::write(root.join("etc/initramfs-tools/conf.d/root"), INITRAMFS)?;
        let said = self.inside(&["bash", "/var/tmp/packages.sh", &self.version])?;
        Ok(said.lines().filter_map(|line| Some(line.strip_prefix("tried ")?.to_owned())).collect())
    }

    /// Path of the initramfs.
    pub(super) fn initramfs(&self, which: Initramfs) -> PathBuf {
        let name = match which {
            Initramfs::Checks => format!("initrd.img-{}", self.version),
            Initramfs::LeavesIt => format!("without-checks-{}", self.version),
        };
        self.root().join("boot").join(name)
    }

    /// A disk image with the system.
    pub(super) fn image(&self) -> Result<Image> {
        let path = self.folder.path().join("root.img");
        fs::File::create(&path)?.set_len(DISK_MIB << 20)?;
        let root = self.root();
        let root = root.to_str().context("a folder whose path is not UTF-8")?;
        build::mke2fs(&path, &["-t", "ext4", "-L", "root", "-d", root])?;
        Image::open(&path)
    }

    /// Runs a program in the system, with the mounts that it needs; they vanish with it.
    fn inside<S: AsRef<OsStr>>(&self, command: &[S]) -> Result<String> {
        let mut program = Command::new("unshare");
        program.args(["--mount", "--propagation", "private", "sh", "-ec"]);
        program.arg(
            "root=$1; shift; mount -t proc proc \"$root/proc\"; mount --rbind /dev \"$root/dev\"; \
             exec chroot \"$root\" \"$@\"",
        );
        program.arg("sh").arg(self.root()).args(command);
        program.env_clear();
        program.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        program.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
        run(&mut program)
    }
}

/// Lists the missing prerequisites of a system.
pub(super) fn missing(base: Option<&Path>, packages: &Path) -> Vec<String> {
    let mut missing = Vec::new();
    if !rustix::process::geteuid().is_root() {
        missing.push("root: for debootstrap and chroot".to_owned());
    }
    let is_made = base.is_some_and(|base| base.join(MADE).exists());
    if !is_made && Command::new("debootstrap").arg("--version").output().is_err() {
        missing.push("debootstrap (Debian: apt install debootstrap), and the network".to_owned());
    }
    for name in NAMES {
        missing.extend(newest(packages, &format!("{name}_")).err().map(|error| error.to_string()));
    }
    missing
}

fn debootstrap(folder: &Path, suite: &str, mirror: &str) -> Result<()> {
    let mut command = Command::new("debootstrap");
    command.args(["--variant=minbase", &format!("--include={PACKAGES}"), suite]);
    command.arg(folder).arg(mirror);
    run(&mut command).context("debootstrap (Debian: apt install debootstrap)")?;
    Ok(())
}

/// The newest file in a folder whose name starts with `prefix`.
fn newest(folder: &Path, prefix: &str) -> Result<PathBuf> {
    let files = fs::read_dir(folder)
        .with_context(|| format!("no packages in {}: make deb", folder.display()))?;
    files
        .flatten()
        .map(|file| file.path())
        .filter(|path| {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            name.starts_with(prefix) && name.ends_with(".deb")
        })
        .max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok())
        .with_context(|| format!("no package {prefix}*.deb in {}: make deb", folder.display()))
}

/// Runs a program, and fails unless it succeeds; returns its output.
fn run(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {}", command.get_program().display()))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        bail!(
            "{} {}: {}: {said}{}",
            command.get_program().display(),
            words.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(said)
}
