//! The states in which a power failure can leave a device during writes.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use floe_blockdev::{Crash, Event, MemDevice, Trace};

use crate::rng::Rng;

/// Number of crashes of each kind to try.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Between two flushes: random subsets of writes that never arrived.
    pub random_per_epoch: usize,
    /// Seed of those subsets.
    pub seed: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Self { random_per_epoch: 6, seed: 1 }
    }
}

/// Crashes after every event of a trace, with the last write complete, torn inside a sector and
/// torn between sectors; and for each epoch between flushes, with random writes lost, and with all
/// but one lost.
pub fn crashes(trace: &Trace, effort: Effort) -> Vec<Crash> {
    let mut rng = Rng::new(effort.seed);
    let mut all = vec![Crash::default()];
    for (index, event) in trace.events.iter().enumerate() {
        let issued = index + 1;
        all.push(Crash::after(issued));
        if let Event::Write { bytes, .. } = event {
            let torn = [512, bytes.len() / 2, rng.index(bytes.len())];
            for torn_bytes in torn.into_iter().filter(|&torn| torn < bytes.len()) {
                all.push(Crash { torn_bytes: Some(torn_bytes), ..Crash::after(issued) });
            }
            continue;
        }
        // Just before the flush: all writes since the previous one may be lost.
        let epoch: Vec<usize> = (trace.durable_until(index)..index).collect();
        if epoch.len() < 2 {
            all.push(Crash { lost: epoch.into_iter().collect(), ..Crash::after(index) });
            continue;
        }
        for _ in 0..effort.random_per_epoch {
            let lost: BTreeSet<usize> = epoch.iter().copied().filter(|_| rng.chance(2)).collect();
            all.push(Crash { lost, ..Crash::after(index) });
        }
        let kept = rng.index(epoch.len());
        let lost = epoch.iter().copied().filter(|&write| write != epoch[kept]).collect();
        all.push(Crash { lost, ..Crash::after(index) });
    }
    all
}

/// Calls `judge` with the device in the state after each of [`crashes`]. `before` is the content of
/// the device at the start of the trace.
///
/// # Errors
/// The first error of `judge`, with the crash that caused it.
pub fn each_state(
    trace: &Trace,
    before: &[u8],
    effort: Effort,
    mut judge: impl FnMut(MemDevice, &Crash) -> Result<()>,
) -> Result<usize> {
    let all = crashes(trace, effort);
    for crash in &all {
        let device = MemDevice::new(before.to_vec());
        trace.replay(crash, &device).context("replaying the trace")?;
        judge(device, crash).with_context(|| format!("after {crash:?}"))?;
    }
    Ok(all.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_blockdev::{Recorder, WriteBlocks};

    #[test]
    fn every_prefix_and_every_single_loss_is_met() {
        let device = Recorder::new(MemDevice::new(vec![0; 4096]));
        for byte in 1..=3u8 {
            device.write_at(u64::from(byte), &[byte]).unwrap();
        }
        device.flush().unwrap();
        device.write_at(1024, &[9; 1024]).unwrap();
        device.flush().unwrap();
        let (_, trace) = device.into_parts();
        let mut states = BTreeSet::new();
        let effort = Effort { random_per_epoch: 40, seed: 7 };
        let count = each_state(&trace, &vec![0; 4096], effort, |device, _| {
            let bytes = device.to_vec();
            let second = bytes[1024..2048].iter().filter(|&&byte| byte == 9).count();
            states.insert((bytes[1], bytes[2], bytes[3], second));
            Ok(())
        })
        .unwrap();
        assert!(count > 50);
        // Any of the first three writes with or without any other, before the flush.
        for first in [0, 1] {
            for second in [0, 2] {
                for third in [0, 3] {
                    assert!(states.contains(&(first, second, third, 0)), "{states:?}");
                }
            }
        }
        // The last write lost, torn and complete; the first three are durable by then.
        let last: Vec<_> = states.iter().filter(|state| state.3 > 0).collect();
        assert!(last.iter().all(|state| (state.0, state.1, state.2) == (1, 2, 3)), "{states:?}");
        assert!(last.len() >= 2 && states.contains(&(1, 2, 3, 1024)), "{states:?}");
    }

    #[test]
    fn what_a_judge_says_names_the_crash() {
        let trace = Trace { events: vec![Event::Flush] };
        let error = each_state(&trace, &[0], Effort::default(), |_, crash| {
            anyhow::ensure!(crash.issued == 0, "no");
            Ok(())
        })
        .unwrap_err();
        assert!(format!("{error:#}").contains("issued: 1"), "{error:#}");
    }
}
