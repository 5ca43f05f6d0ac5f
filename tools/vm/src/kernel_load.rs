//! `cargo xtask kernel-load`: file systems filled by Linux up to a power failure, judged by Floe
//! and e2fsck. Linux runs in a guest (`guest`), because it was seen to deadlock under such a load.

mod inside;
mod judge;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock, uuid_text};
use floe_testkit::rng::Rng;
use floe_testkit::{Image, Profile, Volume, build, tool};

use crate::findings::names;
use crate::guest::{Kernel, Machine, Root, Running};
use floe_testkit::tool::built_floe;
use inside::JOURNAL_DISK;
use judge::{Judge, Left};

pub(crate) use inside::{Args as GuestArgs, run as inside};

/// Modules that a kernel may need for disks, ext4 and quotas.
pub(crate) const MODULES: &[&str] = &[
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "virtio_blk",
    "crc16",
    "crc32c_generic",
    "libcrc32c",
    "mbcache",
    "jbd2",
    "ext4",
    "quota_tree",
    "quota_v2",
];
const MEMORY_MIB: u32 = 384;
/// `s_nr_users` and `s_users` of a journal superblock.
const NR_USERS: u64 = 0x40;
const USERS: u64 = 0x100;
/// Shortest and longest time under load, in milliseconds.
const LOAD_MILLIS: (u64, u64) = (60, 4000);

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds, distributed over the profiles: each is two boots, with a power failure at a random
    /// moment
    #[arg(long, default_value_t = 40)]
    rounds: u64,
    /// Seed of the first round
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Only these profiles (repeat, or separate by commas); by default all
    #[arg(long, value_delimiter = ',')]
    profile: Vec<String>,
    /// Number of concurrent guests
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// The program to judge; by default target/release/floe or target/debug/floe
    #[arg(long)]
    floe: Option<PathBuf>,
    /// The kernel to boot, such as /boot/vmlinuz-6.1.0-56-cloud-amd64 or /usr/bin/linux.uml; by
    /// default that in FLOE_GUEST_KERNEL or the newest in /boot
    #[arg(long)]
    kernel: Option<PathBuf>,
    /// Folder for images with a fault
    #[arg(long, default_value = "target/kernel-load")]
    keep: PathBuf,
}

/// Totals of all rounds.
#[derive(Default)]
struct Summary {
    rounds: u64,
    failures: u64,
    unmounts: u64,
    recovered: u64,
    unsound: u64,
    /// Recoveries compared with the kernel's.
    by_kernel: u64,
    /// Number of file systems whose journal e2fsck could not replay, by its message.
    no_measure: BTreeMap<String, u64>,
    refused: BTreeMap<Profile, String>,
    faults: Vec<String>,
    /// Damage left by the kernel, according to both e2fsck and Floe.
    of_kernel: Vec<String>,
}

/// Runs the command; fails if a file system is judged wrongly.
pub(crate) fn run(args: &Args) -> Result<()> {
    tool::available().map_err(|reason| anyhow!(reason))?;
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
    let judge = Judge { floe, names: names() };
    let kernel = Kernel::find(args.kernel.as_deref())?;
    let root = Root::new(&std::env::current_exe().context("finding this program")?)?;
    let machine = Machine::new(&kernel, root, MODULES, MEMORY_MIB)?;
    let profiles = Profile::named(&args.profile)?;
    let begin = Instant::now();
    let summary = Mutex::new(Summary::default());
    let next = AtomicU64::new(args.from);
    let work = || -> Result<()> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= args.from + args.rounds {
                return Ok(());
            }
            let profile = profiles[(seed % profiles.len() as u64) as usize];
            let mut of_round = Summary::default();
            Round::new(profile, seed)?
                .play(&machine, &judge, &args.keep, &mut of_round)
                .with_context(|| format!("{profile}:{seed}"))?;
            summary.lock().map_err(|_| anyhow!("a worker panicked"))?.add(of_round);
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..args.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().map_err(|_| anyhow!("a worker panicked"))?)
    })?;
    let summary = summary.into_inner().map_err(|_| anyhow!("a worker panicked"))?;
    summary.print(profiles.len(), begin.elapsed());
    if !summary.faults.is_empty() {
        bail!("{} faults; their images are in {}", summary.faults.len(), args.keep.display());
    }
    if summary.failures == 0 {
        bail!("the kernel mounted nothing");
    }
    Ok(())
}

impl Summary {
    fn add(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.failures += other.failures;
        self.unmounts += other.unmounts;
        self.recovered += other.recovered;
        self.unsound += other.unsound;
        self.by_kernel += other.by_kernel;
        for (reason, count) in other.no_measure {
            *self.no_measure.entry(reason).or_default() += count;
        }
        self.refused.extend(other.refused);
        for fault in other.faults {
            eprintln!("{fault}");
            self.faults.push(fault);
        }
        for damage in other.of_kernel {
            eprintln!("Linux: {damage}");
            self.of_kernel.push(damage);
        }
        if self.rounds.is_multiple_of(10) {
            eprintln!("{} rounds", self.rounds);
        }
    }

    fn print(&self, profiles: usize, took: Duration) {
        for (profile, reason) in &self.refused {
            println!("{profile}: {reason}");
        }
        for (reason, count) in &self.no_measure {
            println!("{count} times only the kernel was a reference: e2fsck: {reason}");
        }
        println!(
            "{} rounds of {profiles} profiles in {:.0} s: {} power failures, {} of them with a journal to \
             replay, {} clean unmounts; {} recoveries compared with the kernel's; {} without a journal \
             were damaged, {} by faults of Linux; {} faults",
            self.rounds,
            took.as_secs_f64(),
            self.failures,
            self.recovered,
            self.unmounts,
            self.by_kernel,
            self.unsound,
            self.of_kernel.len(),
            self.faults.len()
        );
    }
}

/// One file system, from mke2fs to its second shutdown or power failure.
struct Round {
    profile: Profile,
    seed: u64,
    rng: Rng,
    image: Image,
    journal: Option<Image>,
    options: String,
}

impl Round {
    fn new(profile: Profile, seed: u64) -> Result<Self> {
        let mut rng = Rng::new(seed ^ 0x6b65_726e_656c);
        let plain = rng.chance(2) && profile != Profile::Verity;
        let image = if plain { build::base(profile)? } else { roomy(profile)? };
        let journal = (profile == Profile::NoJournal && rng.chance(2))
            .then(|| give_external_journal(&image))
            .transpose()?;
        let mut options = options(profile, journal.is_some(), &mut rng);
        if journal.is_some() {
            options = format!(
                "journal_path={JOURNAL_DISK}{}{options}",
                if options.is_empty() { "" } else { "," }
            );
        }
        Ok(Self { profile, seed, rng, image, journal, options })
    }

    fn play(
        mut self,
        machine: &Machine,
        judge: &Judge,
        keep: &Path,
        summary: &mut Summary,
    ) -> Result<()> {
        summary.rounds += 1;
        let journaled = self.journal.is_some() || has_journal(self.profile);
        // Without a journal, the second boot would load what the first one damaged.
        let first_fails = journaled || self.rng.chance(2);
        if first_fails {
            if let Err(error) = self.fail_under_load(machine) {
                return self.refused(error, summary);
            }
            summary.failures += 1;
            self.judged(machine, judge, journaled, "power failure", keep, summary)?;
        }
        if !journaled && first_fails {
            return Ok(());
        }
        if journaled && self.rng.chance(2) {
            self.fail_under_load(machine)?;
            summary.failures += 1;
            return self.judged(machine, judge, true, "second power failure", keep, summary);
        }
        if let Err(error) = self.unmount_after_load(machine) {
            return self.refused(error, summary);
        }
        summary.unmounts += 1;
        self.judged(machine, judge, true, "unmounted", keep, summary)
    }

    /// A kernel may lack a feature, and reports that at mount time.
    fn refused(&self, error: anyhow::Error, summary: &mut Summary) -> Result<()> {
        let reason = format!("{error:#}");
        match reason.split_once("refused to mount") {
            Some((_, rest))
                if rest.contains("Invalid argument") || rest.contains("os error 22") =>
            {
                let line = reason.lines().next().unwrap_or_default().to_owned();
                summary.refused.insert(self.profile, line);
                Ok(())
            }
            _ => Err(error),
        }
    }

    fn millis(&mut self) -> u64 {
        // Logarithmic distribution: as many short times as long ones.
        let (least, most) = LOAD_MILLIS;
        let share = self.rng.below(1000) as f64 / 1000.0;
        (least as f64 * (most as f64 / least as f64).powf(share)) as u64
    }

    fn fail_under_load(&mut self, machine: &Machine) -> Result<()> {
        let wait = Duration::from_millis(self.millis());
        let seed = self.rng.below(1 << 40);
        let journal = self.journal.as_ref();
        let mut guest = boot(machine, &self.image, journal, &self.options, seed, None)?;
        guest.wait_for("loading")?;
        std::thread::sleep(wait);
        no_complaint(&guest.kill()?)
    }

    fn unmount_after_load(&mut self, machine: &Machine) -> Result<()> {
        let millis = Some(self.millis());
        let seed = self.rng.below(1 << 40);
        let journal = self.journal.as_ref();
        let guest = boot(machine, &self.image, journal, &self.options, seed, millis)?;
        switched_off(guest)
    }

    /// Judges the current image, and keeps it if there is a fault.
    fn judged(
        &mut self,
        machine: &Machine,
        judge: &Judge,
        must_be_sound: bool,
        when: &str,
        keep: &Path,
        summary: &mut Summary,
    ) -> Result<()> {
        let kernel = |image: &Image, journal: Option<&Image>| {
            let guest = boot(machine, image, journal, &self.options, 0, Some(0))?;
            switched_off(guest)
        };
        let left = Left {
            image: &self.image,
            journal: self.journal.as_ref(),
            must_be_sound,
            kernel: &kernel,
            ask_kernel: self.rng.chance(4),
        };
        let judgement = judge.judge(&left)?;
        summary.recovered += u64::from(judgement.replayed);
        summary.by_kernel += u64::from(judgement.kernel);
        if let Some(reason) = judgement.no_measure {
            *summary.no_measure.entry(reason).or_default() += 1;
        }
        summary.unsound += u64::from(!judgement.sound && !must_be_sound);
        let damage = judgement.of_kernel.iter();
        summary.of_kernel.extend(damage.map(|damage| format!("{}: {damage}", self.name(when))));
        if judgement.faults.is_empty() {
            return Ok(());
        }
        fs::create_dir_all(keep).with_context(|| format!("making {}", keep.display()))?;
        let base = keep.join(format!("{}-{}-{}", self.profile, self.seed, when.replace(' ', "-")));
        fs::copy(self.image.path(), base.with_extension("img"))?;
        if let Some(journal) = &self.journal {
            fs::copy(journal.path(), base.with_extension("journal"))?;
        }
        let faults = judgement.faults.iter();
        summary.faults.extend(faults.map(|fault| format!("{}: {fault}", self.name(when))));
        Ok(())
    }

    /// Its name in a report.
    fn name(&self, when: &str) -> String {
        format!("{}:{} ({}), {when}", self.profile, self.seed, self.options)
    }
}

fn boot(
    machine: &Machine,
    image: &Image,
    journal: Option<&Image>,
    options: &str,
    seed: u64,
    millis: Option<u64>,
) -> Result<Running> {
    let mut args = vec!["guest-load".to_owned(), format!("--seed={seed}")];
    if !options.is_empty() {
        args.push(format!("--options={options}"));
    }
    args.extend(millis.map(|millis| format!("--millis={millis}")));
    let mut disks = vec![image.path()];
    disks.extend(journal.map(Image::path));
    machine.boot(&disks, &args)
}

/// Waits for the end of a guest that unmounts and shuts down.
fn switched_off(mut guest: Running) -> Result<()> {
    guest.wait_for("done")?;
    no_complaint(&guest.finish(Duration::from_secs(60))?)
}

/// Kernel messages about an inconsistent file system are a fault, whatever the cause.
fn no_complaint(log: &str) -> Result<()> {
    match log.lines().find(|line| line.contains("EXT4-fs error") || line.contains("JBD2: Error")) {
        Some(line) => bail!("the kernel complains: {line}"),
        None => Ok(()),
    }
}

/// An empty image of the profile, four times as large.
fn roomy(profile: Profile) -> Result<Image> {
    let image = Image::empty((profile.size_mib() * 4) << 20)?;
    // Before Linux 6.3, verity requires blocks of page size.
    let args = match profile {
        Profile::Verity => &["-t", "ext4", "-b", "4096", "-g", "2048", "-O", "verity"],
        profile => profile.mke2fs_args(),
    };
    build::mke2fs(image.path(), args)?;
    Ok(image)
}

fn has_journal(profile: Profile) -> bool {
    !profile.has("^has_journal") && !profile.mke2fs_args().contains(&"ext2")
}

/// Mount options: the defaults half of the time.
fn options(profile: Profile, external: bool, rng: &mut Rng) -> String {
    let mut choices: Vec<&str> = vec!["discard", "nodelalloc", "auto_da_alloc"];
    if has_journal(profile) || external {
        choices.extend([
            "data=journal",
            "data=journal",
            "data=writeback,noauto_da_alloc",
            "journal_async_commit,data=writeback",
            "commit=1",
            "commit=1,nodelalloc",
            "journal_checksum",
        ]);
    }
    if profile.extents() {
        choices.push("dioread_lock");
    }
    if rng.chance(2) { String::new() } else { rng.pick(&choices).copied().unwrap_or("").to_owned() }
}

/// Runs a debugfs command; its output is ignored.
fn debugfs(image: &Image, request: &str) -> Result<()> {
    let path = image.path().to_str().context("scratch folders have plain names")?;
    tool::must("debugfs", &["-w", "-R", request, path], &[0])?;
    Ok(())
}

/// Gives the file system an external journal, and returns its device.
fn give_external_journal(image: &Image) -> Result<Image> {
    let journal = Image::empty(4 << 20)?;
    let block_bytes = u64::from(Volume::open(image)?.geometry.block_size);
    let path = journal.path().to_str().context("scratch folders have plain names")?;
    let block_size = block_bytes.to_string();
    tool::must("mke2fs", &["-q", "-F", "-b", &block_size, "-O", "journal_dev", path], &[0])?;
    let mut raw = [0; 1024];
    journal.read(OFFSET_BYTES, &mut raw)?;
    let uuid = uuid_text(&Superblock::decode(&raw).uuid);
    for request in ["feature has_journal", &format!("ssv journal_uuid {uuid}")] {
        debugfs(image, request)?;
    }
    // The journal superblock follows that of its device, and names the file system that uses it.
    image.read(OFFSET_BYTES, &mut raw)?;
    let users = Superblock::decode(&raw).uuid;
    let at = (OFFSET_BYTES / block_bytes + 1) * block_bytes;
    journal.write(at + NR_USERS, &1u32.to_be_bytes())?;
    journal.write(at + USERS, &users)?;
    Ok(journal)
}
