//! Path lookup. The root of the file system is the root of every path, so no symbolic link leads
//! out of the image.

use floe_format::InodeNr;
use floe_format::ext::inode::FileType;

use super::{Files, FilesError, Node, printable};

/// Symbolic links in one path, at most, as in Linux.
const MOST_LINKS: u32 = 40;

/// The treatment of a symbolic link in the last component of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Follow it.
    Last,
    /// Return the link itself.
    NotLast,
}

impl Files<'_> {
    /// Looks up the inode of a path: `/dir/file`, or the same without the first `/`. `..` and
    /// symbolic links are followed; `..` of the root is the root.
    ///
    /// # Errors
    /// [`FilesError::NoSuchName`], [`FilesError::NotADirectory`], [`FilesError::TooManyLinks`], and
    /// errors of reading an inode on the path.
    pub fn lookup(&self, path: &[u8], follow: Follow) -> Result<Node, FilesError> {
        let mut rest: Vec<Vec<u8>> = components(path).rev().map(<[u8]>::to_vec).collect();
        let must_be_directory = path.ends_with(b"/") || path.ends_with(b"/.");
        // The path from the root to the current directory.
        let mut trail: Vec<(Vec<u8>, Node)> = vec![(Vec::new(), self.node(InodeNr::ROOT)?)];
        let mut links = 0;
        while let Some(name) = rest.pop() {
            let here = joined(&trail);
            let Some((_, directory)) = trail.last() else { break };
            if !directory.is_directory() {
                return Err(FilesError::NotADirectory { path: here });
            }
            if name == b".." {
                if trail.len() > 1 {
                    trail.pop();
                }
                continue;
            }
            let Some(inode) = self.find(directory, &name)? else {
                let name = printable(&name);
                return Err(FilesError::NoSuchName { name, directory: here });
            };
            let node = self.node(inode)?;
            let is_last = rest.is_empty() && !must_be_directory;
            let is_link = node.file_type() == Some(FileType::Symlink);
            if !is_link || is_last && follow == Follow::NotLast {
                trail.push((name, node));
                continue;
            }
            links += 1;
            if links > MOST_LINKS {
                return Err(FilesError::TooManyLinks { path: printable(path) });
            }
            let (target, _) = self.target(&node)?;
            if target.starts_with(b"/") {
                trail.truncate(1);
            }
            rest.extend(components(&target).rev().map(<[u8]>::to_vec));
        }
        let here = joined(&trail);
        match trail.pop() {
            Some((_, node)) if must_be_directory && !node.is_directory() => {
                Err(FilesError::NotADirectory { path: here })
            }
            Some((_, node)) => Ok(node),
            // The root is never popped; it is the result of an empty path.
            None => self.node(InodeNr::ROOT),
        }
    }
}

/// The components of a path, without empty ones and `.`.
fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b"."))
}

fn joined(trail: &[(Vec<u8>, Node)]) -> String {
    let names: Vec<String> = trail.iter().skip(1).map(|(name, _)| printable(name)).collect();
    format!("/{}", names.join("/"))
}
