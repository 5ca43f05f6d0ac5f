//! The report in JSON. `docs/json-schema.md` describes it; [`VERSION`] counts its changes.

use floe_check::memory::Plan;
use floe_check::problem::{Evidence, Problem, Weight};
use floe_check::report::{Cost, JournalState, PhaseTime, PipelineUse, Report};
use floe_format::ext::inode::FileType;
use serde_json::{Map, Value, json};

/// Schema version. Raised when a member is removed or changes its meaning; new members may appear
/// without that.
pub const VERSION: u32 = 1;

/// The whole report as one JSON object.
///
/// `device` is the path as the user gave it, `exit_code` the exit code of the command.
pub fn report(report: &Report, spent: &Cost, device: &str, exit_code: u8) -> Value {
    json!({
        "schema": "floe-check",
        "version": VERSION,
        "floe": env!("CARGO_PKG_VERSION"),
        "device": device,
        "verdict": report.verdict().name(),
        "exit_code": exit_code,
        "filesystem": filesystem(report),
        "journal": journal(report.journal),
        "totals": totals(report),
        "counts": counts(report),
        "findings": report
            .found
            .iter()
            .map(|problem| finding(problem, report.path_of(problem)))
            .collect::<Vec<_>>(),
        "cost": with_phases(cost(spent), report),
    })
}

/// Figures of the pipeline, where passes overlapped.
fn pipeline(used: &PipelineUse) -> Value {
    let PipelineUse { policy, counts, blocks } = used;
    json!({
        "policy": policy.name(),
        "locks": counts.locks,
        "batches": counts.batches,
        "spilled": counts.spilled,
        "sleeps": counts.sleeps,
        "migrations": counts.migrations,
        "fewest_workers": counts.budgets.0,
        "most_workers": counts.budgets.1,
        "stages": counts.stages.iter().map(|stage| json!({
            "name": stage.name,
            "elements": stage.meter.elements,
            "worker_seconds": stage.meter.time.as_secs_f64(),
            "most_waiting": stage.most_entries,
        })).collect::<Vec<_>>(),
        "directory_blocks": {
            "ahead": blocks.plain,
            "delayed": blocks.delayed,
            "left": blocks.left,
        },
    })
}

/// Time, reads and memory of a check or a repair.
pub fn cost(cost: &Cost) -> Value {
    json!({
        "seconds": cost.elapsed.as_secs_f64(),
        "threads": cost.threads,
        "reads": cost.reads,
        "bytes_read": cost.bytes_read,
        "peak_memory_bytes": cost.peak_memory_bytes,
    })
}

fn with_phases(mut cost: Value, report: &Report) -> Value {
    let phase = |phase: &PhaseTime| {
        json!({
            "name": phase.name,
            "seconds": phase.time.as_secs_f64(),
            "reads": phase.reads.reads,
            "bytes_read": phase.reads.bytes,
        })
    };
    cost["memory"] = report.plan.as_ref().map(memory).into();
    cost["phases"] = report.phases.iter().map(phase).collect();
    cost["pipeline"] = report.pipeline.as_ref().map_or(Value::Null, pipeline);
    cost
}

/// The memory plan of the check, and its estimates.
pub fn memory(plan: &Plan) -> Value {
    json!({
        "budget_bytes": plan.budget_bytes,
        "estimate_bytes": plan.estimate.total(),
        "accounting": if plan.way.sums { "fingerprint" } else { "exact" },
        "link_counts": plan.way.links.name(),
    })
}

/// A check that could not run, in the same schema: an error instead of a report.
pub fn failure(device: &str, error: &str, findings: &[Problem], exit_code: u8) -> Value {
    failure_in(("floe-check", VERSION), device, error, findings, exit_code)
}

/// An error in the place of a document of that schema and version.
pub(crate) fn failure_in(
    (schema, version): (&str, u32),
    device: &str,
    error: &str,
    findings: &[Problem],
    exit_code: u8,
) -> Value {
    json!({
        "schema": schema,
        "version": version,
        "floe": env!("CARGO_PKG_VERSION"),
        "device": device,
        "verdict": "incomplete",
        "exit_code": exit_code,
        "error": error,
        "findings": findings.iter().map(|problem| finding(problem, None)).collect::<Vec<_>>(),
    })
}

/// The identity of the file system.
pub fn filesystem(report: &Report) -> Value {
    let (superblock, geometry) = (&report.superblock, &report.geometry);
    json!({
        "label": superblock.label(),
        "uuid": superblock.uuid_text(),
        "features": geometry.features.names(),
        "block_size": geometry.block_size,
        "cluster_blocks": geometry.cluster_blocks,
        "blocks": geometry.blocks_count,
        "inodes": geometry.inodes_count,
        "groups": geometry.group_count,
        "backup_superblock": report.used_backup.map(|block| block.0),
    })
}

fn totals(report: &Report) -> Value {
    let of_type = |wanted: FileType| report.totals.by_type[wanted as usize];
    json!({
        "inodes_used": report.totals.inodes_used,
        "files": of_type(FileType::Regular),
        "directories": of_type(FileType::Directory),
        "symlinks": of_type(FileType::Symlink),
        "char_devices": of_type(FileType::CharDevice),
        "block_devices": of_type(FileType::BlockDevice),
        "fifos": of_type(FileType::Fifo),
        "sockets": of_type(FileType::Socket),
        "blocks_used": report.blocks_used(),
        "large_files": report.totals.large_files,
        "fragments": report.totals.fragments,
    })
}

/// Result of journal recovery.
pub fn journal(journal: JournalState) -> Value {
    match journal {
        JournalState::None => json!({ "state": "none" }),
        JournalState::Clean => json!({ "state": "clean" }),
        JournalState::Replayed { transactions, blocks } => {
            json!({ "state": "replayed", "transactions": transactions, "blocks": blocks })
        }
        JournalState::Ignored => json!({ "state": "ignored" }),
        JournalState::Unusable => json!({ "state": "unusable" }),
    }
}

/// Numbers of findings of each severity, of those that need repair, and of all.
pub fn counts(report: &Report) -> Value {
    let mut map: Map<String, Value> = report
        .counts()
        .into_iter()
        .map(|(severity, count)| (severity.name().to_owned(), count.into()))
        .collect();
    map.insert("damage".to_owned(), report.damage_count().into());
    map.insert("all".to_owned(), report.found.len().into());
    Value::Object(map)
}

/// One finding.
pub fn finding(problem: &Problem, path: Option<String>) -> Value {
    let row = problem.row();
    let inode = problem.inode().filter(|inode| inode.0 != 0);
    json!({
        "code": format!("{:#08x}", row.code),
        "id": row.id,
        "severity": row.severity.name(),
        "weight": weight(row.weight),
        "preen": row.preen,
        "object": row.object.name(),
        "inode": inode.map(|inode| inode.0),
        "path": path,
        "message": problem.to_string(),
        "meaning": row.meaning,
        "repair": row.repair,
        "evidence": evidence(problem),
    })
}

/// The name of a weight.
pub const fn weight(weight: Weight) -> &'static str {
    match weight {
        Weight::Remark => "remark",
        Weight::Damage => "damage",
        Weight::Fatal => "fatal",
    }
}

fn evidence(problem: &Problem) -> Value {
    let value = |evidence| match evidence {
        Evidence::Inode(inode) => Value::from(inode.0),
        Evidence::Block(block) => block.0.into(),
        Evidence::Logical(block) => block.0.into(),
        Evidence::Group(group) => group.0.into(),
        Evidence::Number(number) => number.into(),
        Evidence::Signed(number) => number.into(),
        Evidence::Text(text) => text.into(),
    };
    let fields = problem.evidence().into_iter();
    Value::Object(fields.map(|(name, field)| (name.to_owned(), value(field))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::sample;

    #[test]
    fn a_finding_has_code_place_evidence_and_repair() {
        let value = report(&sample(), &Cost::default(), "fs.img", 4);
        assert_eq!(value["verdict"], "damaged");
        assert_eq!(value["counts"]["data-risk"], 1);
        assert_eq!(value["counts"]["damage"], 3);
        let findings = value["findings"].as_array().unwrap();
        assert_eq!(findings.len(), 4);
        let entry = findings.iter().find(|one| one["id"] == "dirent-inode-unused").unwrap();
        assert_eq!(entry["code"], "0x020003");
        assert_eq!(entry["inode"], 13);
        assert_eq!(entry["path"], "/home/bob");
        assert_eq!(entry["evidence"]["inode_named"], 99);
        assert_eq!(entry["evidence"]["name"], "lost\\xff\\n");
        assert!(entry["repair"].as_str().unwrap().len() > 5);
        let codes: Vec<_> = findings.iter().map(|one| one["code"].as_str().unwrap()).collect();
        assert!(codes.is_sorted());
    }

    #[test]
    fn threads_show_only_in_the_cost() {
        let one = report(&sample(), &Cost { threads: 1, ..Cost::default() }, "x", 0);
        let many = report(&sample(), &Cost { threads: 8, ..Cost::default() }, "x", 0);
        let without_cost = |value: &Value| {
            let mut value = value.clone();
            value.as_object_mut().unwrap().remove("cost");
            value
        };
        assert_eq!(without_cost(&one), without_cost(&many));
    }
}
