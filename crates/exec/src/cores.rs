//! How many cores a run should use while other programs need some: section 5.4.1 of Domingo and
//! Kannan, *pFSCK*, FAST '21.

use std::fs;
use std::ops::RangeInclusive;

use floe_sync::{Mutex, PoisonError};

/// The default number of workers: the processors that this process may use, at least 1. Affinity
/// (`taskset`) and CPU quotas of control groups are respected.
pub fn default_threads() -> usize {
    floe_sync::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The use of the cores since the last sample, in cores (fractions add up).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoreSample {
    /// Idle cores.
    pub idle: f64,
    /// Cores used by this process.
    pub own: f64,
    /// Cores that this process may use, by its affinity and the quota of its control group.
    pub allowed: usize,
}

/// Samples the use of the cores: the system, or a test.
pub trait CoreSource: Sync {
    /// The use since the last call; `None` the first time, or if the system does not say.
    fn sample(&self) -> Option<CoreSample>;

    /// Cores that no other program needs at this moment; `None` if the system does not say.
    fn free_now(&self) -> Option<usize> {
        None
    }
}

/// The number of workers that may be busy from now on, at least 1 and at most `most`, if it was
/// `budget` before. Idle cores are added. If there are none and the workers got less processor time
/// than their number, they compete for cores, so the budget falls to the number of cores that they
/// used. It never exceeds the cores that this process may use, because the kernel throttles a
/// control group over its quota as a whole.
pub fn next_budget(budget: usize, most: usize, seen: CoreSample) -> usize {
    /// Cores that are rounded up, so that noise does not cost a whole core.
    const ROUND_UP: f64 = 0.2;
    let idle = (seen.idle + ROUND_UP).max(0.0) as usize;
    let own = (seen.own + 0.5).max(0.0) as usize;
    let next = if idle > 0 { budget.saturating_add(idle) } else { budget.min(own) };
    next.min(seen.allowed).clamp(1, most.max(1))
}

/// Ticks of the cores that this process may use, from `/proc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    cores: u64,
    idle: u64,
    all: u64,
    own: u64,
}

/// Samples `/proc` (Linux). Counts only cores that this process may use, up to the quota of its
/// control group.
#[derive(Debug, Default)]
pub struct ProcCores {
    last: Mutex<Option<Ticks>>,
}

impl ProcCores {
    /// Takes the first sample.
    pub fn new() -> Self {
        Self { last: Mutex::new(read_ticks()) }
    }
}

impl CoreSource for ProcCores {
    fn sample(&self) -> Option<CoreSample> {
        let now = read_ticks()?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let before = last.replace(now)?;
        difference(before, now, allowed_now())
    }

    fn free_now(&self) -> Option<usize> {
        let running = running_threads(&fs::read_to_string("/proc/loadavg").ok()?)?;
        let allowed = allowed_cores(&fs::read_to_string("/proc/self/status").ok()?);
        let (cores, ..) = system_ticks(&fs::read_to_string("/proc/stat").ok()?, &allowed);
        // The calling thread is one of the running ones.
        let others = running.saturating_sub(1);
        Some((cores as usize).saturating_sub(others).min(allowed_now()))
    }
}

/// Cores that this process may use: the smaller of its affinity and its control group's quota.
fn allowed_now() -> usize {
    floe_sync::available_parallelism().map_or(usize::MAX, usize::from)
}

/// Threads of the system that run or wait for a core, from the text of `/proc/loadavg`.
fn running_threads(loadavg: &str) -> Option<usize> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

fn read_ticks() -> Option<Ticks> {
    let read = |path| fs::read_to_string(path).ok();
    let allowed = allowed_cores(&read("/proc/self/status")?);
    let (cores, idle, all) = system_ticks(&read("/proc/stat")?, &allowed);
    Some(Ticks { cores, idle, all, own: own_ticks(&read("/proc/self/stat")?)? })
}

/// The use between two samples. `None` if no time has passed.
fn difference(before: Ticks, now: Ticks, allowed: usize) -> Option<CoreSample> {
    let all = now.all.checked_sub(before.all).filter(|&all| all > 0)?;
    let cores = |ticks: u64, earlier: u64| {
        ticks.saturating_sub(earlier) as f64 / all as f64 * now.cores as f64
    };
    let (idle, own) = (cores(now.idle, before.idle), cores(now.own, before.own));
    Some(CoreSample { idle, own, allowed })
}

/// The cores that a process may use, from its `/proc/self/status`, such as "0-3,8". Empty if it
/// does not say.
fn allowed_cores(status: &str) -> Vec<RangeInclusive<u32>> {
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    line.unwrap_or_default().split(',').filter_map(range).collect()
}

/// The number of cores, their idle ticks and all their ticks, from the text of `/proc/stat`.
fn system_ticks(stat: &str, allowed: &[RangeInclusive<u32>]) -> (u64, u64, u64) {
    let (mut cores, mut idle, mut all) = (0, 0, 0);
    for line in stat.lines() {
        let Some((core, ticks)) = line.strip_prefix("cpu").and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        // The line without a number is the total.
        let Ok(core) = core.parse::<u32>() else { continue };
        if !allowed.is_empty() && !allowed.iter().any(|range| range.contains(&core)) {
            continue;
        }
        // The fields: user nice system idle iowait irq softirq steal. The guest fields that follow
        // are included in user.
        let ticks: Vec<u64> =
            ticks.split_whitespace().take(8).map_while(|tick| tick.parse().ok()).collect();
        cores += 1;
        idle += ticks.iter().skip(3).take(2).sum::<u64>();
        all += ticks.iter().sum::<u64>();
    }
    (cores, idle, all)
}

/// Ticks that a process has used, from its `/proc/self/stat`.
fn own_ticks(stat: &str) -> Option<u64> {
    // The second field is the program's name in parentheses, which may contain spaces and
    // parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn seen(idle: f64, own: f64) -> CoreSample {
        CoreSample { idle, own, allowed: 16 }
    }

    #[test]
    fn idle_cores_are_taken_and_busy_ones_are_left() {
        assert_eq!(next_budget(4, 16, seen(3.0, 4.0)), 7);
        assert_eq!(next_budget(4, 16, seen(0.85, 4.0)), 5, "nearly a whole core");
        assert_eq!(next_budget(15, 16, seen(9.0, 4.0)), 16, "at most all workers");
        assert_eq!(next_budget(8, 16, seen(0.1, 3.2)), 3, "eight workers shared three cores");
        assert_eq!(next_budget(8, 16, seen(0.1, 7.9)), 8, "this process uses all cores");
        assert_eq!(next_budget(8, 16, seen(0.0, 0.0)), 1, "one worker must always run");
        assert_eq!(
            next_budget(2, 16, seen(0.0, 5.0)),
            2,
            "the other programs took no cores from the workers"
        );
        assert_eq!(next_budget(0, 0, seen(0.0, 0.0)), 1);
        let quota = CoreSample { allowed: 2, ..seen(9.0, 2.0) };
        assert_eq!(next_budget(4, 16, quota), 2, "the budget stays within the quota");
    }

    #[test]
    fn proc_is_read() {
        let stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 10 1 5 70 10 2 1 1 0 0\n\
                    cpu1 0 0 0 100 0 0 0 0 0 0\ncpu2 100 0 0 0 0 0 0 0 0 0\nintr 5 cpu\n";
        assert_eq!(system_ticks(stat, &[]), (3, 180, 300));
        let allowed = allowed_cores("Name:\tfloe\nCpus_allowed:\t5\nCpus_allowed_list:\t0,2-7\n");
        assert_eq!(allowed, [0..=0, 2..=7]);
        assert_eq!(system_ticks(stat, &allowed), (2, 80, 200));
        assert!(allowed_cores("nothing").is_empty());
        let own = "77 (a ) b) S 1 2 3 4 5 6 7 8 9 10 500 60 0 0 20 0";
        assert_eq!(own_ticks(own), Some(560));
        assert_eq!(own_ticks("77 (short) S 1"), None);
        let before = Ticks { cores: 2, idle: 100, all: 1000, own: 5 };
        let now = Ticks { cores: 2, idle: 150, all: 1200, own: 105 };
        assert_eq!(difference(before, now, 16), Some(seen(0.5, 1.0)));
        assert_eq!(difference(now, now, 16), None);
        assert_eq!(running_threads("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(running_threads("odd"), None);
    }

    #[test]
    fn this_machine_says_something() {
        let Some(ticks) = read_ticks() else {
            eprintln!("skipped: no /proc here");
            return;
        };
        assert!(ticks.cores >= 1 && ticks.idle <= ticks.all, "{ticks:?}");
        let cores = ProcCores::new();
        // Until a tick has passed, there is no sample.
        let begin = std::time::Instant::now();
        let sample = loop {
            if let Some(sample) = cores.sample() {
                break sample;
            }
            assert!(begin.elapsed().as_secs() < 30, "no tick in half a minute");
        };
        assert!(sample.idle >= 0.0 && sample.own >= 0.0, "{sample:?}");
    }
}
