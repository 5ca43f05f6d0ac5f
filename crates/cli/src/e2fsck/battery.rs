//! Detects battery power.

use std::fs;
use std::path::Path;

/// Linux's list of power supplies.
const SUPPLIES: &str = "/sys/class/power_supply";

/// Whether the machine runs on battery, as far as known.
pub(crate) fn in_use() -> bool {
    discharging(Path::new(SUPPLIES))
}

/// The machine is on battery if a battery is discharging, and no mains supply is online.
fn discharging(supplies: &Path) -> bool {
    let Ok(entries) = fs::read_dir(supplies) else { return false };
    let mut on_battery = false;
    for entry in entries.flatten() {
        let text = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        match text("type").trim() {
            "Mains" | "USB" if text("online").trim() == "1" => return false,
            // Ignore the batteries of peripherals.
            "Battery" if text("scope").trim() != "Device" => {
                on_battery |= text("status").trim() == "Discharging";
            }
            _ => {}
        }
    }
    on_battery
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mains_and_batteries() {
        let folder = tempfile::tempdir().unwrap();
        let supply = |name: &str, files: &[(&str, &str)]| {
            let path = folder.path().join(name);
            fs::create_dir_all(&path).unwrap();
            for (file, text) in files {
                fs::write(path.join(file), format!("{text}\n")).unwrap();
            }
        };
        assert!(!discharging(folder.path()));
        assert!(!discharging(&folder.path().join("nowhere")));
        let mouse = [("type", "Battery"), ("status", "Discharging"), ("scope", "Device")];
        supply("hidpp_battery_0", &mouse);
        assert!(!discharging(folder.path()));
        supply("BAT0", &[("type", "Battery"), ("status", "Discharging")]);
        supply("AC", &[("type", "Mains"), ("online", "0")]);
        assert!(discharging(folder.path()));
        supply("AC", &[("online", "1")]);
        assert!(!discharging(folder.path()));
        supply("AC", &[("online", "0")]);
        supply("BAT0", &[("status", "Full")]);
        assert!(!discharging(folder.path()));
    }
}
