//! `floe repair --policy`: how far a repair may go, and its report.

use std::cell::RefCell;
use std::io::{self, Write};

use floe_blockdev::ReadBlocks;
use floe_repair::escalation::{Allowance, Attempt, Stage, Toll, escalate};
use floe_repair::policy::Policy;
use floe_repair::{Repair, RepairError};
use floe_report::human::{grouped, plural, size};
use floe_report::repair::Ending;
use serde_json::{Value, json};

/// Stages, and their allowed loss.
#[derive(Debug)]
pub(crate) struct Escalation {
    pub(crate) stages: Vec<Stage>,
    pub(crate) allowance: Allowance,
    /// The outcome, once known.
    outcome: RefCell<Option<Told>>,
}

#[derive(Debug)]
struct Told {
    stage: Option<Stage>,
    toll: Toll,
    attempts: Vec<Attempt>,
}

/// A stage on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Named {
    /// The repairs that e2fsck makes unattended; any other finding prevents all repairs
    Preen,
    /// All repairs without loss; other findings are left
    Safe,
    /// All possible repairs
    All,
}

impl From<Named> for Stage {
    fn from(named: Named) -> Self {
        match named {
            Named::Preen => Self::Preen,
            Named::Safe => Self::Safe,
            Named::All => Self::All,
        }
    }
}

impl Escalation {
    pub(crate) fn new(stages: &[Named], things: Option<u64>, bytes: Option<u64>) -> Self {
        Self {
            stages: stages.iter().map(|&stage| stage.into()).collect(),
            allowance: Allowance { things, bytes },
            outcome: RefCell::new(None),
        }
    }

    /// Selects the repair to make.
    pub(crate) fn escalate<'d>(
        &self,
        device: &dyn ReadBlocks,
        stage: impl FnMut(&mut dyn Policy) -> Result<Repair<'d>, RepairError>,
    ) -> Result<Repair<'d>, RepairError> {
        let escalated = escalate(&self.stages, &self.allowance, device, stage)?;
        let (stage, toll, attempts) = (escalated.stage, escalated.toll, escalated.attempts);
        self.outcome.replace(Some(Told { stage, toll, attempts }));
        Ok(escalated.repair)
    }

    /// The member `policy` of the JSON report. `clean`: nothing is left to repair.
    pub(crate) fn json(&self, clean: bool, ending: &Ending) -> Value {
        let outcome = self.outcome.borrow();
        let Some(told) = &*outcome else { return Value::Null };
        let loss = |toll: &Toll| json!({ "things": toll.things, "bytes": toll.bytes, "uncounted": toll.uncounted });
        let attempts: Vec<Value> = told
            .attempts
            .iter()
            .map(|attempt| {
                json!({
                    "stage": attempt.stage.name(),
                    "complete": attempt.complete,
                    "allowed": attempt.allowed,
                    "halted": attempt.halted,
                    "left": attempt.left,
                    "loss": loss(&attempt.toll),
                })
            })
            .collect();
        let written = matches!(ending, Ending::Written { .. });
        json!({
            "stages": self.stages.iter().map(|stage| stage.name()).collect::<Vec<_>>(),
            "max_loss": self.allowance.things,
            "max_loss_bytes": self.allowance.bytes,
            "stage": told.stage.map(Stage::name),
            "loss": loss(&told.toll),
            "attempts": attempts,
            "action": match (clean, written) {
                (true, true) => "mount",
                (true, false) => "repair",
                (false, _) => "call-a-person",
            },
        })
    }

    /// The same as text.
    pub(crate) fn tell(&self, out: &mut impl Write) -> io::Result<()> {
        let outcome = self.outcome.borrow();
        let Some(told) = &*outcome else { return Ok(()) };
        for attempt in &told.attempts {
            let stage = attempt.stage.name();
            let left = grouped(attempt.left);
            let what = match attempt {
                _ if attempt.halted => "needs a person".to_owned(),
                _ if attempt.complete => "mends everything".to_owned(),
                _ => format!("leaves {left} finding{}", plural(attempt.left)),
            };
            let more =
                if attempt.allowed || attempt.halted { "" } else { ": exceeds the allowed loss" };
            writeln!(out, "Policy {stage}: {what}, {}{more}", loss(&attempt.toll))?;
        }
        match told.stage {
            Some(stage) => writeln!(out, "Policy {} is used.", stage.name()),
            None => writeln!(out, "No policy is within the allowed loss: nothing is repaired."),
        }
    }
}

fn loss(toll: &Toll) -> String {
    let uncounted = if toll.uncounted { ", and an uncountable amount" } else { "" };
    match toll.things {
        0 => format!("loses nothing{uncounted}"),
        things => format!(
            "loses {} thing{}, {}{uncounted}",
            grouped(things),
            plural(things),
            size(toll.bytes)
        ),
    }
}
