//! The result of opening the memory file (`-e`): the recovered items (warm), or why there are none
//! (cold).

use std::{
    fmt,
    path::{Path, PathBuf},
};

use herdwick_mica::Recovered;

/// What was recovered of the previous server's items.
#[derive(Clone, Debug)]
pub struct Restart {
    /// The file.
    pub path: PathBuf,
    /// Why no items were recovered; `None`: the start is warm.
    pub cold: Option<Cold>,
    /// Number of recovered items.
    pub items: u64,
    /// Damaged bytes, which may have held more items.
    pub damaged: u64,
    /// Intact items that are lost because the index had no slot for them.
    pub without_slot: u64,
    /// Number of workers with a part too damaged to recover anything.
    pub parts_lost: usize,
}

/// Why a start is cold: no items were recovered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cold {
    /// The file did not exist or was empty.
    #[error("it is new")]
    New,
    /// The file was not this server's; it was renamed to this path.
    #[error("what was there is not this server's, and is kept as {0}")]
    Foreign(PathBuf),
    /// The header's checksum or the file's length is wrong.
    #[error("its header is damaged")]
    Damaged,
    /// Another version of the layout.
    #[error("another version of this server wrote it")]
    Version,
    /// Another number of workers.
    #[error("{0} workers wrote it, and items stay with their worker; keep to one -t")]
    Workers(u64),
    /// Another part size.
    #[error("it was written with another -m or other fabrics; keep to one")]
    Size,
    /// The host went down during use: stores may not have reached the disk, in any order.
    #[error("the host went down while a server used it")]
    HostWentDown,
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        if let Some(cold) = &self.cold {
            return write!(f, "no items recovered from {path}: {cold}");
        }
        write!(f, "{} items recovered from {path}", self.items)?;
        if self.damaged > 0 {
            write!(f, "; {} bytes of it were damaged", self.damaged)?;
        }
        if self.without_slot > 0 {
            write!(f, "; the index had no slot for {} more", self.without_slot)?;
        }
        match self.parts_lost {
            0 => Ok(()),
            lost => write!(
                f,
                "; the parts of {lost} workers were too damaged to recover, and are empty"
            ),
        }
    }
}

impl Restart {
    pub(crate) fn new(path: &Path, cold: Option<Cold>) -> Self {
        Self {
            path: path.to_owned(),
            cold,
            items: 0,
            damaged: 0,
            without_slot: 0,
            parts_lost: 0,
        }
    }

    /// Adds the result of a worker's part.
    pub(crate) fn add(&mut self, recovered: Option<Recovered>) {
        match recovered {
            Some(recovered) => {
                self.items += recovered.items;
                self.damaged += recovered.damaged;
                self.without_slot += recovered.without_slot;
            }
            None => self.parts_lost += 1,
        }
    }
}
