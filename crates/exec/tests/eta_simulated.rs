//! Predictions for simulated runs: random phases, machines and disks that differ from the model's,
//! with speeds that vary during the run. After a tenth of a run, the predicted remaining time must
//! be right within a fifth, nearly always.

#![cfg(not(feature = "shuttle"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::unreachable)] // a test may

use std::cmp::Ordering;
use std::time::Duration;

use floe_exec::eta::{Estimator, Spent};
use floe_exec::{PhaseState, Snapshot, Work};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

/// Model seconds for each phase: processors, seeks, transfers; threads.
const MODEL: [([f64; 3], usize); 5] = [
    ([0.3, 0.15, 0.05], 1),
    ([40.0, 1.0, 29.0], 2),
    ([1.0, 0.0, 0.0], 1),
    ([25.0, 50.0, 10.0], 2),
    ([2.0, 2.0, 1.0], 2),
];

/// A machine, relative to the model's.
#[derive(Clone, Copy, Debug)]
struct Machine {
    /// Seconds of processors, of seeks and of transfers for each second of the model.
    pace: [f64; 3],
    /// Whether anything comes from the device.
    cold: bool,
    /// The share of the time in which other programs use the processors.
    taken: f64,
}

/// The error of the model for each phase: factors on its times.
type Faults = [[f64; 3]; MODEL.len()];

/// Steps in which a phase is simulated.
const STEPS: usize = 200;

/// Simulates the run. Returns the relative error of the prediction after a tenth of the run.
/// `waver` has the factors by which the speed of each step differs from the average.
fn off_after_a_tenth(machine: Machine, faults: Faults, waver: &[f64]) -> f64 {
    let seconds = |phase: usize, of: usize| {
        let (model, threads) = MODEL[phase];
        // Threads share processors, not the device.
        let shared = if of == 0 { threads as f64 } else { 1.0 };
        let alone = model[of] / shared * machine.pace[of] * faults[phase][of];
        let waits = if machine.cold { alone } else { 0.0 };
        [alone / (1.0 - machine.taken), waits, waits][of]
    };
    let mut steps = Vec::new();
    for phase in 0..MODEL.len() {
        for step in 0..STEPS {
            // Slow and fast periods last for a while.
            let waver = waver[(phase * STEPS + step) / 20 % waver.len()];
            let each = |of| seconds(phase, of) / STEPS as f64 * waver;
            let processor = each(0) * (1.0 - machine.taken) * MODEL[phase].1 as f64;
            steps.push((phase, step + 1, each(0) + each(1) + each(2), processor));
        }
    }
    let all: f64 = steps.iter().map(|step| step.2).sum();
    let (mut now, mut processor) = (0.0, 0.0);
    let mut times = [0.0; MODEL.len()];
    let mut estimator = Estimator::default();
    for (looks, &(phase, step, time, busy)) in (1..).zip(&steps) {
        now += time;
        processor += busy;
        times[phase] += time;
        let state = |at: usize| PhaseState {
            name: "phase",
            done: 0,
            total: 0,
            share: match at.cmp(&phase) {
                Ordering::Less => 1.0,
                Ordering::Equal => step as f64 / STEPS as f64,
                Ordering::Greater => 0.0,
            },
            objects: 0,
            work: {
                let [busy, places, bytes] = MODEL[at].0.map(Duration::from_secs_f64);
                Work { busy, places, bytes, threads: MODEL[at].1 }
            },
            time: (at <= phase).then(|| Duration::from_secs_f64(times[at])),
            ended: at < phase,
        };
        let look = Snapshot {
            elapsed: Duration::from_secs_f64(now),
            running: Some(phase),
            phases: (0..MODEL.len()).map(state).collect(),
            round: 1,
            rounds: 1,
            round_time: None,
        };
        let spent = Spent {
            processor: Duration::from_secs_f64(processor),
            bytes_read: 1000 * looks,
            bytes_from_device: if machine.cold { 900 * looks } else { 0 },
        };
        let said = estimator.look(&look, Some(spent)).expect("something was done");
        if now >= all / 10.0 {
            return (said.left.as_secs_f64() - (all - now)) / (all - now);
        }
    }
    unreachable!("the last step is at the end of the run")
}

fn machines() -> impl Strategy<Value = Machine> {
    let decades = |most: f64| (-most..most).prop_map(|power: f64| 10f64.powf(power));
    let device = (decades(1.7), -0.5..0.5);
    (decades(1.0), device, any::<bool>(), 0.0..0.7).prop_map(
        |(processor, (places, bytes), cold, taken)| Machine {
            // Disks differ more in seeks than in transfers.
            pace: [processor, places, 10f64.powf(bytes)],
            cold,
            // If both the device and other programs cause waiting, the two cannot be told apart.
            taken: if cold { 0.0 } else { taken },
        },
    )
}

fn faults(by: f64) -> impl Strategy<Value = Faults> {
    prop::array::uniform5(prop::array::uniform3(1.0 - by..1.0 + by))
}

#[test]
fn with_an_exact_model_any_machine_is_known_after_a_tenth() {
    let mut runner = TestRunner::new(Config::with_cases(512));
    runner
        .run(&machines(), |machine| {
            let off = off_after_a_tenth(machine, [[1.0; 3]; MODEL.len()], &[1.0]);
            prop_assert!(off.abs() < 0.03, "{off}");
            Ok(())
        })
        .unwrap();
}

#[test]
fn with_a_model_that_is_off_and_a_speed_that_wavers_a_fifth_holds() {
    let mut runner = TestRunner::deterministic();
    let waver = prop::collection::vec(0.8..1.2, 50);
    let runs = (machines(), faults(0.1), waver);
    let mut offs: Vec<f64> = (0..2000)
        .map(|_| {
            let (machine, faults, waver) = runs.new_tree(&mut runner).unwrap().current();
            off_after_a_tenth(machine, faults, &waver).abs()
        })
        .collect();
    offs.sort_by(f64::total_cmp);
    let (median, most) = (offs[1000], offs[1900]);
    assert!(median < 0.08, "half of all runs are {median} off, or more");
    assert!(most < 0.2, "one run in twenty is {most} off, or more");
}
