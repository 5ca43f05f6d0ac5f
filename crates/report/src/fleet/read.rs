//! Reads the results of a run: documents of `floe check --json`, one after another, or in a column of a Parquet file.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use serde_json::{Deserializer, Value};

use super::parquet::{self, ParquetError, Source, Text};
use super::{Image, Kind, State};

/// The column of Parquet files with a document in each row.
const COLUMN: &str = "document";

/// The results of one run over a fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Its name, such as that of the file of results.
    pub name: String,
    /// The images by device, as each check was given it. If one was checked twice, the later result counts. Devices of
    /// one name with different file systems, as of different hosts, are different images: `NAME (UUID)`.
    pub images: BTreeMap<String, Image>,
    /// Results that later ones of the same image have replaced.
    pub replaced: u64,
    /// Devices of which several are so named.
    shared: BTreeSet<String>,
}

/// Why results cannot be read.
#[derive(Debug)]
pub enum ReadError {
    /// The file cannot be read, or is not JSON, or ends within a document.
    Json(serde_json::Error),
    /// A document is not the result of a check, counted from 1.
    Foreign(usize, String),
    /// A Parquet file cannot be read.
    Parquet(ParquetError),
}

impl std::error::Error for ReadError {}

impl std::fmt::Display for ReadError {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Json(error) if error.is_eof() => {
                write!(to, "the last document is truncated ({error})")
            }
            Self::Json(error) => write!(to, "not a series of JSON documents: {error}"),
            Self::Foreign(at, why) => {
                write!(to, "document {at} is not a result of floe check --json: {why}")
            }
            Self::Parquet(error) => error.fmt(to),
        }
    }
}

impl From<ParquetError> for ReadError {
    fn from(error: ParquetError) -> Self {
        Self::Parquet(error)
    }
}

impl Run {
    /// A run without results.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// A run with documents alone.
    #[cfg(test)]
    pub(in crate::fleet) fn read(name: &str, results: impl Read) -> Result<Self, ReadError> {
        let mut run = Self::new(name);
        run.add_json(results)?;
        Ok(run)
    }

    /// Adds documents of `floe check --json`, on one line each or not, until the end.
    ///
    /// # Errors
    /// See [`ReadError`]. Nothing is left out silently.
    pub fn add_json(&mut self, results: impl Read) -> Result<(), ReadError> {
        for (at, document) in Deserializer::from_reader(results).into_iter::<Value>().enumerate() {
            self.add(at + 1, &document.map_err(ReadError::Json)?)?;
        }
        Ok(())
    }

    /// Adds the documents in the column `document` of a Parquet file, as Spark and pyarrow write it.
    ///
    /// Needs memory for a few pages of the file, 128 MiB each at most, whatever the file says.
    ///
    /// # Errors
    /// See [`ReadError`]. Nothing is left out silently.
    pub fn add_parquet(&mut self, file: &(impl Source + ?Sized)) -> Result<(), ReadError> {
        let mut at = 0;
        parquet::texts(file, COLUMN, |document| {
            at += 1;
            match document {
                Text::None => Err(ReadError::Foreign(at, "it is null".to_owned())),
                Text::Again => Ok(()),
                Text::Some(document) => match serde_json::from_slice(document) {
                    Ok(document) => self.add(at, &document),
                    Err(error) => Err(ReadError::Foreign(at, error.to_string())),
                },
            }
        })
    }

    /// Adds an image whose check left no result.
    pub fn add_lost(&mut self, device: &str, why: &str) {
        let lost = Image {
            state: State::Incomplete,
            error: why.to_owned(),
            label: String::new(),
            uuid: String::new(),
            bytes: 0,
            seconds: 0.0,
            bytes_read: 0,
            kinds: BTreeMap::new(),
        };
        self.images.insert(device.to_owned(), lost);
    }

    /// Adds a result, the document number `at` of its file.
    fn add(&mut self, at: usize, document: &Value) -> Result<(), ReadError> {
        let (device, image) = image(document).map_err(|why| ReadError::Foreign(at, why))?;
        if let Some(known) = self.images.get(&device) {
            let differ = known.uuid != image.uuid;
            if differ && !known.uuid.is_empty() && !image.uuid.is_empty() {
                let before = format!("{device} ({})", known.uuid);
                let known = self.images.remove(&device);
                self.images.extend(known.map(|known| (before, known)));
                self.shared.insert(device.clone());
            }
        }
        let name = match self.shared.contains(&device) && !image.uuid.is_empty() {
            true => format!("{device} ({})", image.uuid),
            false => device,
        };
        self.replaced += u64::from(self.images.insert(name, image).is_some());
        Ok(())
    }
}

fn image(document: &Value) -> Result<(String, Image), String> {
    if document["schema"] != "floe-check" {
        return Err("it has no \"schema\": \"floe-check\"".to_owned());
    }
    if document["version"] != crate::json::VERSION {
        return Err(format!("its version is {}", document["version"]));
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let device = document["device"].as_str().ok_or("it names no device")?.to_owned();
    let findings = document["findings"].as_array().ok_or("it has no findings")?;
    let mut kinds = BTreeMap::<String, Kind>::new();
    for finding in findings {
        let code = finding["code"].as_str().ok_or("a finding has no code")?;
        let kind = kinds.entry(code.to_owned()).or_insert_with(|| Kind {
            id: text(&finding["id"]),
            severity: text(&finding["severity"]),
            remark: finding["weight"] == "remark",
            findings: 0,
        });
        kind.findings += 1;
    }
    let state = match document["verdict"].as_str() {
        Some("clean") => State::Clean,
        Some("damaged") if kinds.values().any(Kind::at_risk) => State::AtRisk,
        Some("damaged") => State::Damaged,
        Some("incomplete") => State::Incomplete,
        _ => return Err(format!("its verdict is {}", document["verdict"])),
    };
    let (system, cost) = (&document["filesystem"], &document["cost"]);
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let image = Image {
        state,
        // Messages begin with the name.
        error: text(&document["error"]).trim_start_matches(&format!("{device}: ")).to_owned(),
        label: text(&system["label"]),
        uuid: text(&system["uuid"]),
        bytes: number(&system["blocks"]).saturating_mul(number(&system["block_size"])),
        seconds: cost["seconds"].as_f64().unwrap_or(0.0).max(0.0),
        bytes_read: number(&cost["bytes_read"]),
        kinds,
    };
    Ok((device, image))
}

#[cfg(test)]
pub(super) mod tests {
    use floe_check::report::Cost;

    use super::*;
    use crate::json;
    use crate::sample::sample;

    /// Results as `floe check --json` writes them: `count` images `NAME-0`, `NAME-1` ..., the first `damaged` of which
    /// are damaged, and one that cannot be examined.
    pub(in crate::fleet) fn results(name: &str, count: usize, damaged: usize) -> String {
        let damage = sample();
        let clean = floe_check::Report { found: Vec::new(), ..sample() };
        let one = |at: usize| {
            let (report, code) = if at < damaged { (&damage, 4) } else { (&clean, 0) };
            let cost = Cost {
                elapsed: std::time::Duration::from_millis(at as u64 + 1),
                threads: 1,
                reads: 3,
                bytes_read: 4096,
                peak_memory_bytes: None,
            };
            json::report(report, &cost, &format!("{name}-{at}"), code).to_string() + "\n"
        };
        let lost = json::failure(&format!("{name}-<lost>"), "no \"such\" device", &[], 8);
        (0..count).map(one).collect::<String>() + &format!("{lost:#}\n")
    }

    #[test]
    fn results_are_read_on_lines_and_across_lines() {
        let run = Run::read("night", results("vol", 5, 2).as_bytes()).unwrap();
        assert_eq!(run.images.len(), 6);
        let states: Vec<State> = run.images.values().map(|image| image.state).collect();
        use State::{AtRisk, Clean, Incomplete};
        assert_eq!(states, [AtRisk, AtRisk, Clean, Clean, Clean, Incomplete]);
        assert_eq!(run.images["vol-<lost>"].error, "no \"such\" device");
        let found = sample().found.len() as u64;
        let counted: u64 = run.images["vol-0"].kinds.values().map(|kind| kind.findings).sum();
        assert_eq!(counted, found);
        assert!(run.images["vol-0"].kinds.values().all(|kind| kind.row().is_some()));
        assert!((run.images["vol-4"].seconds - 0.005).abs() < 1e-9);
        // A check that was run again replaces the earlier result.
        let twice = results("vol", 5, 2) + &results("vol", 5, 0);
        let run = Run::read("night", twice.as_bytes()).unwrap();
        assert_eq!((run.images["vol-0"].state, run.replaced), (Clean, 6));
    }

    /// The results of many hosts, each of which has a `/dev/vda1`, lie in one file.
    #[test]
    fn devices_of_one_name_with_other_file_systems_are_not_one() {
        let of = |uuid: &str, damaged: usize| {
            let result = results("vda", 1, damaged);
            let mut result: Value =
                serde_json::from_str(&result[..result.find("\n{\n").unwrap()]).unwrap();
            result["filesystem"]["uuid"] = uuid.into();
            result.to_string()
        };
        let lost = json::failure("vda-0", "vda-0: no such device", &[], 8).to_string();
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
            let all = [of("a", 0), of("b", 1), of("c", 0), of("a", 1)];
            let all: String = order.iter().map(|at| all[*at].as_str()).collect();
            let run = Run::read("night", (all + &lost).as_bytes()).unwrap();
            let names: Vec<&str> = run.images.keys().map(String::as_str).collect();
            assert_eq!(names, ["vda-0", "vda-0 (a)", "vda-0 (b)", "vda-0 (c)"], "{order:?}");
            assert_eq!(run.replaced, 1);
            assert_eq!(run.images["vda-0"].error, "no such device");
        }
    }

    #[test]
    fn results_in_parquet_are_those_on_lines() {
        use crate::fleet::parquet::made::{Way, file};
        let lines = results("vol", 30, 2).replace("\n  ", " ");
        let expected = Run::read("night", lines.as_bytes()).unwrap();
        let documents: Vec<Option<&str>> =
            lines.split_inclusive("}\n").filter(|line| line.len() > 2).map(Some).collect();
        for way in Way::all() {
            let mut run = Run::new("night");
            run.add_parquet(&file(way, &documents)[..]).unwrap();
            assert_eq!(run, expected, "{way:?}");
        }
        let said = |documents: &[Option<&str>]| {
            let parquet = file(Way::SPARK, documents);
            Run::new("night").add_parquet(&parquet[..]).unwrap_err().to_string()
        };
        assert!(said(&[documents[0], None]).contains("document 2"));
        assert!(said(&[documents[0], Some("{")]).contains("document 2"));
        assert!(said(&[Some("{}")]).contains("document 1"));
    }

    #[test]
    fn other_documents_are_refused_by_number() {
        let good = results("vol", 1, 0);
        for (bad, why) in [
            ("{\"schema\":\"floe-check\",\"version\":1", "truncated"),
            ("{\"schema\":\"floe-repair\",\"version\":1}", "document 3"),
            ("{\"schema\":\"floe-check\",\"version\":2}", "its version is 2"),
            ("[]", "document 3"),
            ("nothing", "not a series of JSON documents"),
            (
                "{\"schema\":\"floe-check\",\"version\":1,\"device\":\"a\",\"findings\":[]}",
                "its verdict is null",
            ),
        ] {
            let said = Run::read("x", (good.clone() + bad).as_bytes()).unwrap_err().to_string();
            assert!(said.contains(why), "{bad}: {said}");
        }
        assert!(Run::read("x", &b""[..]).unwrap().images.is_empty());
    }
}
