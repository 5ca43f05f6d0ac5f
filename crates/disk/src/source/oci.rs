//! Reads an OCI image layout: a folder with `index.json` and `blobs`. Source: OCI image
//! specification 1.1.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::mkfs::tree::{Attributes, Tree};
use crate::sha256;

use super::apply::Applier;
use super::spool::Spooled;
use super::tar::{End, TarContents, apply, followed};
use super::{BoxedContents, Loaded, SourceError};

/// Bytes of a JSON document, at most.
const MOST_JSON_BYTES: u64 = 4 << 20;
/// Indexes within indexes, at most.
const MOST_DEPTH: usize = 4;
/// Annotation that holds the name of a manifest.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// Reads the files of an image: all layers in order, with their whiteouts. Every blob is verified
/// against its digest. `name` selects one of several manifests by name; without it, the one for
/// this architecture is used. Layers are read in place, or unpacked into `scratch`.
///
/// # Errors
/// [`SourceError::Oci`], and errors of the layers.
pub fn oci(
    layout: &Path,
    name: Option<&str>,
    scratch: &Path,
) -> Result<Loaded<BoxedContents>, SourceError> {
    let layout = Layout { folder: layout };
    let index = layout.json(&layout.folder.join("index.json"))?;
    let manifest = layout.manifest(index, name)?;
    let layers = manifest.get("layers").and_then(Value::as_array);
    let layers = layers.ok_or_else(|| layout.fault("its manifest has no layers"))?;
    let mut tree = Tree::new(Attributes::root());
    let (mut archives, mut doubt) = (Vec::new(), None);
    for (number, layer) in (0u64..).zip(layers) {
        let kind = text(layer, "mediaType").unwrap_or_default();
        if !kind.contains("tar") {
            return Err(layout.fault(&format!("it has a layer of an unknown kind: {kind:?}")));
        }
        let path = layout.blob(layer)?;
        layout.verify(&path, layer)?;
        let archive = Spooled::open(&path, scratch)?;
        // A layer without an end is whole: its digest says so.
        if let End::Followed = apply(&mut Applier::new(&mut tree, true), &archive, number)? {
            doubt.get_or_insert_with(|| followed(&archive));
        }
        archives.push(archive);
    }
    Ok(Loaded { tree, contents: Box::new(TarContents { archives }), doubt })
}

struct Layout<'p> {
    folder: &'p Path,
}

impl Layout<'_> {
    fn fault(&self, why: &str) -> SourceError {
        fault(self.folder, why)
    }

    fn json(&self, path: &Path) -> Result<Value, SourceError> {
        let read = || -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            File::open(path)?.take(MOST_JSON_BYTES + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|source| SourceError::Read { path: path.to_owned(), source })?;
        if bytes.len() as u64 > MOST_JSON_BYTES {
            return Err(fault(path, "it is too large"));
        }
        serde_json::from_slice(&bytes).map_err(|error| fault(path, &error.to_string()))
    }

    /// The manifest that an index points to.
    fn manifest(&self, mut index: Value, name: Option<&str>) -> Result<Value, SourceError> {
        let mut name = name;
        for _ in 0..MOST_DEPTH {
            let Some(entries) = index.get("manifests").and_then(Value::as_array) else {
                return Ok(index);
            };
            let entry = self.choose(entries, name)?;
            // Names apply to the outermost index only.
            name = None;
            let path = self.blob(entry)?;
            self.verify(&path, entry)?;
            index = self.json(&path)?;
        }
        Err(self.fault("its indexes are nested too deep"))
    }

    fn choose<'v>(
        &self,
        entries: &'v [Value],
        name: Option<&str>,
    ) -> Result<&'v Value, SourceError> {
        let annotation = |entry: &'v Value| entry.get("annotations")?.get(REF_NAME)?.as_str();
        let named: Vec<&Value> = entries
            .iter()
            .filter(|entry| name.is_none_or(|name| annotation(entry) == Some(name)))
            .collect();
        let fits = |entry: &&Value| {
            let platform = entry.get("platform");
            let part = |key| platform.and_then(|platform| text(platform, key));
            part("architecture") == Some(architecture()) && part("os") == Some("linux")
        };
        let here: Vec<&Value> = named.iter().copied().filter(fits).collect();
        match (&named[..], &here[..]) {
            ([one], _) | (_, [one]) => Ok(one),
            ([], _) => {
                let known: Vec<&str> = entries.iter().filter_map(annotation).collect();
                let name = name.unwrap_or_default();
                Err(self.fault(&format!("it has no image {name:?}; its images are {known:?}")))
            }
            _ => {
                let known: Vec<&str> = named.iter().copied().filter_map(annotation).collect();
                Err(self.fault(&format!(
                    "it holds {} images, and not exactly one of them is for linux/{}; those with names are {known:?}",
                    named.len(),
                    architecture()
                )))
            }
        }
    }

    /// The path of the blob of a descriptor.
    fn blob(&self, descriptor: &Value) -> Result<PathBuf, SourceError> {
        let digest = text(descriptor, "digest").unwrap_or_default();
        let hex = digest.strip_prefix("sha256:").filter(|hex| {
            hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        });
        let hex = hex.ok_or_else(|| self.fault(&format!("{digest:?} is not a SHA-256 digest")))?;
        Ok(self.folder.join("blobs/sha256").join(hex))
    }

    /// Verifies the digest and size of a blob.
    fn verify(&self, path: &Path, descriptor: &Value) -> Result<(), SourceError> {
        let failed = |source| SourceError::Read { path: path.to_owned(), source };
        let size = fs::metadata(path).map_err(failed)?.len();
        if descriptor.get("size").and_then(Value::as_u64).is_some_and(|stated| stated != size) {
            return Err(fault(path, "its size differs from the one in its descriptor"));
        }
        let mut file = File::open(path).map_err(failed)?;
        let mut sum = Sha256::new();
        let mut piece = vec![0; 1 << 20];
        loop {
            let len = file.read(&mut piece).map_err(failed)?;
            if len == 0 {
                break;
            }
            sum.update(&piece[..len]);
        }
        let found = sha256::digits(sum);
        if path.file_name().is_some_and(|name| name == found.as_str()) {
            return Ok(());
        }
        Err(fault(path, "its content does not match its digest"))
    }
}

fn fault(path: &Path, why: &str) -> SourceError {
    SourceError::Oci { path: path.to_owned(), why: why.to_owned() }
}

fn text<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value.get(key)?.as_str()
}

/// The name of this architecture in image specifications.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}
