//! Access to the simulated disk that is no call of the storage: for damage, and to look at it.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::file::File;
use super::image::Image;
use super::tree::{Dir, Ino, ROOT, Slot, Tree, join, parts};

impl Tree {
    /// Every path, whether it is a directory, and the file; sorted by path.
    pub(super) fn walk(&self) -> Vec<(String, Option<&File>)> {
        let mut found = Vec::new();
        let mut next = vec![(ROOT, String::new())];
        while let Some((ino, path)) = next.pop() {
            let Some(dir) = self.dirs.get(&ino) else {
                continue;
            };
            for (name, child) in &dir.live {
                let path = join(&path, name);
                let file = self.files.get(child);
                if file.is_none() {
                    next.push((*child, path.clone()));
                }
                found.push((path, file));
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }

    /// Puts a file there as if it had always been, with its directories; `None` takes it away.
    /// Everything else stays as pending as it was.
    pub(super) fn plant(&mut self, path: &str, image: Option<Image>) -> io::Result<()> {
        let mut parent = ROOT;
        let dirs = path.rsplit_once('/').map_or("", |(dirs, _)| dirs);
        for part in parts(dirs) {
            let slot = (parent, Arc::from(part?));
            parent = if let Some(ino) = self.at(&slot) {
                self.dir(ino)?;
                ino
            } else {
                let ino = self.new_ino();
                self.dirs.insert(ino, Dir::default());
                self.name_durably(slot, ino);
                ino
            };
        }
        let slot = self.slot(path)?;
        let found = self.at(&slot).map(|_| self.open(path)).transpose()?;
        for op in &mut self.ops {
            op.sets.take_if(|(place, _)| *place == slot);
            op.clears.take_if(|place| *place == slot);
        }
        self.ops.retain(|op| op.slots().next().is_some());
        let Some(image) = image else {
            found.ok_or(ErrorKind::NotFound)?;
            let (dir, name) = slot;
            if let Some(dir) = self.dirs.get_mut(&dir) {
                dir.live.remove(&name);
                dir.durable.remove(&name);
            }
            return Ok(());
        };
        let ino = found.unwrap_or_else(|| self.new_ino());
        let mut file = File::settled(Arc::from(path), image);
        if let Some(old) = self.files.get(&ino) {
            file.handles = Arc::clone(&old.handles);
        }
        self.files.insert(ino, file);
        self.name_durably(slot, ino);
        Ok(())
    }

    fn name_durably(&mut self, (dir, name): Slot, ino: Ino) {
        if let Some(dir) = self.dirs.get_mut(&dir) {
            dir.live.insert(Arc::clone(&name), ino);
            dir.durable.insert(name, ino);
        }
    }
}
