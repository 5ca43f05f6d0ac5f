//! Findings of Floe as other programs see them: codes in a JSON report, and their names.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Codes of the findings in a JSON report, which other text may follow.
pub fn findings_codes(report: &str) -> Option<BTreeSet<u32>> {
    let report = serde_json::Deserializer::from_str(report).into_iter::<Value>().next()?.ok()?;
    let code = |finding: &Value| {
        u32::from_str_radix(finding["code"].as_str()?.trim_start_matches("0x"), 16).ok()
    };
    Some(report["findings"].as_array()?.iter().filter_map(code).collect())
}

/// Ids of findings by code.
pub type Names = BTreeMap<u32, &'static str>;

/// Ids of all codes.
pub fn names() -> Names {
    floe_check::problem::ROWS.iter().map(|row| (row.code, row.id)).collect()
}

/// The id of a code, or the code itself if the table lacks it.
pub fn name_of(names: &Names, code: u32) -> String {
    names.get(&code).map_or_else(|| format!("{code:#08x}"), |&id| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_from_a_report() {
        let report = "{\"findings\":[{\"code\":\"0x010001\"},{\"code\":\"0x050006\"}]}\nand more";
        let codes = findings_codes(report).expect("a report");
        assert_eq!(codes.into_iter().collect::<Vec<_>>(), [0x01_0001, 0x05_0006]);
        assert_eq!(findings_codes("no report"), None);
    }
}
