//! Extended attributes of an inode in memory, which readers look up without writing anything.
//!
//! A value that is replaced stays in its chain until somebody who is alone builds the attributes anew, so a reader always
//! finds the last one. Attributes with different names lie in different chains, mostly on cache lines of their own.

use floe_ext4::files::Attribute;
use floe_sync::OnceLock;

const BUCKETS: usize = 4;
/// Values of a name, old ones among them, from which on the attributes are to be built anew.
const MOST_VALUES: usize = 8;

/// The extended attributes of an inode.
#[derive(Debug, Default)]
pub(crate) struct Extended([Bucket; BUCKETS]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket(OnceLock<Box<One>>);

/// All values that a name had, `None` where it had none.
#[derive(Debug)]
#[repr(align(64))]
struct One {
    name: Box<[u8]>,
    first: OnceLock<Box<Value>>,
    next: OnceLock<Box<One>>,
}

#[derive(Debug)]
struct Value {
    bytes: Option<Box<[u8]>>,
    next: OnceLock<Box<Value>>,
}

impl One {
    fn values(&self) -> impl Iterator<Item = &Value> {
        std::iter::successors(self.first.get(), |value| value.next.get()).map(|value| &**value)
    }

    fn now(&self) -> Option<&[u8]> {
        self.values().last()?.bytes.as_deref()
    }
}

impl Extended {
    pub(crate) fn of(all: &[Attribute]) -> Self {
        let new = Self::default();
        all.iter().for_each(|one| new.set(&one.name, Some(&one.value)));
        new
    }

    fn chain(&self, name: &[u8]) -> &OnceLock<Box<One>> {
        let hash = name.iter().fold(0u32, |hash, byte| hash.wrapping_mul(31) ^ u32::from(*byte));
        &self.0[hash as usize % BUCKETS].0
    }

    fn all(&self) -> impl Iterator<Item = &One> {
        self.0.iter().flat_map(|bucket| {
            std::iter::successors(bucket.0.get(), |one| one.next.get()).map(|one| &**one)
        })
    }

    fn find(&self, name: &[u8]) -> Option<&One> {
        let first = self.chain(name).get();
        let mut chain = std::iter::successors(first, |one| one.next.get());
        chain.find(|one| *one.name == *name).map(|one| &**one)
    }

    /// The value of an attribute.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.find(name)?.now()
    }

    /// Sets or removes an attribute. The caller has the lock of the inode.
    pub(crate) fn set(&self, name: &[u8], value: Option<&[u8]>) {
        let one = self.find(name).unwrap_or_else(|| {
            let new = One { name: name.into(), first: OnceLock::new(), next: OnceLock::new() };
            let mut link = self.chain(name);
            while let Some(one) = link.get() {
                link = &one.next;
            }
            link.get_or_init(|| Box::new(new))
        });
        let new = Box::new(Value { bytes: value.map(Into::into), next: OnceLock::new() });
        let mut link = &one.first;
        while let Some(value) = link.get() {
            link = &value.next;
        }
        // Nobody else adds one.
        let _ = link.set(new);
    }

    /// Whether old values of a name make its chain long.
    pub(crate) fn is_long(&self, name: &[u8]) -> bool {
        self.find(name).is_some_and(|one| one.values().count() >= MOST_VALUES)
    }

    /// All attributes, sorted by name.
    pub(crate) fn list(&self) -> Vec<Attribute> {
        let attribute = |one: &One| {
            let value = one.now()?.to_vec();
            Some(Attribute { name: one.name.to_vec(), value })
        };
        let mut all: Vec<Attribute> = self.all().filter_map(attribute).collect();
        all.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        all
    }

    /// Bytes that they take in one block, if `name` had a value of so many bytes; rather too many.
    pub(crate) fn block_bytes_with(&self, name: &[u8], value_bytes: usize) -> usize {
        // An entry has 16 bytes and the name; both it and the value are in multiples of 4.
        let bytes = |name: &[u8], value: usize| 16 + name.len() + 3 + value + 3;
        let others = self.all().filter(|one| *one.name != *name);
        let others = others.filter_map(|one| Some(bytes(&one.name, one.now()?.len())));
        bytes(name, value_bytes) + others.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_keep_what_a_map_keeps(
            calls in prop::collection::vec(("[a-c]{1,2}", prop::option::of(0u8..)), 1..40),
        ) {
            let (mut extended, mut map) = (Extended::default(), BTreeMap::new());
            for (name, value) in calls {
                let name = name.as_bytes();
                if extended.is_long(name) {
                    extended = Extended::of(&extended.list());
                }
                extended.set(name, value.map(|value| vec![value]).as_deref());
                match value {
                    Some(value) => map.insert(name.to_vec(), vec![value]),
                    None => map.remove(name),
                };
                prop_assert_eq!(extended.get(name), map.get(name).map(Vec::as_slice));
            }
            let all: Vec<_> = extended.list().into_iter().map(|one| (one.name, one.value)).collect();
            prop_assert_eq!(all, map.into_iter().collect::<Vec<_>>());
        }
    }
}
