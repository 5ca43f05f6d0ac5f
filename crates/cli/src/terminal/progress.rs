//! Displays progress: for people, one bar over all phases on a terminal; for programs, JSON lines.
//!
//! A separate thread samples the counters; the run itself never waits for it. Nothing is displayed
//! if standard error is not a terminal, or during the first half second.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use floe_check::work;
use floe_exec::eta::{Estimator, Eta, Spent};
use floe_exec::{PhaseState, Progress, Snapshot};
use floe_report::human::{grouped, size};
use floe_sync::atomic::{AtomicBool, Ordering};
use floe_sync::{spawn_scoped, thread};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::terminal::usage;

/// Interval between two updates of the bar.
const EVERY: Duration = Duration::from_millis(100);
/// Interval between two lines for programs: a fiftieth of the elapsed time, within these bounds.
const EVERY_LINE: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// Runs shorter than this show no bar.
const SHOWN_AFTER: Duration = Duration::from_millis(500);
/// Assumed width of a terminal that does not report it.
const USUAL_COLUMNS: usize = 80;
/// Columns for the bar and the percentage after it.
const BAR_COLUMNS: usize = 31;
/// Steps of the bar.
const BAR_LENGTH: u64 = 1000;

/// Form of the progress display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum When {
    /// A bar, if standard error is a terminal
    #[default]
    Auto,
    /// Nothing
    Never,
    /// JSON lines on standard error (see docs/progress.md)
    Json,
}

/// The progress of a run, and its display.
pub(crate) struct Watch<'t> {
    progress: Progress,
    bar: Option<ProgressBar>,
    json: bool,
    /// Callback for the completed share of the run, from 0 to 1.
    tell: Option<&'t (dyn Fn(f64) + Sync)>,
    /// Resources that the process had used before.
    before: Used,
}

/// Resources used by the process.
#[derive(Clone, Copy, Default)]
struct Used {
    processor: Duration,
    bytes_from_device: u64,
}

impl Used {
    fn now() -> Self {
        Self {
            processor: usage::processor_time(),
            bytes_from_device: usage::bytes_from_device().unwrap_or(0),
        }
    }
}

impl<'t> Watch<'t> {
    /// Displays nothing itself, and calls `tell`, if given.
    pub(crate) fn telling(tell: Option<&'t (dyn Fn(f64) + Sync)>) -> Self {
        let before = if tell.is_some() { Used::now() } else { Used::default() };
        Self { tell, before, ..Self::new(When::Never) }
    }

    pub(crate) fn new(when: When) -> Self {
        Self::over(work::progress(), when)
    }

    /// Displays the progress of a run whose phases differ from those of a check.
    pub(crate) fn over(progress: Progress, when: When) -> Self {
        let shown = when == When::Auto && std::io::stderr().is_terminal();
        Self {
            progress,
            bar: shown.then(|| ProgressBar::with_draw_target(Some(BAR_LENGTH), hidden())),
            json: when == When::Json,
            tell: None,
            before: if shown || when == When::Json { Used::now() } else { Used::default() },
        }
    }

    /// Resources used by the run so far, given the bytes it read.
    fn spent(&self, bytes_read: u64) -> Spent {
        let (now, before) = (Used::now(), self.before);
        Spent {
            processor: now.processor.saturating_sub(before.processor),
            bytes_read,
            bytes_from_device: now.bytes_from_device.saturating_sub(before.bytes_from_device),
        }
    }

    /// Receiver of the run's progress; `None` if nothing is displayed.
    pub(crate) fn progress(&self) -> Option<&Progress> {
        (self.bar.is_some() || self.json || self.tell.is_some()).then_some(&self.progress)
    }

    /// Runs `work` and displays its progress. `bytes_read` returns the bytes read so far.
    pub(crate) fn during<T>(
        &self,
        bytes_read: &(dyn Fn() -> u64 + Sync),
        work: impl FnOnce() -> T,
    ) -> T {
        if self.progress().is_none() {
            return work();
        }
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            // Without a thread nothing is displayed.
            let shower = spawn_scoped(scope, || self.show(bytes_read, &stop));
            // Also stops the thread if `work` panics, because the scope waits for its threads.
            let _end =
                shower.ok().map(|shower| End { stop: &stop, shower: shower.thread().clone() });
            work()
        })
    }

    /// Runs `ask` with the bar hidden.
    pub(crate) fn aside<T>(&self, ask: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(ask),
            None => ask(),
        }
    }

    fn show(&self, bytes_read: &dyn Fn() -> u64, stop: &AtomicBool) {
        let (mut furthest, mut estimator) = (0.0f64, Estimator::default());
        // At least one update, however short the run.
        loop {
            let last = stop.load(Ordering::Relaxed);
            let now = self.progress.snapshot();
            let bytes = bytes_read();
            let eta = estimator.look(&now, Some(self.spent(bytes)));
            // Never decrease: additional work only makes the bar slower.
            furthest = eta.map_or(furthest, |eta| eta.share.max(furthest));
            if let Some(tell) = self.tell {
                tell(furthest);
            }
            if self.json {
                let mut line = line(&now, eta, furthest, bytes);
                let processor = usage::processor_time().saturating_sub(self.before.processor);
                line["processor_seconds"] = json!(processor.as_secs_f64());
                if last {
                    line["phases"] = now.phases.iter().map(phase_line).collect();
                }
                // Standard error may be closed.
                let _ = writeln!(std::io::stderr(), "{line}");
            } else if let (Some(bar), true) = (&self.bar, now.elapsed >= SHOWN_AFTER) {
                if bar.is_hidden() {
                    bar.set_style(style());
                    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
                }
                // From 0 to BAR_LENGTH.
                bar.set_position((furthest * BAR_LENGTH as f64) as u64);
                bar.set_message(text(&now, eta, bytes, usage::memory_bytes(), columns()));
            }
            if last {
                break;
            }
            let [least, most] = EVERY_LINE;
            let wait = if self.json { (now.elapsed / 50).clamp(least, most) } else { EVERY };
            thread::park_timeout(wait);
        }
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Stops the display thread when dropped.
struct End<'s> {
    stop: &'s AtomicBool,
    shower: thread::Thread,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.shower.unpark();
    }
}

fn hidden() -> ProgressDrawTarget {
    ProgressDrawTarget::hidden()
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:24} {percent:>3} % {wide_msg}")
        // The template is a constant; a test shows that it is valid.
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

/// The text after the bar, limited to `columns`: the most important parts first, the rest if they
/// fit.
fn text(
    now: &Snapshot,
    eta: Option<Eta>,
    bytes: u64,
    memory: Option<u64>,
    columns: usize,
) -> String {
    let rate = bytes as f64 / now.elapsed.as_secs_f64().max(1e-3);
    let parts = [
        eta.map(|eta| format!("{} left", clock(eta.left))),
        Some(phase_text(now)),
        // Nothing is read while creating a file system.
        (bytes > 0).then(|| format!("{} read", size(bytes))),
        // A rate is far below the limit.
        (bytes > 0).then(|| format!("{}/s", size(rate as u64))),
        memory.map(|bytes| format!("{} of memory", size(bytes))),
    ];
    let mut text = String::new();
    for (index, part) in parts.into_iter().enumerate() {
        let Some(part) = part else { continue };
        let between = if text.is_empty() { "" } else { " | " };
        // The first two parts are truncated rather than omitted.
        if index > 1 && text.len() + between.len() + part.len() > columns {
            break;
        }
        text += between;
        text += &part;
    }
    text
}

/// Columns of the terminal after the bar, if its width is known.
fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr()).ok();
    let columns = size.map(|size| usize::from(size.ws_col)).filter(|&columns| columns > 0);
    columns.unwrap_or(USUAL_COLUMNS).saturating_sub(BAR_COLUMNS)
}

/// The phase and its progress, in natural units.
fn phase_text(now: &Snapshot) -> String {
    let round = match now.rounds {
        0 | 1 => String::new(),
        rounds => format!(", examination {} of {rounds}", now.round),
    };
    let Some(phase) = now.running.and_then(|at| now.phases.get(at)) else {
        return if now.round == 0 { "opening".to_owned() } else { format!("staging{round}") };
    };
    match work::noun(phase.name) {
        Some("bytes") => format!("writing {} of {}", size(phase.done), size(phase.total)),
        Some(noun) if phase.objects > 0 => {
            // At most the number of objects.
            let done = (phase.share * phase.objects as f64) as u64;
            format!("{} of {} {noun}{round}", grouped(done), grouped(phase.objects))
        }
        _ => format!("{}{round}", phase.name),
    }
}

/// A duration as minutes and seconds, with hours if needed.
fn clock(time: Duration) -> String {
    // The remaining time is not known precisely, so round up to seconds.
    let seconds = time.as_secs_f64().ceil() as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

/// A progress line for programs.
fn line(now: &Snapshot, eta: Option<Eta>, share: f64, bytes: u64) -> Value {
    let running = now.running.and_then(|at| now.phases.get(at));
    json!({
        "schema": "floe-progress",
        "seconds": now.elapsed.as_secs_f64(),
        "share": share,
        "left_seconds": eta.map(|eta| eta.left.as_secs_f64()),
        "phase": running.map(|phase| phase.name),
        "phase_share": running.map(|phase| phase.share),
        "objects": running.map(|phase| phase.objects),
        "round": now.round,
        "rounds": now.rounds,
        "bytes_read": bytes,
        "memory_bytes": usage::memory_bytes(),
    })
}

/// The state of a phase for programs, with the model's estimate; for the last round.
fn phase_line(phase: &PhaseState) -> Value {
    json!({
        "name": phase.name,
        "seconds": phase.time.map(|time| time.as_secs_f64()),
        "model_processor_seconds": phase.work.busy.as_secs_f64(),
        "model_places_seconds": phase.work.places.as_secs_f64(),
        "model_bytes_seconds": phase.work.bytes.as_secs_f64(),
        "threads": phase.work.threads,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_off_a_clock() {
        let clock = |millis| clock(Duration::from_millis(millis));
        assert_eq!([clock(0), clock(1), clock(61_000)], ["0:00", "0:01", "1:01"]);
        assert_eq!(clock(3_723_400), "1:02:04");
    }

    #[test]
    fn the_template_is_one() {
        assert!(ProgressStyle::with_template("{bar:24} {percent:>3} % {wide_msg}").is_ok());
    }

    #[test]
    fn a_line_says_what_is_done_and_what_is_left() {
        let progress = work::progress();
        assert_eq!(phase_text(&progress.snapshot()), "opening");
        progress.begin_round("superblock");
        progress.begin("inodes");
        let inodes = progress.named("inodes").unwrap();
        let busy = Duration::from_secs(10);
        let work = floe_exec::Work { busy, ..floe_exec::Work::default() };
        inodes.plan(work, 4000, floe_exec::Shape::default());
        inodes.expect(4);
        inodes.advance(1);
        let now = progress.snapshot();
        let eta = Estimator::default().look(&now, None);
        let text = |columns| text(&now, eta, 5 << 20, Some(7 << 20), columns);
        let all = text(200);
        assert!(all.starts_with("0:"), "{all}");
        assert!(all.contains(" left | 1,000 of 4,000 inodes | 5.0 MiB read | "), "{all}");
        assert!(all.ends_with("/s | 7.0 MiB of memory"), "{all}");
        // Memory is omitted first, then the rate; the remaining time never is.
        for columns in 0..all.len() {
            let short = text(columns);
            assert!(all.starts_with(&short) && short.contains(" inodes"), "{columns}: {short}");
            assert!(short.len() <= columns.max(text(0).len()), "{columns}: {short}");
        }
        assert!(text(80 - BAR_COLUMNS).ends_with("| 5.0 MiB read"), "{}", text(80 - BAR_COLUMNS));
        let line = line(&now, eta, 0.1, 9);
        assert_eq!((&line["phase"], &line["phase_share"]), (&json!("inodes"), &json!(0.25)));
        assert!(line["left_seconds"].as_f64().unwrap() >= 0.0);
        progress.end();
        progress.expect_rounds(3);
        assert_eq!(phase_text(&progress.snapshot()), "staging, examination 1 of 3");
    }

    #[test]
    fn somebody_is_told() {
        let most = floe_sync::Mutex::new(-1.0f64);
        let tell = |share: f64| *most.lock().unwrap() = share;
        let watch = Watch::telling(Some(&tell));
        watch.during(&|| 0, || thread::sleep(Duration::from_millis(30)));
        assert!((0.0..=1.0).contains(&*most.lock().unwrap()));
    }

    #[test]
    fn nothing_is_watched_where_nobody_looks() {
        let watch = Watch::new(When::Never);
        assert!(watch.progress().is_none());
        assert_eq!(watch.during(&|| 0, || 7), 7);
        assert_eq!(watch.aside(|| 8), 8);
    }
}
