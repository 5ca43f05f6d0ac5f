//! How long the rest of a run will take: from a model of the work, calibrated by what was done.
//!
//! Each phase has an expected time by a model (`Phase::plan`), which knows neither this machine nor
//! its disk. Time spent so far over the model's time for the same work is the *pace*; the phase that
//! is running goes on at its own pace, those to come at the pace of all so far:
//!
//! - rest of the running phase = its time * (1 - share) / share, once a share is done that says
//!   something; before that, and for later phases: model time * pace;
//! - each further round of a repair = the average of the rounds that ended, or the whole model time
//!   of a round * pace.

use std::time::Duration;

use crate::progress::{PhaseState, Snapshot};

/// Share of a phase from which on its own pace counts alone; below, it is mixed with that of all.
const OWN_PACE_SHARE: f64 = 0.1;
/// Paces between the model and this machine that are believed.
const PACES: std::ops::RangeInclusive<f64> = 0.01..=10_000.0;

/// What is to be expected of the rest of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Eta {
    /// Time that is left.
    pub left: Duration,
    /// The share of the whole time that has passed, from 0 to 1.
    pub share: f64,
}

/// The rest of a run, seen at `now`. `None` while nothing was planned or done.
pub fn eta(now: &Snapshot) -> Option<Eta> {
    let pace = pace(&now.phases)?;
    let mut left = 0.0;
    for phase in now.phases.iter().filter(|phase| !phase.ended) {
        let work = phase.work.as_secs_f64();
        let by_model = work * (1.0 - phase.share) * pace;
        left += match phase.time {
            Some(time) if phase.share > 0.0 => {
                let own = time.as_secs_f64() * (1.0 - phase.share) / phase.share;
                let trust = (phase.share / OWN_PACE_SHARE).min(1.0);
                // Without a plan there is nothing else to go by.
                if work > 0.0 { own * trust + by_model * (1.0 - trust) } else { own }
            }
            _ => by_model,
        };
    }
    let round = now.round_time.map_or_else(
        || now.phases.iter().map(|phase| phase.work.as_secs_f64()).sum::<f64>() * pace,
        |time| time.as_secs_f64(),
    );
    left += f64::from(now.rounds.saturating_sub(now.round.max(1))) * round;
    let elapsed = now.elapsed.as_secs_f64();
    let left = Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX);
    Some(Eta { left, share: elapsed / (elapsed + left.as_secs_f64()).max(f64::MIN_POSITIVE) })
}

/// Time that was needed for each second of the model.
fn pace(phases: &[PhaseState]) -> Option<f64> {
    let (mut spent, mut modelled) = (0.0, 0.0);
    for phase in phases.iter().filter(|phase| !phase.work.is_zero()) {
        if let Some(time) = phase.time {
            spent += time.as_secs_f64();
            modelled += phase.work.as_secs_f64() * phase.share;
        }
    }
    if spent == 0.0 || modelled == 0.0 {
        return None;
    }
    Some((spent / modelled).clamp(*PACES.start(), *PACES.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(name: &'static str, work: u64, time: Option<u64>, share: f64) -> PhaseState {
        PhaseState {
            name,
            done: 0,
            total: 0,
            share,
            objects: 0,
            work: Duration::from_secs(work),
            time: time.map(Duration::from_secs),
            ended: share == 1.0,
        }
    }

    fn at(elapsed: u64, phases: &[PhaseState]) -> Snapshot {
        Snapshot {
            elapsed: Duration::from_secs(elapsed),
            running: None,
            phases: phases.to_vec(),
            round: 1,
            rounds: 1,
            round_time: None,
        }
    }

    #[test]
    fn later_phases_go_at_the_pace_so_far() {
        // Three times as slow as the model: 30 s done, 30 s of this phase, 60 s of the next.
        let now = at(30, &[phase("a", 20, Some(30), 0.5), phase("b", 20, None, 0.0)]);
        let eta = eta(&now).unwrap();
        assert_eq!(eta.left, Duration::from_secs(90));
        assert!((eta.share - 0.25).abs() < 1e-9);
    }

    #[test]
    fn a_phase_goes_on_at_its_own_pace() {
        let now = at(110, &[phase("a", 10, Some(10), 1.0), phase("b", 10, Some(100), 0.5)]);
        assert_eq!(eta(&now).unwrap().left, Duration::from_secs(100));
        // One that has hardly begun is judged by the others: the model says 99 s, it itself 9900.
        let now = at(200, &[phase("a", 100, Some(100), 1.0), phase("b", 100, Some(100), 0.01)]);
        let left = eta(&now).unwrap().left.as_secs_f64();
        assert!(left > 900.0 && left < 1500.0, "{left}");
    }

    #[test]
    fn rounds_to_come_count() {
        let mut now = at(10, &[phase("a", 10, Some(10), 1.0), phase("b", 10, None, 0.0)]);
        now.rounds = 3;
        assert_eq!(eta(&now).unwrap().left, Duration::from_secs(10 + 2 * 20));
        now.round_time = Some(Duration::from_secs(7));
        assert_eq!(eta(&now).unwrap().left, Duration::from_secs(10 + 2 * 7));
    }

    #[test]
    fn nothing_is_known_at_first() {
        assert_eq!(eta(&at(0, &[phase("a", 10, None, 0.0)])), None);
        assert_eq!(eta(&at(3, &[phase("a", 0, Some(3), 0.5)])), None, "without a plan");
    }
}
