//! Rows: lists of a few numbers each, written column by column.
//!
//! Most lists are nearly regular: inodes one after another, the same length and the same flags each time. A column of a
//! chunk of rows is written as steps, each from the row before; and equal steps that follow one another as one step and
//! their number. A directory takes a few bytes then, and its reader, which is one machine for all shards, a few
//! instructions.

use super::{Decoder, Encoder, Fault, believed, coded_step, decoded_step};

/// Rows of a chunk, at most: so much more than the bytes that it was made of can a list take in memory.
const CHUNK_ROWS: usize = 512;

/// How the column of a chunk is written.
const ONE_BY_ONE: u64 = 0;
const RUNS: u64 = 1;

/// Columns of a chunk: the cells of each lie side by side, so that looking at them costs little.
fn columns<const N: usize>() -> [Vec<u64>; N] {
    std::array::from_fn(|_| Vec::new())
}

impl Encoder<'_> {
    /// Writes rows, with their number.
    pub(crate) fn put_rows<const N: usize>(
        &mut self,
        mut rows: impl ExactSizeIterator<Item = [u64; N]>,
    ) {
        self.put(rows.len() as u64);
        let (mut columns, mut last) = (columns::<N>(), [0; N]);
        while rows.len() > 0 {
            columns.iter_mut().for_each(|column| column.resize(rows.len().min(CHUNK_ROWS), 0));
            let count = columns.first().map_or(CHUNK_ROWS, Vec::len);
            for (at, row) in rows.by_ref().take(count).enumerate() {
                for (column, cell) in columns.iter_mut().zip(row) {
                    if let Some(place) = column.get_mut(at) {
                        *place = cell;
                    }
                }
            }
            columns
                .iter_mut()
                .zip(&mut last)
                .for_each(|(cells, last)| self.put_column(cells, last));
        }
    }

    /// Writes a column behind a cell, whose cells become steps.
    fn put_column(&mut self, cells: &mut [u64], last: &mut u64) {
        let mut before = *last;
        for cell in cells.iter_mut() {
            let now = *cell;
            *cell = now.wrapping_sub(before);
            before = now;
        }
        *last = before;
        let (steps, mut changes) = (cells, 0);
        let mut before = steps.first().copied().unwrap_or_default();
        for step in steps.iter() {
            changes += usize::from(*step != before);
            before = *step;
        }
        if (changes + 1) * 2 < steps.len() {
            self.put(RUNS);
            if changes == 0 {
                return self.put_run(before, steps.len());
            }
            steps.chunk_by(|one, next| one == next).for_each(|run| self.put_run(run[0], run.len()));
        } else {
            self.put(ONE_BY_ONE);
            steps.iter().for_each(|step| self.put(coded_step(*step)));
        }
    }

    fn put_run(&mut self, step: u64, count: usize) {
        self.put(coded_step(step));
        self.put(count as u64);
    }
}

impl Decoder<'_> {
    /// Reads rows; `row` makes one of its cells, or nothing if they are impossible.
    ///
    /// # Errors
    /// See [`Fault`].
    pub(crate) fn rows<const N: usize, T>(
        &mut self,
        row: impl FnMut([u64; N]) -> Option<T>,
    ) -> Result<Vec<T>, Fault> {
        let mut rows = Vec::new();
        self.more_rows(&mut rows, row)?;
        Ok(rows)
    }

    /// The same, behind those that are in `rows`, so that lists of many parts become one without being copied.
    ///
    /// # Errors
    /// See [`Fault`]. Some of the rows may have been added then.
    pub(crate) fn more_rows<const N: usize, T>(
        &mut self,
        rows: &mut Vec<T>,
        mut row: impl FnMut([u64; N]) -> Option<T>,
    ) -> Result<(), Fault> {
        let mut left = self.number()?;
        if left == 0 {
            return Ok(());
        }
        rows.reserve(believed(left));
        let (mut columns, mut last) = (columns::<N>(), [0; N]);
        while left > 0 {
            let count = left.min(CHUNK_ROWS as u64) as usize;
            for (column, last) in columns.iter_mut().zip(&mut last) {
                column.resize(count, 0);
                self.column(column, last)?;
            }
            let columns: [&[u64]; N] = columns.each_ref().map(|column| &column[..count]);
            rows.reserve(count);
            for at in 0..count {
                // `array::map` costs three times the instructions of this loop, which the compiler unrolls.
                let mut cells = [0; N];
                for (cell, column) in cells.iter_mut().zip(columns) {
                    *cell = column[at];
                }
                rows.push(row(cells).ok_or(Fault::Damaged)?);
            }
            left -= count as u64;
        }
        Ok(())
    }

    /// Reads the cells of a column.
    fn column(&mut self, cells: &mut [u64], last: &mut u64) -> Result<(), Fault> {
        if self.below(RUNS + 1)? == ONE_BY_ONE {
            for cell in cells {
                *cell = self.step(last)?;
            }
            return Ok(());
        }
        let mut rest = cells;
        while !rest.is_empty() {
            let step = decoded_step(self.number()?);
            let run = self.below(rest.len() as u64 + 1)? as usize;
            if run == 0 {
                return Err(Fault::Damaged);
            }
            let (of_run, behind) = rest.split_at_mut(run);
            if step == 0 {
                of_run.fill(*last);
            } else {
                let mut value = *last;
                for cell in of_run {
                    value = value.wrapping_add(step);
                    *cell = value;
                }
                *last = value;
            }
            rest = behind;
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
        fn rows_come_back(
            runs in proptest::collection::vec((any::<[u64; 3]>(), 1usize..700), 0..5),
            before in proptest::collection::vec(any::<[u64; 3]>(), 0..5),
        ) {
            let mut rows = Vec::new();
            for (step, count) in runs {
                for _ in 0..count {
                    let last = rows.last().copied().unwrap_or([7u64, 0, u64::MAX]);
                    rows.push([0, 1, 2].map(|at| last[at].wrapping_add(step[at])));
                }
            }
            let rows = Rows(rows);
            let bytes = bytes_of(&rows);
            prop_assert_eq!(&of_bytes::<Rows>(&bytes, BOUNDS).unwrap(), &rows);
            let (mut all, mut bytes) = (before.clone(), &bytes[..]);
            let mut decoder = Decoder::new(&mut bytes, 0, BOUNDS);
            prop_assert!(decoder.begin().unwrap());
            decoder.more_rows(&mut all, Some).unwrap();
            decoder.end().unwrap();
            prop_assert_eq!(all, [before, rows.0].concat());
        }
    }
}
