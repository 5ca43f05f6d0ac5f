//! Medians of measurements, and how far they can be trusted.

/// The median, which sorts the values; not a number if there are none.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.get(middle) {
        None => f64::NAN,
        Some(value) if values.len() % 2 == 1 => *value,
        Some(value) => f64::midpoint(values[middle - 1], *value),
    }
}

/// A 95 % confidence interval for the median of independent values, by order statistics (the number of values below the true median
/// is binomial); sorts them. `None` for fewer than 6 values, which are not enough.
pub fn median_interval(values: &mut [f64]) -> Option<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let count = values.len();
    // Probability that `below` or fewer of the values lie on one side of the median.
    let (mut below, mut chance, mut sum) = (0, 0.5f64.powi(count.try_into().ok()?), 0.0);
    while sum + chance <= 0.025 && below < count {
        sum += chance;
        chance *= (count - below) as f64 / (below + 1) as f64;
        below += 1;
    }
    let last = below.checked_sub(1)?;
    Some((values[last], values[count - below]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_lies_between_order_statistics() {
        let of =
            |count: u32| median_interval(&mut (1..=count).rev().map(f64::from).collect::<Vec<_>>());
        // From tables of the binomial distribution.
        let known = [
            (0, None),
            (5, None),
            (6, Some((1.0, 6.0))),
            (9, Some((2.0, 8.0))),
            (15, Some((4.0, 12.0))),
            (30, Some((10.0, 21.0))),
            (61, Some((23.0, 39.0))),
        ];
        for (count, expected) in known {
            assert_eq!(of(count), expected, "of {count}");
        }
        assert!((median(&mut [4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9 && median(&mut []).is_nan());
    }
}
