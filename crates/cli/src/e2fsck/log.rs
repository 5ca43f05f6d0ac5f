//! `log_filename` and `problem_log_filename`: files whose names contain percent expressions.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use floe_report::calendar::date;
use floe_sync::Arc;
use floe_sync::atomic::{AtomicBool, Ordering};

use super::conf::Conf;
use super::progress::ERASE;

use crate::message::message;

/// Values for the expressions.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Seconds since 1970.
    pub(crate) now_seconds: i64,
    /// The device.
    pub(crate) device: PathBuf,
}

impl Facts {
    /// Expands a pattern. Dates are in UTC even without `%U`, because the time zone is unknown
    /// while a root file system is checked.
    pub(crate) fn expand(&self, pattern: &str) -> String {
        let (year, month, day) = date(self.now_seconds.div_euclid(86400));
        let second = self.now_seconds.rem_euclid(86400);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let mut name = String::new();
        let mut chars = pattern.chars();
        while let Some(char) = chars.next() {
            if char != '%' {
                name.push(char);
                continue;
            }
            match chars.next() {
                Some('d') => name.push_str(&format!("{day:02}")),
                Some('D') => name.push_str(&format!("{year}{month:02}{day:02}")),
                Some('h') => name.push_str(&host()),
                Some('H') => name.push_str(&format!("{hour:02}")),
                Some('m') => name.push_str(&format!("{month:02}")),
                Some('M') => name.push_str(&format!("{minute:02}")),
                Some('N') => {
                    let device = self.device.file_name().unwrap_or_default();
                    name.push_str(&device.to_string_lossy());
                }
                Some('p') => name.push_str(&std::process::id().to_string()),
                Some('s') => name.push_str(&self.now_seconds.to_string()),
                Some('S') => name.push_str(&format!("{second:02}")),
                Some('T') => name.push_str(&format!("{hour:02}{minute:02}{second:02}")),
                Some('u') => name.push_str(&std::env::var("USER").unwrap_or("root".to_owned())),
                Some('U') => {}
                Some('y') => name.push_str(&format!("{:02}", year.rem_euclid(100))),
                Some('Y') => name.push_str(&year.to_string()),
                Some('%') => name.push('%'),
                Some(other) => {
                    name.push('%');
                    name.push(other);
                }
                None => name.push('%'),
            }
        }
        name
    }

    /// Creates the file that a pattern names, in the first usable folder. A failure is not an
    /// error, because at boot the folder is often read-only.
    pub(crate) fn create(&self, conf: &Conf, pattern: &str) -> Option<File> {
        let name = PathBuf::from(self.expand(pattern));
        let folders = [conf.log_dir.as_deref(), conf.log_dir_fallback.as_deref()];
        let places: Vec<PathBuf> = if name.is_absolute() || folders == [None, None] {
            vec![name]
        } else {
            folders.into_iter().flatten().map(|folder: &Path| folder.join(&name)).collect()
        };
        let made = places.iter().find_map(|place| {
            place.parent().map(fs::create_dir_all);
            File::options().create(true).append(true).open(place).ok()
        });
        if made.is_none() {
            message!(
                "floe fsck: cannot create the log {}; continuing without it",
                places[0].display()
            );
        }
        made
    }
}

fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.replace('/', "_"),
    }
}

/// Output that is also copied to a log.
pub(crate) struct Tee<'w, W> {
    pub(crate) out: &'w mut W,
    pub(crate) log: Option<File>,
    /// Whether a progress bar is displayed at the output.
    pub(crate) bar: Arc<AtomicBool>,
}

impl<W: Write> Write for Tee<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bar.swap(false, Ordering::Relaxed) {
            self.out.write_all(ERASE)?;
        }
        let written = self.out.write(bytes)?;
        if let Some(log) = &mut self.log
            && log.write_all(&bytes[..written]).is_err()
        {
            // A full log disk must not prevent the check of another disk.
            self.log = None;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_of_expressions() {
        let facts = Facts { now_seconds: 1_331_724_102, device: "/dev/sda3".into() };
        let name = facts.expand("e2fsck-%N.INFO.%U%D-%T");
        assert_eq!(name, "e2fsck-sda3.INFO.20120314-112142");
        assert_eq!(
            facts.expand("%Y-%m-%d %H:%M:%S %y %s %% %q %"),
            "2012-03-14 11:21:42 12 1331724102 % %q %"
        );
        assert!(!facts.expand("%h%p%u").contains('%'));
    }

    #[test]
    fn the_second_folder_serves_if_the_first_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("file");
        fs::write(&taken, "").unwrap();
        let conf = Conf {
            log_dir: Some(taken.join("below")),
            log_dir_fallback: Some(folder.path().join("logs")),
            ..Conf::default()
        };
        let facts = Facts { now_seconds: 0, device: "x".into() };
        let log = facts.create(&conf, "%N.log").unwrap();
        let mut out = Vec::new();
        let mut tee = Tee { out: &mut out, log: Some(log), bar: Arc::default() };
        tee.write_all(b"said").unwrap();
        let path = folder.path().join("logs/x.log");
        assert_eq!(fs::read(path).unwrap(), b"said");
        assert_eq!(out, b"said");
        let nowhere = Conf { log_dir: Some(taken.join("below")), ..Conf::default() };
        assert!(facts.create(&nowhere, "x").is_none());
    }
}
