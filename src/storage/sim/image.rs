//! The bytes of a simulated file at one moment, by sectors.
//!
//! Sectors are shared between images and never changed in place, so a copy of an image costs one
//! counter, and the hash of a sector is computed once. A sector of zeros is left out of the map, so
//! that equal images have equal maps.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use twox_hash::XxHash3_128;

use crate::num::{to_u64, to_usize};

/// Bytes that a disk writes whole.
pub(super) const SECTOR_BYTES: usize = 512;
/// The same, as positions are counted.
pub(super) const SECTOR_BYTES_U64: u64 = 512;
#[derive(Debug)]
pub(super) struct SectorData {
    pub(super) bytes: [u8; SECTOR_BYTES],
    hash: OnceLock<u128>,
}

impl SectorData {
    fn hash(&self) -> u128 {
        *self.hash.get_or_init(|| XxHash3_128::oneshot(&self.bytes))
    }
}

/// What a sector holds; `None` is all zeros, so that equal images have equal maps.
pub(super) type Content = Option<Arc<SectorData>>;

/// A sector with these bytes.
pub(super) fn content(bytes: &[u8; SECTOR_BYTES]) -> Content {
    (*bytes != [0; SECTOR_BYTES]).then(|| {
        Arc::new(SectorData {
            bytes: *bytes,
            hash: OnceLock::new(),
        })
    })
}

/// A run of bytes within one sector.
pub(super) struct Piece {
    pub(super) index: u64,
    pub(super) from: usize,
    pub(super) len: usize,
}

impl Piece {
    pub(super) fn to(&self) -> usize {
        self.from.saturating_add(self.len)
    }
}

/// The sectors that `len` bytes at `position` touch.
pub(super) fn pieces(position: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut at = position;
    let mut left = len;
    std::iter::from_fn(move || {
        let from = to_usize(at % SECTOR_BYTES_U64);
        let len = SECTOR_BYTES.saturating_sub(from).min(left);
        let piece = Piece {
            index: at / SECTOR_BYTES_U64,
            from,
            len,
        };
        left = left.saturating_sub(len);
        at = at.saturating_add(to_u64(len));
        (len > 0).then_some(piece)
    })
}

/// The bytes and length of a file at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    pub(super) sectors: Arc<BTreeMap<u64, Arc<SectorData>>>,
    pub(super) len: u64,
}

impl Image {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let sectors = (0..).zip(bytes.chunks(SECTOR_BYTES));
        let sectors = sectors.filter_map(|(index, chunk)| {
            let mut sector = [0; SECTOR_BYTES];
            sector.get_mut(..chunk.len())?.copy_from_slice(chunk);
            content(&sector).map(|content| (index, content))
        });
        Self {
            sectors: Arc::new(sectors.collect()),
            len: to_u64(bytes.len()),
        }
    }

    pub(super) fn read(&self, buf: &mut [u8], position: u64) -> usize {
        let len = to_usize(self.len.saturating_sub(position)).min(buf.len());
        let mut rest = buf.get_mut(..len).unwrap_or_default();
        for piece in pieces(position, len) {
            let (head, tail) = rest.split_at_mut(piece.len);
            match part(self.sector(piece.index), &piece) {
                Some(bytes) => head.copy_from_slice(bytes),
                None => head.fill(0),
            }
            rest = tail;
        }
        len
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; to_usize(self.len)];
        self.read(&mut bytes, 0);
        bytes
    }

    /// Adds what tells this image from others to `out`.
    pub(super) fn fingerprint(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.len.to_le_bytes());
        for (index, sector) in &*self.sectors {
            out.extend_from_slice(&index.to_le_bytes());
            out.extend_from_slice(&sector.hash().to_le_bytes());
        }
    }

    pub(super) fn sector(&self, index: u64) -> Option<&Arc<SectorData>> {
        self.sectors.get(&index)
    }

    pub(super) fn put(&mut self, index: u64, content: Content) {
        match content {
            Some(content) => {
                Arc::make_mut(&mut self.sectors).insert(index, content);
            }
            None if self.sectors.contains_key(&index) => {
                Arc::make_mut(&mut self.sectors).remove(&index);
            }
            None => {}
        }
    }

    /// Makes every byte from `len` on zero and answers the sectors that changed.
    pub(super) fn cut(&mut self, len: u64) -> Vec<(u64, Content)> {
        let edge = len / SECTOR_BYTES_U64;
        let keep = to_usize(len % SECTOR_BYTES_U64);
        let mut changed = Vec::new();
        for (&index, sector) in self.sectors.range(edge..) {
            let mut bytes = [0; SECTOR_BYTES];
            if index == edge
                && let (Some(to), Some(from)) = (bytes.get_mut(..keep), sector.bytes.get(..keep))
            {
                to.copy_from_slice(from);
            }
            if bytes != sector.bytes {
                changed.push((index, content(&bytes)));
            }
        }
        for (index, content) in &changed {
            self.put(*index, content.clone());
        }
        changed
    }
}

/// The bytes of a piece, or `None` for zeros.
pub(super) fn part<'s>(sector: Option<&'s Arc<SectorData>>, piece: &Piece) -> Option<&'s [u8]> {
    sector.and_then(|sector| sector.bytes.get(piece.from..piece.to()))
}
