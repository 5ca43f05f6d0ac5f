//! A table that many threads read and add to at the same time. Readers write nothing; what is added stays until somebody owns
//! the table.

use floe_sync::OnceLock;

/// Buckets at least. Neighbouring keys have neighbouring buckets, four in a cache line, so threads that add runs of keys of
/// their own touch lines of their own.
const FEWEST: usize = 1 << 10;

/// Values by number.
#[derive(Debug)]
pub(crate) struct Table<V> {
    /// Values, as far as those who own the table have counted them.
    pub(crate) count: usize,
    buckets: Box<[Link<V>]>,
}

type Link<V> = OnceLock<Box<Entry<V>>>;

#[derive(Debug)]
struct Entry<V> {
    key: u32,
    value: V,
    next: Link<V>,
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self { count: 0, buckets: links(FEWEST) }
    }
}

fn links<V>(count: usize) -> Box<[Link<V>]> {
    (0..count).map(|_| OnceLock::new()).collect()
}

impl<V> Table<V> {
    fn bucket(&self, key: u32) -> usize {
        key as usize & (self.buckets.len() - 1)
    }

    pub(crate) fn get(&self, key: u32) -> Option<&V> {
        let mut link = &self.buckets[self.bucket(key)];
        loop {
            let entry = link.get()?;
            if entry.key == key {
                return Some(&entry.value);
            }
            link = &entry.next;
        }
    }

    pub(crate) fn get_mut(&mut self, key: u32) -> Option<&mut V> {
        let mut link = &mut self.buckets[key as usize & (self.buckets.len() - 1)];
        loop {
            let entry = link.get_mut()?;
            if entry.key == key {
                return Some(&mut entry.value);
            }
            link = &mut entry.next;
        }
    }

    /// Adds a value; `false`, and it is dropped, if the key is there.
    pub(crate) fn insert(&self, key: u32, value: V) -> bool {
        self.add(Box::new(Entry { key, value, next: OnceLock::new() }))
    }

    fn add(&self, mut new: Box<Entry<V>>) -> bool {
        let key = new.key;
        let mut link = &self.buckets[self.bucket(key)];
        loop {
            if let Some(entry) = link.get() {
                if entry.key == key {
                    return false;
                }
                link = &entry.next;
                continue;
            }
            match link.set(new) {
                Ok(()) => return true,
                // Another thread was faster.
                Err(back) => new = back,
            }
        }
    }

    /// Takes a value out.
    pub(crate) fn remove(&mut self, key: u32) -> Option<V> {
        let at = self.bucket(key);
        let mut link = &mut self.buckets[at];
        while link.get()?.key != key {
            link = &mut link.get_mut()?.next;
        }
        let entry = *link.take()?;
        *link = entry.next;
        Some(entry.value)
    }

    pub(crate) const fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// The keys in some buckets.
    pub(crate) fn keys(&self, buckets: std::ops::Range<usize>) -> Vec<u32> {
        let heads = self.buckets.get(buckets).into_iter().flatten();
        heads
            .flat_map(|head| std::iter::successors(head.get(), |entry| entry.next.get()))
            .map(|entry| entry.key)
            .collect()
    }

    /// All values with their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &V)> {
        self.buckets.iter().flat_map(|head| {
            std::iter::successors(head.get(), |entry| entry.next.get())
                .map(|entry| (entry.key, &entry.value))
        })
    }

    /// Makes room for so many values in all, with few in a bucket.
    pub(crate) fn grow(&mut self, values: usize) {
        if values <= self.buckets.len() {
            return;
        }
        let old = std::mem::replace(&mut self.buckets, links((values + 1).next_power_of_two()));
        for mut link in old {
            // They stay where they are: allocators are bad at large values that move.
            while let Some(mut entry) = link.take() {
                link = std::mem::take(&mut entry.next);
                self.add(entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use floe_sync::thread;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_keeps_what_a_map_keeps(calls in prop::collection::vec((0u32..3, 0u32..5000), 1..300)) {
            let (mut table, mut map) = (Table::default(), BTreeMap::new());
            for (turn, (call, key)) in calls.into_iter().enumerate() {
                // Many keys of few buckets.
                let key = key % 7 + ((key / 7) << 10);
                match call {
                    0 => prop_assert_eq!(table.remove(key), map.remove(&key)),
                    1 => table.grow(turn * 20),
                    _ => {
                        prop_assert_eq!(table.insert(key, turn), !map.contains_key(&key));
                        map.entry(key).or_insert(turn);
                    }
                }
                prop_assert_eq!(table.get(key), map.get(&key));
            }
            let all: BTreeMap<u32, usize> = table.iter().map(|(key, turn)| (key, *turn)).collect();
            prop_assert_eq!(&all, &map);
            let mut keys = table.keys(0..table.buckets());
            keys.sort_unstable();
            prop_assert_eq!(keys, map.into_keys().collect::<Vec<u32>>());
        }
    }

    #[test]
    fn threads_that_add_the_same_keys_agree_on_one_value() {
        let table = Table::default();
        let added: usize = thread::scope(|scope| {
            let adders: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..20_000).filter(|key| table.insert(*key, ())).count()))
                .collect();
            adders.into_iter().map(|adder| adder.join().unwrap()).sum()
        });
        assert_eq!((added, table.iter().count()), (20_000, 20_000));
    }
}
