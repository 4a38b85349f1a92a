//! Finds the first of many patterns with stars that matches a value.
//!
//! # Meaning
//! A star stands for any number of characters, including none. Of several patterns that match, the
//! first in the file wins, as in envoyproxy/ratelimit.
//!
//! # Speed
//! A pattern is tried only if the value begins with the text before its first star or, if that text
//! is empty, ends with the text after its last star. Finding these candidates takes one lookup per
//! distinct length, however many patterns there are. If many patterns have text between stars, one
//! pass over the value finds that text for all of them.

use std::collections::{HashMap, HashSet};

use aho_corasick::AhoCorasick;
use foldhash::quality::RandomState;

/// Patterns in the order of the file, each with a value.
#[derive(Clone, Debug, Default)]
pub(in crate::policy) struct Patterns<T> {
    patterns: Vec<(Pattern, T)>,
    by_head: Index,
    by_tail: Index,
    /// Patterns that begin and end with a star.
    loose: Vec<usize>,
    /// Patterns with text between stars, if there are many; these are in none of the three indexes
    /// above.
    middles: Option<Middles>,
    /// The patterns as written. Patterns that are spelled differently may mean the same.
    texts: HashSet<Box<str>, RandomState>,
}

/// A pattern, split at its stars.
#[derive(Clone, Debug)]
struct Pattern {
    head: Box<str>,
    middle: Box<[Box<str>]>,
    tail: Box<str>,
}

/// Up to this number, patterns with text between stars are tried one after the other.
const FEW: usize = 16;

/// The number of a piece of text between stars.
type Piece = usize;

/// Patterns with text between stars.
#[derive(Clone, Debug)]
struct Middles {
    /// Finds all pieces in one pass over a value.
    pieces: AhoCorasick,
    /// For each piece, the patterns that have it first, in order.
    first: Vec<Vec<usize>>,
    /// The pieces of each pattern.
    of: HashMap<usize, Box<[Piece]>, RandomState>,
}

/// A pattern of which some pieces were found.
struct Waiting {
    pattern: usize,
    /// Number of pieces found.
    found: usize,
    /// Where the next piece may begin.
    from: usize,
}

impl Middles {
    /// `None` if the pieces are too many for one search.
    fn new<T>(patterns: &[(Pattern, T)]) -> Option<Self> {
        let (mut numbers, mut texts) = (HashMap::<&str, Piece, RandomState>::default(), Vec::new());
        let (mut first, mut of) = (Vec::<Vec<usize>>::new(), HashMap::default());
        for (number, (pattern, _)) in patterns.iter().enumerate() {
            let mut pieces = Vec::with_capacity(pattern.middle.len());
            for text in &pattern.middle {
                pieces.push(*numbers.entry(text).or_insert_with(|| {
                    texts.push(&**text);
                    first.push(Vec::new());
                    texts.len() - 1
                }));
            }
            if let Some(piece) = pieces.first() {
                first[*piece].push(number);
                of.insert(number, pieces.into());
            }
        }
        Some(Self { pieces: AhoCorasick::new(&texts).ok()?, first, of })
    }

    /// The first pattern that matches, if it is before `best`. Takes the leftmost occurrence of
    /// each piece, which leaves the most text for the next.
    fn first<T>(
        &self,
        patterns: &[(Pattern, T)],
        value: &str,
        best: Option<usize>,
    ) -> Option<usize> {
        let mut best = best.unwrap_or(usize::MAX);
        let mut waiting = HashMap::<Piece, Vec<Waiting>, RandomState>::default();
        let mut seen = HashSet::<Piece, RandomState>::default();
        for occurrence in self.pieces.find_overlapping_iter(value) {
            let (piece, start, end) =
                (occurrence.pattern().as_usize(), occurrence.start(), occurrence.end());
            let here = waiting.entry(piece).or_default();
            if seen.insert(piece) {
                let all = self.first[piece].iter().take_while(|number| **number < best);
                let fitting = all.filter(|number| patterns[**number].0.encloses(value));
                here.extend(fitting.map(|number| {
                    let from = patterns[*number].0.head.len();
                    Waiting { pattern: *number, found: 0, from }
                }));
            }
            let ready: Vec<Waiting> =
                here.extract_if(.., |it| it.from <= start || it.pattern >= best).collect();
            for Waiting { pattern, found, .. } in ready {
                let tail = patterns[pattern].0.tail.len();
                if pattern >= best || end + tail > value.len() {
                    continue;
                }
                match self.of.get(&pattern).and_then(|pieces| pieces.get(found + 1)) {
                    Some(next) => {
                        let wait = Waiting { pattern, found: found + 1, from: end };
                        waiting.entry(*next).or_default().push(wait);
                    }
                    None => best = pattern,
                }
            }
        }
        (best < usize::MAX).then_some(best)
    }
}

/// Patterns by a piece of text, and the lengths of these pieces.
#[derive(Clone, Debug, Default)]
struct Index {
    lengths: Vec<usize>,
    patterns: HashMap<Box<str>, Vec<usize>, RandomState>,
}

impl Index {
    fn add(&mut self, piece: &str, pattern: usize) {
        if let Err(place) = self.lengths.binary_search(&piece.len()) {
            self.lengths.insert(place, piece.len());
        }
        self.patterns.entry(piece.into()).or_default().push(pattern);
    }

    /// The patterns whose piece `cut` finds in the value.
    fn candidates<'a>(
        &'a self,
        cut: impl Fn(usize) -> Option<&'a str> + 'a,
    ) -> impl Iterator<Item = &'a [usize]> {
        let piece = move |length: &usize| cut(*length);
        // A length may fall inside a character of the value; no piece of that length can match.
        let pieces = self.lengths.iter().filter_map(piece);
        pieces.filter_map(|piece| self.patterns.get(piece)).map(|patterns| &patterns[..])
    }
}

impl Pattern {
    fn new(text: &str) -> Self {
        let mut pieces: Vec<Box<str>> = text.split('*').map(Into::into).collect();
        let tail = if pieces.len() > 1 { pieces.pop().unwrap_or_default() } else { "".into() };
        let head = pieces.remove(0);
        Self { head, middle: pieces.into_iter().filter(|piece| !piece.is_empty()).collect(), tail }
    }

    /// Whether a value begins and ends like the pattern.
    fn encloses(&self, value: &str) -> bool {
        value.strip_prefix(&*self.head).is_some_and(|rest| rest.ends_with(&*self.tail))
    }

    fn matches(&self, value: &str) -> bool {
        let Some(rest) = value.strip_prefix(&*self.head) else { return false };
        let Some(mut rest) = rest.strip_suffix(&*self.tail) else { return false };
        // The leftmost occurrence of each piece leaves the most text for the next.
        self.middle.iter().all(|piece| match rest.split_once(&**piece) {
            Some((_, after)) => {
                rest = after;
                true
            }
            None => false,
        })
    }
}

impl<T: Copy> Patterns<T> {
    /// Adds a pattern after all others; false if it is present. It must contain a star.
    pub(in crate::policy) fn add(&mut self, text: &str, leads_to: T) -> bool {
        let (pattern, number) = (Pattern::new(text), self.patterns.len());
        if !pattern.head.is_empty() {
            self.by_head.add(&pattern.head, number);
        } else if !pattern.tail.is_empty() {
            self.by_tail.add(&pattern.tail, number);
        } else {
            self.loose.push(number);
        }
        self.patterns.push((pattern, leads_to));
        self.texts.insert(text.into())
    }

    /// Builds the index, once all patterns are added.
    pub(in crate::policy) fn finish(&mut self) {
        let has_middle = |number: &usize| !self.patterns[*number].0.middle.is_empty();
        if (0..self.patterns.len()).filter(has_middle).count() <= FEW {
            return;
        }
        let Some(middles) = Middles::new(&self.patterns) else { return };
        self.loose.retain(|number| !has_middle(number));
        for index in [&mut self.by_head, &mut self.by_tail] {
            index.patterns.values_mut().for_each(|list| list.retain(|number| !has_middle(number)));
        }
        self.middles = Some(middles);
    }

    /// The value of the first pattern that matches.
    pub(in crate::policy) fn first(&self, value: &str) -> Option<T> {
        let by_head = self.by_head.candidates(|length| value.get(..length));
        let by_tail = self.by_tail.candidates(|length| {
            value.len().checked_sub(length).and_then(|start| value.get(start..))
        });
        let matching = |list: &[usize]| {
            list.iter().copied().find(|number| self.patterns[*number].0.matches(value))
        };
        let loose = matching(&self.loose);
        let mut first = by_head.chain(by_tail).filter_map(matching).chain(loose).min();
        if let Some(middles) = &self.middles {
            first = middles.first(&self.patterns, value, first);
        }
        first.map(|number| self.patterns[number].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(patterns: &[&str], value: &str) -> Option<usize> {
        let mut all = Patterns::default();
        patterns.iter().enumerate().for_each(|(number, text)| {
            all.add(text, number);
        });
        all.finish();
        all.first(value)
    }

    #[test]
    fn a_star_stands_for_any_number_of_characters() {
        for (pattern, value, matches) in [
            ("foo*", "foo", true),
            ("foo*", "foobar", true),
            ("foo*", "fo", false),
            ("*foo", "barfoo", true),
            ("*foo", "foobar", false),
            ("f*o", "fo", true),
            ("f*o", "f", false),
            ("ab*ba", "aba", false),
            ("ab*ba", "abba", true),
            ("*", "", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("a**b", "ab", true),
            ("é*", "éa", true),
        ] {
            assert_eq!(first(&[pattern], value).is_some(), matches, "{pattern} {value}");
        }
    }

    /// Not the most specific, the first.
    #[test]
    fn the_first_that_matches_wins() {
        assert_eq!(first(&["a*", "ab*", "*c"], "abc"), Some(0));
        assert_eq!(first(&["ab*", "a*", "*c"], "abc"), Some(0));
        assert_eq!(first(&["*c", "ab*", "*"], "abc"), Some(0));
        assert_eq!(first(&["x*", "*y*", "*"], "abc"), Some(2));
        assert_eq!(first(&["x*", "*", "*c"], "abc"), Some(1));
    }

    /// The index only leaves out patterns that cannot match, and few patterns match the same as
    /// many.
    #[test]
    fn an_index_finds_what_a_scan_finds() {
        let mut rng = fastrand::Rng::with_seed(4);
        for round in 0..20_000 {
            let mut text = |most: usize| -> String {
                (0..rng.usize(0..=most))
                    .map(|_| *rng.choice(&['a', 'b', '*', 'é']).unwrap_or(&'a'))
                    .collect()
            };
            let many = if round % 4 == 0 { 6 * FEW } else { 6 };
            let patterns: Vec<String> = (0..many)
                .map(|_| if many > 6 { text(7) + "*" + &text(4) } else { text(5) + "*" })
                .collect();
            let value = text(7).replace('*', "b");
            let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
            let scan = patterns.iter().position(|pattern| Pattern::new(pattern).matches(&value));
            assert_eq!(first(&patterns, &value), scan, "{patterns:?} {value}");
        }
    }
}
