//! Suggestions for misspelt words.

/// The known word closest to `name`, if one is close enough.
pub fn nearest<'a>(name: &str, words: &[&'a str]) -> Option<&'a str> {
    let distance = |word: &str| edits(name, word);
    let nearest = words.iter().copied().min_by_key(|word| distance(word))?;
    (distance(nearest) <= 1 + name.len() / 4).then_some(nearest)
}

/// The edit distance: how many characters must be changed, added or removed to turn one word into
/// the other.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(64).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_is_understood() {
        let words = ["descriptors", "domain", "rate", "rate_limit"];
        assert_eq!(nearest("descriptor", &words), Some("descriptors"));
        assert_eq!(nearest("ratelimit", &words), Some("rate_limit"));
        assert_eq!(nearest("colour", &words), None);
    }
}
