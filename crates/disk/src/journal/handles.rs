//! Handles that are open at the same time, and the blocks that each of them owns (rule R2).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use floe_format::BlockNr;
use floe_sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The owners of blocks.
#[derive(Debug, Default)]
pub(super) struct Handles {
    table: Mutex<Table>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    /// Owners by block: numbers of handles.
    owners: HashMap<BlockNr, u64>,
    /// Open handles, each with the highest block that it owns.
    open: BTreeMap<u64, Option<BlockNr>>,
    /// The open handle that has all blocks, if one has.
    alone: Option<u64>,
    /// Threads that wait to have all blocks: no other begins meanwhile.
    waiting_alone: usize,
    /// Threads that wait for the end of any handle.
    waiting: usize,
    next: u64,
}

impl Table {
    fn give(&mut self, block: BlockNr, number: u64) {
        self.owners.insert(block, number);
        let highest = self.open.entry(number).or_default();
        *highest = (*highest).max(Some(block));
    }
}

/// The owner of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// This handle's.
    Ours,
    /// Another handle's, for which this one must not wait: it owns a block with a higher number.
    Others,
}

/// An open handle. Dropped, it gives up its blocks.
#[derive(Debug)]
pub(super) struct Handle<'h> {
    handles: &'h Handles,
    number: u64,
    alone: bool,
}

impl Handles {
    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic between changes of a handle leaves its entries, which the drop of the handle takes away.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, mut table: MutexGuard<'a, Table>) -> MutexGuard<'a, Table> {
        table.waiting += 1;
        let mut table = self.ended.wait(table).unwrap_or_else(PoisonError::into_inner);
        table.waiting -= 1;
        table
    }

    /// Opens a handle that has all blocks: waits until no other is open.
    pub(super) fn begin_alone(&self) -> Handle<'_> {
        let mut table = self.table();
        table.waiting_alone += 1;
        while !table.open.is_empty() {
            table = self.wait(table);
        }
        table.waiting_alone -= 1;
        let number = table.next;
        table.next += 1;
        table.open.insert(number, None);
        table.alone = Some(number);
        Handle { handles: self, number, alone: true }
    }

    /// Opens a handle beside others, with these blocks, which are in order and taken one after the other.
    pub(super) fn begin_beside(&self, blocks: &BTreeSet<BlockNr>) -> Handle<'_> {
        let mut table = self.table();
        while table.alone.is_some() || table.waiting_alone > 0 {
            table = self.wait(table);
        }
        let number = table.next;
        table.next += 1;
        table.open.insert(number, None);
        for &block in blocks {
            while table.owners.contains_key(&block) {
                table = self.wait(table);
            }
            table.give(block, number);
        }
        Handle { handles: self, number, alone: false }
    }
}

impl Handle<'_> {
    /// Takes a block. Waits for its owner where this handle owns none with a higher number, so that no circle of handles
    /// waits for each other.
    pub(super) fn take(&self, block: BlockNr) -> Held {
        if self.alone {
            return Held::Ours;
        }
        let mut table = self.handles.table();
        loop {
            match table.owners.get(&block) {
                None => break,
                Some(owner) if *owner == self.number => return Held::Ours,
                Some(_) => {
                    let highest = table.open.get(&self.number).copied().flatten();
                    if highest.is_some_and(|highest| highest > block) {
                        return Held::Others;
                    }
                    table = self.handles.wait(table);
                }
            }
        }
        table.give(block, self.number);
        Held::Ours
    }

    /// Whether this handle has all blocks.
    pub(super) const fn is_alone(&self) -> bool {
        self.alone
    }

    /// The blocks that this handle owns.
    pub(super) fn owned(&self) -> BTreeSet<BlockNr> {
        let table = self.handles.table();
        let own = table.owners.iter().filter(|(_, owner)| **owner == self.number);
        own.map(|(block, _)| *block).collect()
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        let mut table = self.handles.table();
        table.open.remove(&self.number);
        if self.alone {
            table.alone = None;
        } else {
            table.owners.retain(|_, owner| *owner != self.number);
        }
        let is_awaited = table.waiting > 0;
        drop(table);
        // The system is asked for each call, waiters or not.
        if is_awaited {
            self.handles.ended.notify_all();
        }
    }
}
