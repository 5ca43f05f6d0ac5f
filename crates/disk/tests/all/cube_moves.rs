//! A lot moves to a journal that the device does not give at the first try: the old journal goes on.

use std::time::Duration;

use floe_blockdev::{FailsAt, MemDevice, RequestKind, Strike};
use floe_check::{CheckOptions, check};
use floe_disk::recovery::recover;
use floe_testkit::tool;

use crate::cube_journals::{base, create, make_cube};
use crate::journal_ops::{Mounted, tree, unmount};

/// Lets a request fail while a change begins; the kind of the request, if there are so many, and whether the old journal goes on.
fn struck(at: u64, waits: bool) -> Option<(RequestKind, bool)> {
    let device = MemDevice::new(base().to_vec());
    let failing = FailsAt::new(&device, at, Strike::Once);
    let mut mounted = Mounted::new(&failing).unwrap();
    make_cube(&mut mounted, "/c");
    mounted.sync();
    failing.arm(true);
    let began = mounted.journal.begin(8).map(drop);
    failing.arm(false);
    let struck = failing.struck()?;
    if struck.kind != RequestKind::Read {
        return Some((struck.kind, false));
    }
    began.unwrap_or_else(|error| panic!("request {at}: {error}"));
    // Reads of other cubes do not matter.
    let stays = !mounted.journal.cube_state(3).has_own;
    create(&mut mounted, "c/new");
    mounted.journal.commit_cube(3).unwrap();
    let crashed = device.clone();
    recover(&crashed).unwrap();
    assert!(tree(&crashed).unwrap().contains_key("c/new"), "request {at}");
    if waits {
        // The next second.
        std::thread::sleep(Duration::from_millis(1100));
        create(&mut mounted, "c/more");
        assert!(mounted.journal.cube_state(3).has_own, "request {at}");
    }
    unmount(mounted).unwrap();
    let report = check(&device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.found);
    Some((struck.kind, stays))
}

#[test]
fn one_failed_read_of_a_new_journal_ends_nothing() {
    if tool::missing() {
        return;
    }
    let all: Vec<_> = (0..).map_while(|at| struck(at, false)).collect();
    let staying = |one: &(RequestKind, bool)| one.1;
    assert!(all.iter().copied().filter(staying).count() > 3, "{all:?}");
    let last = all.iter().rposition(staying).unwrap();
    assert_eq!(struck(last as u64, true), Some((RequestKind::Read, true)));
}
