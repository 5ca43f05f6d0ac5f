//! Rows: lists of a few numbers each, written column by column.
//!
//! Most lists are nearly regular: inodes one after another, the same length and the same flags each time. A column of a
//! chunk of rows is written as steps, each from the row before; and equal steps that follow one another as one step and
//! their number. A directory takes a few bytes then, and its reader, which is one machine for all shards, a few
//! instructions.

use super::{Decoder, Encoder, Fault, coded_step, decoded_step, with_room};

/// Rows of a chunk, at most: so much more than the bytes that it was made of can a list take in memory.
const CHUNK_ROWS: usize = 512;

/// How the column of a chunk is written.
const ONE_BY_ONE: u64 = 0;
const RUNS: u64 = 1;

impl Encoder<'_> {
    /// Writes rows, with their number.
    pub(crate) fn put_rows<const N: usize>(
        &mut self,
        mut rows: impl ExactSizeIterator<Item = [u64; N]>,
    ) {
        self.put(rows.len() as u64);
        let (mut chunk, mut last) = (Vec::with_capacity(rows.len().min(CHUNK_ROWS)), [0; N]);
        loop {
            chunk.clear();
            chunk.extend(rows.by_ref().take(CHUNK_ROWS));
            if chunk.is_empty() {
                return;
            }
            for (column, last) in last.iter_mut().enumerate() {
                self.put_column(&chunk, column, last);
            }
        }
    }

    fn put_column<const N: usize>(&mut self, chunk: &[[u64; N]], column: usize, last: &mut u64) {
        let steps = |last: u64| {
            chunk.iter().scan(last, move |last, row| {
                let step = row[column].wrapping_sub(*last);
                *last = row[column];
                Some(step)
            })
        };
        let changes = steps(*last).zip(steps(*last).skip(1)).filter(|(one, next)| one != next);
        if (changes.count() + 1) * 2 < chunk.len() {
            self.put(RUNS);
            let mut run = (0, 0);
            for step in steps(*last) {
                if run.1 > 0 && run.0 != step {
                    self.put_run(run);
                    run.1 = 0;
                }
                run = (step, run.1 + 1);
            }
            self.put_run(run);
        } else {
            self.put(ONE_BY_ONE);
            steps(*last).for_each(|step| self.put(coded_step(step)));
        }
        *last = chunk.last().map_or(*last, |row| row[column]);
    }

    fn put_run(&mut self, (step, count): (u64, u64)) {
        self.put(coded_step(step));
        self.put(count);
    }
}

impl Decoder<'_> {
    /// Reads rows; `row` makes one of its cells, or nothing if they are impossible.
    ///
    /// # Errors
    /// See [`Fault`].
    pub(crate) fn rows<const N: usize, T>(
        &mut self,
        mut row: impl FnMut([u64; N]) -> Option<T>,
    ) -> Result<Vec<T>, Fault> {
        let mut left = self.number()?;
        let mut rows = with_room(left);
        let (mut chunk, mut last) = (Vec::new(), [0; N]);
        while left > 0 {
            let count = left.min(CHUNK_ROWS as u64);
            chunk.resize(count as usize, [0; N]);
            for (column, last) in last.iter_mut().enumerate() {
                self.column(&mut chunk, column, last)?;
            }
            for cells in &chunk {
                rows.push(row(*cells).ok_or(Fault::Damaged)?);
            }
            left -= count;
        }
        Ok(rows)
    }

    fn column<const N: usize>(
        &mut self,
        chunk: &mut [[u64; N]],
        column: usize,
        last: &mut u64,
    ) -> Result<(), Fault> {
        if self.below(RUNS + 1)? == ONE_BY_ONE {
            for cells in chunk {
                cells[column] = self.step(last)?;
            }
            return Ok(());
        }
        let mut rest = chunk;
        while !rest.is_empty() {
            let step = decoded_step(self.number()?);
            let count = self.below(rest.len() as u64 + 1)? as usize;
            if count == 0 {
                return Err(Fault::Damaged);
            }
            let (now, later) = rest.split_at_mut(count);
            for cells in now {
                *last = last.wrapping_add(step);
                cells[column] = *last;
            }
            rest = later;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Saved;
    use super::super::tests::{BOUNDS, bytes_of, of_bytes};
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Rows(Vec<[u64; 3]>);

    impl Saved for Rows {
        fn save(&self, to: &mut Encoder<'_>) {
            to.put_rows(self.0.iter().copied());
        }
        fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
            Ok(Self(from.rows(Some)?))
        }
    }

    #[test]
    fn regular_rows_take_few_bytes() {
        let regular = |len: u64| Rows((0..len).map(|at| [at * 3 + 11, 1 << 40, at % 2]).collect());
        for len in [0, 1, 2, 511, 512, 513, 5000] {
            let (rows, chunks) = (regular(len), len.div_ceil(CHUNK_ROWS as u64));
            let bytes = bytes_of(&rows);
            // The last column is one byte a row, the other two at most 20 bytes a chunk.
            assert!(bytes.len() as u64 <= 23 + len + 20 * chunks, "{len}: {}", bytes.len());
            assert_eq!(of_bytes::<Rows>(&bytes, BOUNDS).unwrap(), rows);
        }
    }

    #[test]
    fn runs_that_do_not_fit_are_refused() {
        for run in [0u64, 3, u64::MAX] {
            struct Forged(u64);
            impl Saved for Forged {
                fn save(&self, to: &mut Encoder<'_>) {
                    // Two rows; the first column is one run.
                    [2, RUNS, 2, self.0].into_iter().for_each(|number| to.put(number));
                }
                fn load(_: &mut Decoder<'_>) -> Result<Self, Fault> {
                    Err(Fault::Cut)
                }
            }
            let refused = of_bytes::<Rows>(&bytes_of(&Forged(run)), BOUNDS);
            assert!(matches!(refused, Err(Fault::Damaged)), "{run}");
        }
    }

    proptest! {
        #[test]
        fn rows_come_back(runs in proptest::collection::vec((any::<[u64; 3]>(), 1usize..700), 0..5)) {
            let mut rows = Vec::new();
            for (step, count) in runs {
                for _ in 0..count {
                    let last = rows.last().copied().unwrap_or([7u64, 0, u64::MAX]);
                    rows.push([0, 1, 2].map(|at| last[at].wrapping_add(step[at])));
                }
            }
            let rows = Rows(rows);
            prop_assert_eq!(of_bytes::<Rows>(&bytes_of(&rows), BOUNDS).unwrap(), rows);
        }
    }
}
