//! Extent nodes with a wrong depth: the writes that repair them, and the writes that must not
//! happen.

use floe_check::{CheckOptions, JournalUse, Problem, Report};
use floe_format::ext::extent::ExtentNode;
use floe_format::{BlockNr, InodeNr, LogicalBlock};
use floe_repair::policy::{Decision, Policy, Yes};
use floe_repair::{Repair, RepairOptions, repair};
use floe_testkit::problems::cases;
use floe_testkit::recipe::{Recipe, debugfs, map_node};
use floe_testkit::{Image, Profile, Volume, build, oracle, tool};

const ID: &str = "extent-node-depth-wrong";

/// Accepts all repairs but that of the depth.
struct NoDepth;

impl Policy for NoDepth {
    fn decide(&mut self, problems: &[Problem], _report: &Report) -> Decision {
        Decision::Each(problems.iter().map(|problem| problem.row().id != ID).collect())
    }
}

/// The image of a case of `floe_testkit::problems`.
fn image_of(name: &str) -> Image {
    let case = cases().into_iter().find(|case| case.recipe.name() == name);
    case.unwrap().recipe.build().unwrap()
}

fn mended<'d>(image: &'d Image, policy: &mut dyn Policy) -> Repair<'d> {
    let check = CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    repair(image, &RepairOptions { check, ..RepairOptions::default() }, policy).unwrap()
}

/// The first leaf of `/fragmented`.
fn leaf(image: &Image) -> (BlockNr, Vec<u8>) {
    let volume = Volume::open(image).unwrap();
    let block = volume.map(volume.lookup("/fragmented").unwrap()).unwrap().nodes[1].block;
    (block, volume.block(block).unwrap())
}

/// Without checksums nothing proves whether a block that two files claim is a node of one or data
/// of the other.
#[test]
fn a_node_that_another_file_claims_is_not_written() {
    if tool::missing() {
        return;
    }
    let image = image_of("extents: depth of a node in a file");
    let (node, bytes) = leaf(&image);
    let repair = mended(&image, &mut Yes);
    assert!(repair.is_clean(), "{:?}", repair.left);
    let after = image.with_staged(&repair.staged).unwrap();
    let volume = Volume::open(&after).unwrap();
    let map = volume.map(volume.lookup("/blocks").unwrap()).unwrap();
    let data = map.data.get(&LogicalBlock(0)).unwrap();
    assert!(volume.block(*data).unwrap() == bytes, "{data}, once {node}");
}

/// Two edits of one node: a refused one is not made.
#[test]
fn a_refused_depth_stays_while_the_checksum_is_mended() {
    if tool::missing() {
        return;
    }
    let image = image_of("extents: depth and checksum of a node");
    let repair = mended(&image, &mut NoDepth);
    let left: Vec<_> = repair.left.iter().map(|(problem, _)| problem.row().id).collect();
    assert_eq!(left, [ID]);
    let depth = |bytes: &[u8]| ExtentNode::new(bytes).unwrap().header().depth;
    let (_, after) = leaf(&image.with_staged(&repair.staged).unwrap());
    assert_eq!(depth(&after), 1);
    let (_, after) = leaf(&image.with_staged(&mended(&image, &mut Yes).staged).unwrap());
    assert_eq!(depth(&after), 0);
}

/// Linux refuses to mount with such a journal; e2fsck and Floe replay it, so no transaction is
/// lost.
#[test]
fn a_journal_with_a_node_of_a_wrong_depth_is_replayed() {
    if tool::missing() {
        return;
    }
    // Groups so small that the journal has many extents.
    let profile = Profile::MetaBg32;
    let base = build::base(profile).unwrap();
    let volume = Volume::open(&base).unwrap();
    let nodes = volume.map(InodeNr::JOURNAL).unwrap().nodes.len();
    assert_eq!(nodes, 1, "a root with one leaf");
    let of_file = volume.map(volume.lookup("/blocks").unwrap()).unwrap();
    let target = *of_file.data.get(&LogicalBlock(0)).unwrap();
    let number = target.0;
    let folder = tool::scratch("floe-depth-").unwrap();
    let logged = folder.path().join("logged");
    std::fs::write(&logged, [0x5a; 1024]).unwrap();
    let logged = logged.display();
    let image = Recipe::new("pending, and depth of the journal's leaf")
        .on(profile)
        .edit(debugfs(format!("jo\njw -b {number} {logged}\njc\n")))
        .edit(map_node("<8>", 0).extent_header(|header| header.depth = 3))
        .build()
        .unwrap();
    let content = |image: &Image| Volume::open(image).unwrap().block(target).unwrap();
    assert_ne!(content(&image), [0x5a; 1024], "only the journal has the new content");
    let theirs = image.copy().unwrap();
    oracle::run(theirs.path(), &["-y", "-E", "journal_only"]).unwrap();
    assert_eq!(content(&theirs), [0x5a; 1024]);

    let journal = JournalUse::Replay;
    let check =
        CheckOptions { now_seconds: i64::from(tool::NOW), journal, ..CheckOptions::default() };
    let options = RepairOptions { check, ..RepairOptions::default() };
    let repair = repair(&image, &options, &mut Yes).unwrap();
    assert!(repair.is_clean(), "{:?}", repair.left);
    let damage: Vec<_> = repair.before.found.iter().map(|problem| problem.row().id).collect();
    assert_eq!(damage, [ID]);
    let after = image.with_staged(&repair.staged).unwrap();
    assert_eq!(content(&after), [0x5a; 1024]);
    let volume = Volume::open(&after).unwrap();
    let leaf = volume.map(InodeNr::JOURNAL).unwrap().nodes[0].block;
    let bytes = volume.block(leaf).unwrap();
    assert_eq!(ExtentNode::new(&bytes).unwrap().header().depth, 0);
    assert!(oracle::e2fsck(&after).unwrap().clean());
}
