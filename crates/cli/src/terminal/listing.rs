//! Fields and tables as text or JSON: the output of `info` and `dump`.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

/// A titled list of fields, optionally with a table and remarks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    title: String,
    fields: Vec<(String, String)>,
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    remarks: Vec<String>,
}

impl Listing {
    /// An empty sheet.
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    /// Adds a field.
    pub(crate) fn field(&mut self, name: impl Into<String>, value: impl ToString) {
        self.fields.push((name.into(), value.to_string()));
    }

    /// Adds all fields of a decoded structure.
    pub(crate) fn structure(&mut self, fields: Vec<(&'static str, String)>) {
        let readable = |(name, value): (&str, String)| (name.to_owned(), readable(name, value));
        self.fields.extend(fields.into_iter().map(readable));
    }

    /// Sets the columns of the table.
    pub(crate) fn columns(&mut self, columns: &[&'static str]) {
        self.columns = columns.to_vec();
    }

    /// Adds a row of the table.
    pub(crate) fn row(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// Adds a remark.
    pub(crate) fn remark(&mut self, text: impl Into<String>) {
        self.remarks.push(text.into());
    }

    fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", self.title)?;
        let width = self.fields.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        for (name, value) in &self.fields {
            writeln!(out, "  {name:width$}  {value}")?;
        }
        if !self.rows.is_empty() {
            self.write_table(out)?;
        }
        for remark in &self.remarks {
            writeln!(out, "  ! {remark}")?;
        }
        Ok(())
    }

    fn write_table(&self, out: &mut impl Write) -> io::Result<()> {
        let mut widths: Vec<usize> = self.columns.iter().map(|column| column.len()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut line = |cells: &mut dyn Iterator<Item = &str>| {
            let padded: Vec<_> =
                cells.zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
            writeln!(out, "  {}", padded.join("  ").trim_end())
        };
        line(&mut self.columns.iter().copied())?;
        self.rows.iter().try_for_each(|row| line(&mut row.iter().map(String::as_str)))
    }

    fn to_json(&self) -> Value {
        let fields: Map<String, Value> =
            self.fields.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                let cells = self.columns.iter().zip(row);
                Value::Object(cells.map(|(name, cell)| ((*name).to_owned(), json!(cell))).collect())
            })
            .collect();
        json!({ "title": self.title, "fields": fields, "rows": rows, "remarks": self.remarks })
    }
}

/// The value of a decoded field for people: bit masks also in hexadecimal, text as text.
fn readable(name: &str, value: String) -> String {
    const BITS: [&str; 6] = ["magic", "checksum", "flags", "feature", "csum", "hash"];
    if let Ok(number) = value.parse::<u64>() {
        let is_bits = number > 9 && BITS.iter().any(|word| name.contains(word));
        return if is_bits { format!("{number:#x}") } else { value };
    }
    let Some(list) = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
        return value;
    };
    let numbers: Vec<u64> = list.split(", ").filter_map(|word| word.parse().ok()).collect();
    if numbers.iter().all(|&number| number == 0) {
        return "zeroes".to_owned();
    }
    let Some(bytes) =
        numbers.iter().map(|&number| u8::try_from(number).ok()).collect::<Option<Vec<u8>>>()
    else {
        return value;
    };
    if name.contains("uuid") || name.contains("salt") || name == "block" {
        return bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    }
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    bytes[..end].escape_ascii().to_string()
}

/// Writes sheets one after the other, or as a JSON array.
///
/// # Errors
/// A write error of `out`.
pub(crate) fn write(out: &mut impl Write, sheets: &[Listing], as_json: bool) -> io::Result<()> {
    if as_json {
        let sheets: Vec<Value> = sheets.iter().map(Listing::to_json).collect();
        return writeln!(out, "{:#}", Value::Array(sheets));
    }
    for (index, sheet) in sheets.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        sheet.write_text(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoded_fields_read_well() {
        assert_eq!(readable("magic", "61267".into()), "0xef53");
        assert_eq!(readable("inodes_count", "61267".into()), "61267");
        assert_eq!(readable("uuid", "[1, 255]".into()), "01ff");
        assert_eq!(readable("volume_name", "[97, 0, 0]".into()), "a");
        assert_eq!(readable("hash_seed", "[1, 99999]".into()), "[1, 99999]");
        assert_eq!(readable("pad", "[0, 0]".into()), "zeroes");
    }

    #[test]
    fn text_is_aligned_and_json_is_whole() {
        let mut sheet = Listing::new("Title");
        sheet.field("a", 1);
        sheet.field("longer", "x");
        sheet.columns(&["one", "two"]);
        sheet.row(vec!["1".into(), "22222".into()]);
        sheet.row(vec!["111111".into(), "2".into()]);
        sheet.remark("odd");
        let mut text = Vec::new();
        write(&mut text, &[sheet.clone()], false).unwrap();
        let expected = "Title\n  a       1\n  longer  x\n  one     two\n  1       22222\n  111111  2\n  \
                        ! odd\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        assert_eq!(sheet.to_json()["rows"][1]["one"], "111111");
    }
}
