//! A guest Linux in qemu without hardware virtualization, or as a process (User Mode Linux): it can
//! hang, be killed at any moment and be discarded without any effect on the host.
//!
//! It runs a distribution kernel. Its root is either an archive in memory (`archive`) with this
//! program as the first process (`rdinit`), or a complete system on the first disk, with its own
//! initramfs. Its disks are image files.

mod archive;
pub(crate) mod inside;
mod kernel;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use floe_testkit::tool;
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

pub(crate) use archive::Root;
pub(crate) use kernel::Kernel;
pub use kernel::user_mode_linux;

/// Prefix of lines from the program inside the guest to the one outside.
pub(crate) const MARK: &str = "floe-guest:";
/// Folder of the kernel modules in the root, which are loaded in the order of their names.
pub(crate) const MODULES: &str = "modules";
/// Time limit for a silent guest, after which it counts as hung. Without hardware virtualization a
/// boot on a busy machine can be slow.
const SILENCE_SECONDS: u64 = 240;
const QEMU: &str = "qemu-system-x86_64";
/// Kernel parameters: print only warnings and errors, exit after a panic, run this program.
const KERNEL_LINE: &str = "loglevel=5 panic=-1 rdinit=/init";
/// Additional parameters for User Mode Linux. By default it would append these after the arguments
/// of the first process.
const USER_MODE_LINE: &str = "root=/dev/ram0 console=tty0";

/// A bootable combination of kernel and root.
pub(crate) struct Machine {
    kernel: PathBuf,
    is_program: bool,
    root: PathBuf,
    memory_mib: u32,
    /// Whether a reboot of the system restarts the machine instead of ending it.
    restarts: bool,
    /// Whether what its disks acknowledge is durable on the host.
    is_durable: bool,
    folder: TempDir,
}

impl Machine {
    /// Builds a machine whose root holds `root` and those of `modules` that the kernel has as
    /// files.
    pub(crate) fn new(
        kernel: &Kernel,
        mut root: Root,
        modules: &[&str],
        memory_mib: u32,
    ) -> Result<Self> {
        if !kernel.is_program() {
            Command::new(QEMU).arg("--version").output().with_context(|| {
                format!("starting {QEMU} (Debian: apt install qemu-system-x86)")
            })?;
        }
        for (at, name) in modules.iter().enumerate() {
            if let Some(file) = kernel.module(name) {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                root.file(&format!("{MODULES}/{at:02}-{name}"), &file)?;
            }
        }
        let folder = tool::scratch("floe-guest-")?;
        let path = folder.path().join("root.cpio");
        std::fs::write(&path, root.finish())?;
        Ok(Self {
            kernel: kernel.image().to_owned(),
            is_program: kernel.is_program(),
            root: path,
            memory_mib,
            restarts: false,
            is_durable: false,
            folder,
        })
    }

    /// A machine with a system on its disk, which `initramfs` mounts.
    pub(crate) fn of_system(kernel: &Kernel, initramfs: &Path, memory_mib: u32) -> Result<Self> {
        Ok(Self {
            kernel: kernel.image().to_owned(),
            is_program: kernel.is_program(),
            root: initramfs.to_owned(),
            memory_mib,
            restarts: true,
            is_durable: false,
            folder: tool::scratch("floe-guest-")?,
        })
    }

    /// The same with disks that acknowledge only what the host has made durable.
    pub(crate) fn with_durable_disks(self) -> Self {
        Self { is_durable: true, ..self }
    }

    /// Starts the machine with image files as its disks (see [`disk`]) and with arguments for its
    /// first process, the program `/init` in its root.
    pub(crate) fn boot(&self, disks: &[&Path], args: &[String]) -> Result<Running> {
        self.start(disks, &format!("{KERNEL_LINE} -- {}", args.join(" ")))
    }

    /// Starts the machine; `words` are added to the kernel's parameters.
    pub(crate) fn boot_system(&self, disks: &[&Path], words: &str) -> Result<Running> {
        self.start(disks, words)
    }

    fn start(&self, disks: &[&Path], line: &str) -> Result<Running> {
        let disks: Vec<&str> = disks
            .iter()
            .map(|disk| disk.to_str().context("an image whose path is not UTF-8"))
            .collect::<Result<_>>()?;
        let mut command =
            if self.is_program { self.user_mode(&disks, line) } else { self.qemu(&disks, line) };
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Own process group, so that all processes of a User Mode Linux kernel can be killed
            // together.
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {}", command.get_program().display()))?;
        let output = child.stdout.take().context("the guest has no output")?;
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if send.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                    return;
                }
            }
        });
        Ok(Running { child, lines, said: Vec::new() })
    }

    fn qemu(&self, disks: &[&str], line: &str) -> Command {
        let mut command = Command::new(QEMU);
        command.args(["-nodefaults", "-no-user-config", "-display", "none"]);
        if !self.restarts {
            command.arg("-no-reboot");
        }
        // TCG instead of the faster KVM, which may exist but not work in a virtual machine.
        command.args(["-machine", "q35", "-accel", "tcg,thread=multi", "-smp", "2"]);
        command.args(["-m", &self.memory_mib.to_string(), "-serial", "stdio"]);
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&self.root);
        // On a busy machine timers are late, and the kernel must not consider them broken.
        let patience = "no_timer_check tsc=unstable nosoftlockup rcupdate.rcu_cpu_stall_suppress=1";
        command.args(["-append", &format!("console=ttyS0 mitigations=off {patience} {line}")]);
        for (at, disk) in disks.iter().enumerate() {
            // A comma separates options; two of them stand for one in a name. If not asked for more, data are in the image
            // file as soon as they are written, and flushing to the medium is unnecessary.
            let cache = if self.is_durable { "writethrough" } else { "unsafe" };
            let file = disk.replace(',', ",,");
            command.args([
                "-drive",
                &format!("if=none,id=disk{at},format=raw,cache={cache},discard=unmap,file={file}"),
                "-device",
                &format!("virtio-blk-pci,drive=disk{at}"),
            ]);
        }
        command
    }

    fn user_mode(&self, disks: &[&str], line: &str) -> Command {
        let mut command = Command::new(&self.kernel);
        command.env("TMPDIR", self.folder.path());
        command.arg(format!("mem={}M", self.memory_mib));
        command.arg(format!("initrd={}", self.root.display()));
        for (at, disk) in disks.iter().enumerate() {
            // It flushes nothing by itself; `s` opens the file with O_SYNC.
            let flag = if self.is_durable { "s" } else { "" };
            command.arg(format!("ubd{at}{flag}={disk}"));
        }
        command.args(["con=null", "con0=null,fd:1", "ssl=null"]);
        command
            .args(USER_MODE_LINE.split(' '))
            .args(line.split(' ').filter(|word| !word.is_empty()));
        command
    }
}

/// Device path of disk `at` in the guest.
pub(crate) fn disk(at: usize) -> PathBuf {
    let letter = char::from(b'a' + at as u8);
    let of_qemu = PathBuf::from(format!("/dev/vd{letter}"));
    if of_qemu.exists() { of_qemu } else { PathBuf::from(format!("/dev/ubd{letter}")) }
}

/// A running machine, killed on drop.
pub(crate) struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
    said: Vec<String>,
}

impl Running {
    /// Waits until the program inside prints `word` after the [`MARK`]; returns the rest of the
    /// line.
    ///
    /// # Errors
    /// It prints `failed`, or the machine ends or hangs before that.
    pub(crate) fn wait_for(&mut self, word: &str) -> Result<String> {
        loop {
            match self.lines.recv_timeout(Duration::from_secs(SILENCE_SECONDS)) {
                Ok(line) => {
                    // A kernel message may precede it on the same line.
                    let told = line.split_once(MARK).map(|(_, told)| told.trim().to_owned());
                    self.said.push(line);
                    let Some(told) = told else { continue };
                    if let Some(rest) = told.strip_prefix(word) {
                        return Ok(rest.trim().to_owned());
                    }
                    if let Some(reason) = told.strip_prefix("failed") {
                        bail!("the guest: {}", reason.trim());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    bail!("the guest has stopped responding:\n{}", self.log())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the guest ended before it printed {word}:\n{}", self.log())
                }
            }
        }
    }

    /// Messages since the last call: lines of the kernel, and complaints of the program inside.
    pub(crate) fn heard(&mut self) -> (Vec<String>, Vec<String>) {
        let lines = std::mem::take(&mut self.said);
        let complaint = |line: &str| {
            let told = line.split_once(MARK)?.1.trim();
            told.strip_prefix("complaint ").map(str::to_owned)
        };
        let complaints = lines.iter().filter_map(|line| complaint(line)).collect();
        (lines.into_iter().filter(|line| !line.contains(MARK)).collect(), complaints)
    }

    /// Waits for a line that contains `text`, from any source.
    ///
    /// # Errors
    /// The machine ends or hangs before that.
    pub(crate) fn hear(&mut self, text: &str) -> Result<()> {
        loop {
            match self.lines.recv_timeout(Duration::from_secs(SILENCE_SECONDS)) {
                Ok(line) => {
                    let heard = line.contains(text);
                    self.said.push(line);
                    if heard {
                        return Ok(());
                    }
                }
                Err(_) => bail!("the guest does not print \"{text}\":\n{}", self.log()),
            }
        }
    }

    /// Kills the machine, like a power failure; returns its output.
    pub(crate) fn kill(mut self) -> Result<String> {
        self.kill_all();
        self.child.wait()?;
        self.said.extend(self.lines.iter());
        Ok(self.log())
    }

    /// Waits for the machine's shutdown; returns its output.
    ///
    /// # Errors
    /// It does not shut down within `limit`, or qemu failed.
    pub(crate) fn finish(mut self, limit: Duration) -> Result<String> {
        let begin = Instant::now();
        let status = loop {
            self.said.extend(self.lines.try_iter());
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if begin.elapsed() > limit {
                bail!("the guest does not shut down:\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        self.said.extend(self.lines.iter());
        if !status.success() {
            bail!("the guest ended with {status}:\n{}", self.log());
        }
        Ok(self.log())
    }

    /// Kills all processes of the guest.
    fn kill_all(&mut self) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(group) = group {
            // They may have exited already.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    fn log(&self) -> String {
        self.said.join("\n")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill_all();
        let _ = self.child.wait();
    }
}
