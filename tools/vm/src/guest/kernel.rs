//! Finds a kernel to boot, with its modules: for a machine, or User Mode Linux, which boots four
//! times as fast but has one processor and lacks some features.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// Environment variable with the kernel to use if no option names one.
const VARIABLE: &str = "FLOE_GUEST_KERNEL";
/// Debian's path of User Mode Linux.
const USER_MODE_LINUX: &str = "/usr/bin/linux.uml";
/// Advice for Debian; other kernels work too if they have ext4 and virtio disks built in or as
/// modules.
const HOW_TO_GET_ONE: &str = "no kernel to boot: as root `apt install linux-image-cloud-amd64`, or as anyone \
     `apt-get download linux-image-VERSION-cloud-amd64`, `dpkg-deb -x FILE FOLDER`, and \
     FLOE_GUEST_KERNEL=FOLDER/boot/vmlinuz-VERSION-cloud-amd64";

/// User Mode Linux, where it is installed and runs. On processors with registers for tiles (AMX) it does not: their state is larger
/// than what Debian's, 6.1, saves of a process, so that its first one ends the kernel ("ptrace set fp regs failed").
pub fn user_mode_linux() -> Option<&'static Path> {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has_tiles = processors.split_whitespace().any(|word| word == "amx_tile");
    Some(Path::new(USER_MODE_LINUX)).filter(|program| program.exists() && !has_tiles)
}

/// A kernel with its modules.
pub(crate) struct Kernel {
    image: PathBuf,
    modules: Option<PathBuf>,
    is_program: bool,
}

impl Kernel {
    /// The kernel in the file `named`, else the one named by the variable [`VARIABLE`], else the
    /// newest in `/boot`. Its modules are in `lib/modules` beside the folder `boot`.
    pub(crate) fn find(named: Option<&Path>) -> Result<Self> {
        let variable = std::env::var_os(VARIABLE).map(PathBuf::from);
        let image = match named.map(Path::to_owned).or(variable) {
            Some(path) => path,
            None => newest(Path::new("/boot")).context(HOW_TO_GET_ONE)?,
        };
        let mut magic = [0; 4];
        fs::File::open(&image)
            .and_then(|mut file| file.read_exact(&mut magic))
            .with_context(|| format!("opening {}", image.display()))?;
        if &magic == b"\x7fELF" {
            return Self::program(image);
        }
        let version = image
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_prefix("vmlinuz-"))
            .map(str::to_owned);
        let modules = version.and_then(|version| {
            let top = image.parent()?.parent()?;
            ["lib/modules", "usr/lib/modules"]
                .iter()
                .map(|folder| top.join(folder).join(&version))
                .find(|folder| folder.is_dir())
        });
        Ok(Self { image, modules, is_program: false })
    }

    /// As [`Self::find`], but User Mode Linux, where it runs, before those in `/boot`: it boots faster, and its file systems
    /// are the same.
    pub(crate) fn fastest(named: Option<&Path>) -> Result<Self> {
        let is_free = named.is_none() && std::env::var_os(VARIABLE).is_none();
        Self::find(user_mode_linux().filter(|_| is_free).or(named))
    }

    /// A User Mode Linux kernel; its modules are in Debian's location.
    fn program(image: PathBuf) -> Result<Self> {
        let output = Command::new(&image)
            .arg("--version")
            .output()
            .with_context(|| format!("starting {}", image.display()))?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let modules = Path::new("/usr/lib/uml/modules").join(version);
        let modules = modules.is_dir().then_some(modules);
        Ok(Self { image, modules, is_program: true })
    }

    /// Whether it is started like a program, without a machine.
    pub(crate) fn is_program(&self) -> bool {
        self.is_program
    }

    pub(crate) fn image(&self) -> &Path {
        &self.image
    }

    /// Its build configuration, which initramfs tools need.
    pub(crate) fn config(&self) -> Result<Vec<u8>> {
        if self.is_program {
            let output = Command::new(&self.image).arg("--showconfig").output();
            return Ok(output
                .with_context(|| format!("starting {}", self.image.display()))?
                .stdout);
        }
        let name = self.image.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let path = self.image.with_file_name(name.replace("vmlinuz", "config"));
        fs::read(&path).with_context(|| format!("reading {}", path.display()))
    }

    /// The folder with its modules, named after its version.
    pub(crate) fn modules(&self) -> Option<&Path> {
        self.modules.as_deref()
    }

    /// The file of the module `name`, compressed or not; `None` if it is built in or missing.
    pub(crate) fn module(&self, name: &str) -> Option<PathBuf> {
        let mut folders = vec![self.modules.as_ref()?.join("kernel")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).ok()?.flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let file = entry.file_name();
                let stem =
                    file.to_str().and_then(|file| file.split_once(".ko")).map(|(stem, _)| stem);
                if stem.is_some_and(|stem| stem.replace('-', "_") == name.replace('-', "_")) {
                    return Some(path);
                }
            }
        }
        None
    }
}

fn newest(folder: &Path) -> Option<PathBuf> {
    fs::read_dir(folder)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("vmlinuz-") && fs::File::open(path).is_ok()
        })
        .max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_beside_the_kernel_however_they_are_written() {
        let top = floe_testkit::tool::scratch("floe-kernel-").expect("a folder");
        let modules = top.path().join("usr/lib/modules/1.2-x/kernel/drivers/md");
        fs::create_dir_all(&modules).expect("a folder");
        fs::create_dir_all(top.path().join("boot")).expect("a folder");
        let image = top.path().join("boot/vmlinuz-1.2-x");
        fs::write(&image, "MZ, and so on").expect("a file");
        fs::write(modules.join("dm-snapshot.ko.xz"), "").expect("a file");
        let kernel = Kernel::find(Some(&image)).expect("it is there");
        let found = kernel.module("dm_snapshot").expect("it is there");
        assert_eq!(found.file_name(), Some("dm-snapshot.ko.xz".as_ref()));
        assert_eq!(kernel.module("dm"), None);
        assert!(Kernel::find(Some(&top.path().join("boot/vmlinuz-2"))).is_err());
        assert_eq!(newest(&top.path().join("boot")), Some(image));
    }
}
