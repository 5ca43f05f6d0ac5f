//! `cargo xtask vm-host`: a host of three guests, whose disks are files in cubes of one mount of Floe's. Metadata of one cube are
//! damaged while the guests work: the guest of that cube stops, the mount repairs the cube, and the guest starts again; the
//! others must notice nothing, and no guest may lose what its disk had acknowledged (IceFS, section 5.3.1).

mod host;
mod inside;
mod timeline;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use floe_testkit::tool::{self, built_floe};
use floe_testkit::{Image, oracle};

use crate::guest::{Kernel, Machine, Root, Running};
use crate::kernel_load::MODULES;
use host::Host;
use timeline::{Moment, Timeline};

pub(crate) use inside::{Args as GuestArgs, run as inside};

/// Guests, each with a cube.
pub(crate) const GUESTS: usize = 3;
/// The guest whose cube is damaged.
const STRUCK: usize = 1;
const MEMORY_MIB: u32 = 320;
/// Time beyond that of the guests' work until the damage is met, the guest has started again and works: on a slow machine it writes few blocks.
const MOST_PATIENCE: Duration = Duration::from_secs(180);
/// Time in which the mount must have repaired the cube.
const MOST_REPAIR: Duration = Duration::from_secs(60);

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The program to test; by default target/release/floe or target/debug/floe
    #[arg(long)]
    floe: Option<PathBuf>,
    /// The kernel to boot, as for `kernel-load`; by default User Mode Linux, if it is there
    #[arg(long)]
    kernel: Option<PathBuf>,
    /// Seconds that the guests work
    #[arg(long, default_value_t = 45)]
    seconds: u64,
    /// Seconds in which a guest beside the damage may finish no record; a busy machine takes its share of them
    #[arg(long, default_value_t = 5)]
    silence: u64,
    /// Write the timeline as a picture (SVG)
    #[arg(long)]
    picture: Option<PathBuf>,
}

/// The state of a guest while it works.
#[derive(Default)]
struct Guest {
    /// The last record that its disk acknowledged.
    acknowledged: AtomicU64,
    /// Why it stopped, each time, and the last record before.
    stops: Mutex<Vec<(String, u64)>>,
    runs: AtomicBool,
}

impl Guest {
    /// Whether it has stopped, and finished a record since.
    fn works_again(&self) -> bool {
        let stops = self.stops.lock().unwrap_or_else(PoisonError::into_inner);
        stops.last().is_some_and(|(_, last)| self.acknowledged.load(Relaxed) > *last)
    }
}

/// Runs the command; fails unless the damage stays in its cube and nothing is lost.
pub(crate) fn run(args: &Args) -> Result<()> {
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
    if let Err(reason) = floe_testkit::kernel::mount_available() {
        bail!("{reason}");
    }
    let kernel = Kernel::fastest(args.kernel.as_deref())?;
    let root = Root::new(&std::env::current_exe().context("finding this program")?)?;
    let machine = Machine::new(&kernel, root, MODULES, MEMORY_MIB)?.with_durable_disks();
    let scratch = tool::scratch("floe-vm-host-")?;
    let host = Host::new(&floe, scratch.path())?;
    let guests: [Guest; GUESTS] = std::array::from_fn(|_| Guest::default());
    let timeline = watch(args, &host, &machine, &guests)?;
    print!("{timeline}");
    if let Some(picture) = &args.picture {
        std::fs::write(picture, timeline.svg()).context("writing the picture")?;
    }
    judge(&timeline, &guests, Duration::from_secs(args.silence))?;
    let image = host.unmounted()?;
    let name = image.to_string_lossy().into_owned();
    tool::must(&floe.to_string_lossy(), &["check", &name], &[0])?;
    let verdict = oracle::e2fsck(&Image::open(&image)?)?;
    ensure!(verdict.clean(), "{}", verdict.text);
    println!("floe check and e2fsck find the image of the host clean");
    Ok(())
}

/// Lets the guests work, and damages the cube of one after a third of the time. At the end all of them lose their power, and
/// must have all that their disks had acknowledged.
fn watch(
    args: &Args,
    host: &Host,
    machine: &Machine,
    guests: &[Guest; GUESTS],
) -> Result<Timeline> {
    let (begin, over) = (Instant::now(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let over = &over;
        let works = guests
            .iter()
            .enumerate()
            .map(|(at, guest)| scope.spawn(move || work(machine, host, at, guest, over)));
        let works: Vec<_> = works.collect();
        let mut timeline = Timeline::default();
        let watched = loop {
            std::thread::sleep(Duration::from_secs(1));
            let at = begin.elapsed();
            timeline.moments.push(Moment {
                at,
                records: guests.each_ref().map(|guest| guest.acknowledged.load(Relaxed)),
                runs: guests.each_ref().map(|guest| guest.runs.load(Relaxed)),
            });
            if timeline.struck_at.is_none() && at > Duration::from_secs(args.seconds / 3) {
                match host.strike(STRUCK) {
                    Ok(nodes) => {
                        println!("{nodes} nodes of the map of guest {STRUCK}'s disk were damaged")
                    }
                    Err(error) => break Err(error),
                }
                timeline.struck_at = Some(begin.elapsed());
            }
            let end = Duration::from_secs(args.seconds);
            let is_over = guests[STRUCK].works_again() || at > end + MOST_PATIENCE;
            if at > end && is_over || works.iter().any(|work| work.is_finished()) {
                break Ok(timeline);
            }
        };
        over.store(true, Relaxed);
        for (at, work) in works.into_iter().enumerate() {
            let ended = work.join().map_err(|_| anyhow::anyhow!("guest {at}: panicked"))?;
            ended.with_context(|| format!("guest {at}"))?;
        }
        watched
    })
}

/// Runs one guest until all are over; starts it again whenever it has stopped and its cube is sound.
fn work(machine: &Machine, host: &Host, at: usize, guest: &Guest, over: &AtomicBool) -> Result<()> {
    let disk = host.disk(at);
    let boot = |last: bool| {
        let mut words = vec!["guest-tenant".to_owned()];
        words.push(format!("--from={}", guest.acknowledged.load(Relaxed)));
        words.extend(last.then(|| "--last".to_owned()));
        machine.boot(&[&disk], &words)
    };
    while !over.load(Relaxed) {
        let mut running = boot(false)?;
        let stopped = follow(&mut running, guest, over)?;
        guest.runs.store(false, Relaxed);
        let Some(reason) = stopped else {
            running.kill()?;
            break;
        };
        running.finish(MOST_REPAIR)?;
        let last = guest.acknowledged.load(Relaxed);
        guest.stops.lock().unwrap_or_else(PoisonError::into_inner).push((reason, last));
        let begin = Instant::now();
        while !host.is_sound(at)? {
            ensure!(begin.elapsed() < MOST_REPAIR, "its cube was not repaired");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    let mut last = boot(true)?;
    last.wait_for("kept")?;
    last.finish(MOST_REPAIR)?;
    Ok(())
}

/// Reads what a guest says. Returns why it stopped, or nothing if all are over.
fn follow(running: &mut Running, guest: &Guest, over: &AtomicBool) -> Result<Option<String>> {
    loop {
        let line = running.wait_for("")?;
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "kept" => guest.runs.store(true, Relaxed),
            "wrote" => guest.acknowledged.store(rest.parse().context("a record")?, Relaxed),
            "stopped" => return Ok(Some(rest.to_owned())),
            _ => bail!("it says {line}"),
        }
        if over.load(Relaxed) {
            return Ok(None);
        }
    }
}

fn judge(timeline: &Timeline, guests: &[Guest; GUESTS], most_silence: Duration) -> Result<()> {
    timeline.struck_at.context("the guests ended before the damage")?;
    for (at, guest) in guests.iter().enumerate() {
        let stops = guest.stops.lock().unwrap_or_else(PoisonError::into_inner);
        if at == STRUCK {
            let [(reason, _)] = &stops[..] else {
                bail!("guest {at} stopped {} times: {stops:?}", stops.len());
            };
            let reason = reason.clone();
            drop(stops);
            ensure!(guest.works_again(), "guest {at} did not work again");
            let silence = timeline.silence(at).as_secs_f64();
            println!("guest {at} stopped ({reason}), and worked again after {silence:.1} s");
        } else {
            ensure!(stops.is_empty(), "guest {at}, whose cube is sound, stopped: {stops:?}");
            let silence = timeline.silence(at);
            ensure!(silence <= most_silence, "guest {at} finished nothing for {silence:?}");
        }
    }
    println!("all guests have what their disks had acknowledged when the power failed");
    Ok(())
}
