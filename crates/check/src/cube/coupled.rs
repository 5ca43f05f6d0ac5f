//! Cubes that share files, because another system, which does not know cubes, has put files of one into another. They fail
//! together, and are checked together.

use std::collections::{BTreeMap, BTreeSet};

use super::{CubeError, CubeName, CubeScope, Cubes};
use crate::options::{CheckOptions, Checkpoints};
use crate::passes::pipeline::check;
use crate::problem::Problem;
use crate::report::Report;
use crate::volume::journal::JournalUse;

/// The cubes besides the root cube that files lead out of or into, each with the smallest number of those that it is connected
/// with; 0: the root cube.
pub fn couples(found: &[Problem]) -> BTreeMap<u32, u32> {
    let pairs = found.iter().filter_map(|problem| match problem {
        Problem::CubeEntangledBlocks { cube, other, .. }
        | Problem::CubeEntangledName { cube, other, .. } => Some((*cube, *other)),
        _ => None,
    });
    connected(&pairs.collect())
}

fn connected(pairs: &BTreeSet<(u32, u32)>) -> BTreeMap<u32, u32> {
    let mut least: BTreeMap<u32, u32> = BTreeMap::new();
    for cube in pairs.iter().flat_map(|(one, other)| [one, other]) {
        least.insert(*cube, *cube);
    }
    loop {
        let before = least.clone();
        for (one, other) in pairs {
            let both = [one, other].map(|cube| least.get(cube).copied().unwrap_or(*cube));
            let first = both[0].min(both[1]);
            least.insert(*one, first);
            least.insert(*other, first);
        }
        if least == before {
            least.remove(&0);
            return least;
        }
    }
}

/// The findings of a whole check that concern a cube or one that is coupled with it.
pub(super) fn check_together(
    cubes: &Cubes<'_>,
    scope: &CubeScope,
    options: &CheckOptions<'_>,
) -> Result<Report, CubeError> {
    let own = CheckOptions {
        journal: JournalUse::Ignore,
        external_journal: None,
        checkpoints: Checkpoints::default(),
        ..*options
    };
    let mut report = check(cubes.base, &own)?;
    let least = couples(&report.found);
    let own = least.get(&scope.sub.cube);
    let others =
        least.iter().filter(|(cube, first)| Some(*first) == own && **cube != scope.sub.cube);
    let mut scopes = vec![scope.clone()];
    // A cube without a sub-superblock has a finding about that.
    scopes.extend(others.filter_map(|(cube, _)| cubes.find(&CubeName::Number(*cube)).ok()));
    report.found.retain(|problem| scopes.iter().any(|scope| scope.concerns(problem)));
    report.paths.retain(|inode, _| scopes.iter().any(|scope| scope.holds_inode(*inode)));
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cubes_that_are_connected_are_one_group() {
        let pairs = BTreeSet::from([(3, 2), (5, 3), (7, 8), (0, 9)]);
        let expected = [(2, 2), (3, 2), (5, 2), (7, 7), (8, 7), (9, 0)];
        assert_eq!(connected(&pairs), BTreeMap::from(expected));
        assert!(connected(&BTreeSet::new()).is_empty());
    }
}
