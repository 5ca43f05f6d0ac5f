//! Writes a record with fields to the systemd journal, through its own socket. Source: "Native
//! Journal Protocol", systemd's documentation.

use std::os::unix::net::UnixDatagram;
use std::path::Path;

use anyhow::Context;
use floe_format::words::agree;

use super::Sample;

pub(super) const SOCKET: &str = "/run/systemd/journal/socket";
/// The message id of all these records: `journalctl MESSAGE_ID=...`.
const MESSAGE_ID: &str = "6d3f0b7c5d3e4a5f9b1e2f8c47a09d61";

/// Writes a record of a check.
pub(super) fn send(socket: &Path, sample: &Sample) -> anyhow::Result<()> {
    let from = UnixDatagram::unbound()?;
    from.send_to(&record(sample), socket).with_context(|| socket.display().to_string())?;
    Ok(())
}

fn record(sample: &Sample) -> Vec<u8> {
    let mut bytes = Vec::new();
    // In the form with a length, so that the value may contain any bytes.
    let mut field = |name: &str, value: &str| {
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(b'\n');
        bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(b'\n');
    };
    let (device, verdict) = (&sample.device, sample.verdict());
    let damage = sample.checked.as_ref().map_or(0, |checked| checked.damage);
    let (priority, message) = match verdict {
        "clean" => ("6", format!("{device}: clean")),
        "damaged" => {
            let needs = format!("{damage} findings need repair");
            ("3", format!("{device}: damaged, {}", agree(&needs)))
        }
        _ => ("3", format!("{device}: could not be checked")),
    };
    field("MESSAGE", &message);
    field("PRIORITY", priority);
    field("MESSAGE_ID", MESSAGE_ID);
    field("SYSLOG_IDENTIFIER", "floe");
    field("FLOE_DEVICE", device);
    field("FLOE_VERDICT", verdict);
    field("FLOE_EXIT_CODE", &sample.exit_code.to_string());
    field("FLOE_SECONDS", &format!("{:.3}", sample.elapsed.as_secs_f64()));
    if let Some(checked) = &sample.checked {
        field("FLOE_UUID", &checked.uuid);
        field("FLOE_LABEL", &checked.label);
        field("FLOE_DAMAGE", &checked.damage.to_string());
        if let Some((method, frozen)) = checked.snapshot {
            field("FLOE_SNAPSHOT", method);
            if let Some(frozen) = frozen {
                field("FLOE_FROZEN_SECONDS", &format!("{:.3}", frozen.as_secs_f64()));
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::monitor::sample;

    fn fields(mut record: &[u8]) -> BTreeMap<String, String> {
        let mut fields = BTreeMap::new();
        while !record.is_empty() {
            let end = record.iter().position(|&byte| byte == b'\n').unwrap();
            let name = String::from_utf8(record[..end].to_vec()).unwrap();
            let (len, rest) = record[end + 1..].split_first_chunk::<8>().unwrap();
            let (value, rest) = rest.split_at(u64::from_le_bytes(*len) as usize);
            assert_eq!(rest.first(), Some(&b'\n'));
            record = &rest[1..];
            assert!(fields.insert(name, String::from_utf8(value.to_vec()).unwrap()).is_none());
        }
        fields
    }

    #[test]
    fn a_record_arrives_with_all_its_fields() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let socket = UnixDatagram::bind(&path).unwrap();
        let sample = sample();
        send(&path, &sample).unwrap();
        let mut bytes = vec![0; 65_536];
        let len = socket.recv(&mut bytes).unwrap();
        let fields = fields(&bytes[..len]);
        assert_eq!(fields["FLOE_DEVICE"], sample.device);
        assert_eq!(
            (fields["FLOE_VERDICT"].as_str(), fields["PRIORITY"].as_str()),
            ("damaged", "3")
        );
        assert_eq!(
            (fields["FLOE_DAMAGE"].as_str(), fields["FLOE_FROZEN_SECONDS"].as_str()),
            ("2", "0.020")
        );
        // Every field must be documented.
        let page = include_str!("../../../../docs/monitoring.md");
        for name in fields.keys() {
            assert!(page.contains(&format!("`{name}`")), "{name} is not in docs/monitoring.md");
        }
    }

    #[test]
    fn a_check_that_failed_is_an_error() {
        let fields = fields(&record(&Sample { checked: None, ..sample() }));
        assert_eq!(
            (fields["FLOE_VERDICT"].as_str(), fields["PRIORITY"].as_str()),
            ("incomplete", "3")
        );
        assert!(!fields.contains_key("FLOE_UUID"));
        assert!(send(Path::new("/nonexistent/socket"), &sample()).is_err());
    }
}
