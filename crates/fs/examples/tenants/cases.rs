//! Which loads run where.

use crate::loads::Load;

/// Settings of a cube unless a case says otherwise.
const OWN: &str = "journal_blocks=2048";
const OFF: &str = "journal_blocks=2048 fsync=off";
const DATA: &str = "journal_blocks=4096 journal_mode=data";

/// A directory that is made for a case: a cube with these settings, or none.
pub(crate) type Place = (&'static str, Option<&'static str>);

/// Loads that run at the same time, each in a directory.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) places: &'static [Place],
    pub(crate) loads: &'static [(Load, &'static str)],
    /// A cube that is checked all the time.
    pub(crate) checked: Option<&'static str>,
    /// The first place and the others lie in two file systems, on halves of the device.
    pub(crate) is_apart: bool,
}

const SQL: Load = Load::Sqlite;
const MAIL: Load = Load::Mail { threads: 8 };
const SMALL_MAIL: Load = Load::Mail { threads: 4 };

pub(crate) const SQLITE_ALONE: &str = "SQLite alone, in a cube";
pub(crate) const MAIL_ALONE: &str = "varmail alone, in a cube";
pub(crate) const IN_ONE: &str = "both in one cube";

const BOTH: &[(Load, &str)] = &[(SQL, "a"), (MAIL, "b")];

/// Tenants, alone and together.
pub(crate) const CASES: &[Case] = &[
    case(SQLITE_ALONE, &[("a", Some(OWN))], &[(SQL, "a")]),
    case(MAIL_ALONE, &[("b", Some(OWN))], &[(MAIL, "b")]),
    case("both, no cubes", &[("a", None), ("b", None)], BOTH),
    case(IN_ONE, &[("c", Some(OWN))], &[(SQL, "c"), (MAIL, "c")]),
    case("each in a cube", &[("a", Some(OWN)), ("b", Some(OWN))], BOTH),
    Case { is_apart: true, ..case("two file systems", &[("a", None), ("b", None)], BOTH) },
    case("each in a cube, one journal", &[("a", Some("")), ("b", Some(""))], BOTH),
    case(
        "four varmails in one cube",
        &[("c", Some(OWN))],
        &[(SMALL_MAIL, "c"), (SMALL_MAIL, "c"), (SMALL_MAIL, "c"), (SMALL_MAIL, "c")],
    ),
    case(
        "four varmails in four cubes",
        &[("a", Some(OWN)), ("b", Some(OWN)), ("c", Some(OWN)), ("d", Some(OWN))],
        &[(SMALL_MAIL, "a"), (SMALL_MAIL, "b"), (SMALL_MAIL, "c"), (SMALL_MAIL, "d")],
    ),
    Case {
        checked: Some("d"),
        ..case(
            "each in a cube, a third is checked",
            &[("a", Some(OWN)), ("b", Some(OWN)), ("d", Some(OWN))],
            BOTH,
        )
    },
];

/// Modes of the cubes of both, and of each alone.
pub(crate) const MODES: &[Case] = &[
    case(SQLITE_ALONE, &[("a", Some(OWN))], &[(SQL, "a")]),
    case("SQLite alone, logs data", &[("a", Some(DATA))], &[(SQL, "a")]),
    case("SQLite alone, fsync=off", &[("a", Some(OFF))], &[(SQL, "a")]),
    case(MAIL_ALONE, &[("b", Some(OWN))], &[(MAIL, "b")]),
    case("varmail alone, logs data", &[("b", Some(DATA))], &[(MAIL, "b")]),
    case("varmail alone, fsync=off", &[("b", Some(OFF))], &[(MAIL, "b")]),
    case(IN_ONE, &[("c", Some(OWN))], &[(SQL, "c"), (MAIL, "c")]),
    case("no cubes", &[("a", None), ("b", None)], BOTH),
    Case { is_apart: true, ..case("two file systems", &[("a", None), ("b", None)], BOTH) },
    case("SQLite ordered, mail ordered", &[("a", Some(OWN)), ("b", Some(OWN))], BOTH),
    case("SQLite off, mail ordered", &[("a", Some(OFF)), ("b", Some(OWN))], BOTH),
    case("SQLite ordered, mail off", &[("a", Some(OWN)), ("b", Some(OFF))], BOTH),
    case("SQLite data, mail ordered", &[("a", Some(DATA)), ("b", Some(OWN))], BOTH),
    case("SQLite ordered, mail data", &[("a", Some(OWN)), ("b", Some(DATA))], BOTH),
    case("SQLite data, mail data", &[("a", Some(DATA)), ("b", Some(DATA))], BOTH),
    case("SQLite off, mail off", &[("a", Some(OFF)), ("b", Some(OFF))], BOTH),
];

const fn case(
    name: &'static str,
    places: &'static [Place],
    loads: &'static [(Load, &'static str)],
) -> Case {
    Case { name, places, loads, checked: None, is_apart: false }
}

/// Whether both loads run, each once.
pub(crate) fn is_both(case: &Case) -> bool {
    let sqlites = case.loads.iter().filter(|(load, _)| matches!(load, Load::Sqlite)).count();
    sqlites == 1 && case.loads.len() == 2
}
