//! The report for programs. `docs/json-schema.md` describes it; [`VERSION`] counts its changes.

use serde_json::{Map, Value, json};

use super::{Cost, Journal, Report};
use crate::problem::{Evidence, Problem, Weight};

/// Number of the schema. Raised when a member is removed or changes its meaning; new members may
/// come without.
pub const VERSION: u32 = 1;

/// The whole report as one JSON object.
///
/// `device` is the path as the user gave it, `exit_code` what the command will exit with.
pub fn report(report: &Report, cost: &Cost, device: &str, exit_code: u8) -> Value {
    json!({
        "schema": "floe-check",
        "version": VERSION,
        "floe": env!("CARGO_PKG_VERSION"),
        "device": device,
        "verdict": report.verdict().name(),
        "exit_code": exit_code,
        "filesystem": filesystem(report),
        "journal": journal(report.journal),
        "totals": {
            "inodes_used": report.totals.inodes_used,
            "files": report.totals.files,
            "directories": report.totals.directories,
            "symlinks": report.totals.symlinks,
            "special_files": report.totals.special_files,
            "names": report.totals.names,
            "blocks_used": report.totals.blocks_used,
            "fragmented": report.totals.fragmented,
        },
        "counts": counts(report),
        "findings": report
            .findings
            .iter()
            .map(|problem| finding(report, problem))
            .collect::<Vec<_>>(),
        "cost": {
            "seconds": cost.elapsed.as_secs_f64(),
            "threads": cost.threads,
            "reads": cost.reads,
            "bytes_read": cost.bytes_read,
            "peak_memory_bytes": cost.peak_memory_bytes,
            "phases": report.phases.iter().map(|phase| json!({
                "name": phase.name,
                "seconds": phase.took.as_secs_f64(),
            })).collect::<Vec<_>>(),
        },
    })
}

/// A check that could not look at all, in the same schema: no findings but an error.
pub fn failure(device: &str, error: &str, findings: &[Problem], exit_code: u8) -> Value {
    let empty = Report::default();
    json!({
        "schema": "floe-check",
        "version": VERSION,
        "floe": env!("CARGO_PKG_VERSION"),
        "device": device,
        "verdict": "incomplete",
        "exit_code": exit_code,
        "error": error,
        "findings": findings.iter().map(|problem| finding(&empty, problem)).collect::<Vec<_>>(),
    })
}

fn filesystem(report: &Report) -> Value {
    let fs = &report.filesystem;
    json!({
        "label": fs.label,
        "uuid": fs.uuid,
        "features": fs.features,
        "block_size": fs.block_size,
        "blocks": fs.blocks,
        "inodes": fs.inodes,
        "groups": fs.groups,
        "superblock": fs.superblock.0,
        "from_backup": fs.from_backup,
    })
}

fn journal(journal: Journal) -> Value {
    match journal {
        Journal::None => json!({ "state": "none" }),
        Journal::Clean => json!({ "state": "clean" }),
        Journal::Replayed { transactions, blocks } => {
            json!({ "state": "replayed", "transactions": transactions, "blocks": blocks })
        }
        Journal::Ignored => json!({ "state": "ignored" }),
        Journal::Unusable => json!({ "state": "unusable" }),
    }
}

fn counts(report: &Report) -> Value {
    let mut map: Map<String, Value> = report
        .counts()
        .into_iter()
        .map(|(severity, count)| (severity.name().to_owned(), count.into()))
        .collect();
    map.insert("damage".to_owned(), report.damage_count().into());
    map.insert("all".to_owned(), report.findings.len().into());
    Value::Object(map)
}

/// One finding.
pub fn finding(report: &Report, problem: &Problem) -> Value {
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
        "path": inode.and_then(|inode| report.path(inode)),
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
    use crate::report::tests::sample;

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
