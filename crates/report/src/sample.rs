//! A report for tests.

use std::collections::BTreeMap;

use floe_check::Report;
use floe_check::evidence::totals::Totals;
use floe_check::problem::{Findings, Name, Problem, Severity, Weight};
use floe_check::report::{JournalState, Verdict, in_order};
use floe_format::ext::superblock::Superblock;
use floe_format::geometry::Strictness;
use floe_format::{Geometry, GroupNr, InodeNr};

fn superblock() -> Superblock {
    let mut superblock = Superblock::decode(&[0; 1024]);
    superblock.inodes_count = 16384;
    superblock.blocks_count_lo = 65536;
    superblock.log_block_size = 2;
    superblock.log_cluster_size = 2;
    superblock.blocks_per_group = 32768;
    superblock.clusters_per_group = 32768;
    superblock.inodes_per_group = 8192;
    superblock.rev_level = 1;
    superblock.first_ino = 11;
    superblock.inode_size = 256;
    superblock.feature_compat = 4;
    superblock.volume_name[..4].copy_from_slice(b"demo");
    superblock
}

/// A report with a finding of each weight, about several objects.
pub(crate) fn sample() -> Report {
    let link_count = Problem::InodeLinkCountWrong { inode: InodeNr(12), stored: 3, counted: 2 };
    let found = vec![
        link_count.clone(),
        Problem::DirentInodeUnused {
            dir: InodeNr(13),
            logical: floe_format::LogicalBlock(0),
            offset_bytes: 24,
            inode_named: InodeNr(99),
            name: Name::new(b"lost\xff\n"),
        },
        Problem::GroupFreeBlockCountWrong { group: GroupNr(1), stored: 5, counted: 6 },
        Problem::UuidMissing,
        link_count,
    ];
    let superblock = superblock();
    Report {
        found: in_order(Findings(found)),
        geometry: Geometry::new(&superblock, Strictness::Strict).unwrap(),
        superblock,
        used_backup: None,
        totals: Totals { inodes_used: 20, ..Totals::default() },
        clusters_used: 1000,
        journal: JournalState::Replayed { transactions: 2, blocks: 17 },
        paths: BTreeMap::from([(InodeNr(13), b"/home/bob".to_vec())]),
        phases: Vec::new(),
        pipeline: None,
        rescanned_groups: None,
        plan: None,
    }
}

#[test]
fn the_verdict_is_the_worst_weight() {
    let mut report = sample();
    assert_eq!(report.found.len(), 4, "repetitions are dropped");
    assert_eq!(report.verdict(), Verdict::Damaged);
    assert_eq!(report.damage_count(), 3);
    assert_eq!(report.worst_damage(), Some(Severity::DataRisk));
    report.found.retain(|problem| problem.row().weight == Weight::Remark);
    assert_eq!(report.verdict(), Verdict::Clean);
    assert_eq!(report.worst_damage(), None);
    report.found.push(Problem::SuperblockUnusable);
    assert_eq!(report.verdict(), Verdict::Incomplete);
}
