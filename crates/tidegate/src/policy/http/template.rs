//! Paths with parameters, as in `/v1/users/{id}/files/{rest...}`.
//!
//! # Meaning
//! A normalised path is split at every `/`. A template is written as a normalised path: decoded, without
//! dot segments and duplicate slashes.
//! - A segment without braces matches itself, byte by byte.
//! - `{name}` matches one segment that is not empty.
//! - A last `{name...}` matches any number of segments, none included: `/files/{rest...}` is for
//!   `/files`, `/files/` and all below, though not for `/filesystem`.
//! - A final slash counts: `/a/` is not `/a`.

use super::target::never_matches;

/// A path with parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    text: Box<str>,
    /// The first is the nothing before the first slash.
    segments: Box<[Segment]>,
}

/// What stands between two slashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// Itself.
    Literal(Box<str>),
    /// Any one, by this name.
    One(Box<str>),
    /// All that follow, by this name.
    Rest(Box<str>),
}

/// Where the value of a parameter is in a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    /// How many slashes come before.
    place: usize,
    is_rest: bool,
}

/// More than any path people design; finding a rule takes a step for each.
const MAX_SEGMENTS: usize = 64;

impl Template {
    /// Reads a template, or says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        if !text.starts_with('/') {
            return Err("a path starts with /");
        }
        if text.contains(['?', '#']) {
            return Err("a path ends before its ? or #: take `query` to tell queries apart");
        }
        if let Some(why) = never_matches(text) {
            return Err(why);
        }
        let segments: Vec<Segment> =
            text.split('/').map(Segment::parse).collect::<Result<_, _>>()?;
        if segments.len() > MAX_SEGMENTS {
            return Err("a path of more than 63 segments");
        }
        let rest = segments.iter().position(|segment| matches!(segment, Segment::Rest(_)));
        if rest.is_some_and(|place| place + 1 < segments.len()) {
            return Err("only the last segment may be any number of segments");
        }
        let mut names: Vec<&str> = segments.iter().filter_map(Segment::name).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err("two parameters of one name");
        }
        Ok(Self { text: text.into(), segments: segments.into() })
    }

    /// As it was written.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// What stands between the slashes; first the nothing before the first.
    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Where the parameter of this name is.
    pub(crate) fn parameter(&self, name: &str) -> Option<Parameter> {
        let place = self.segments.iter().position(|segment| segment.name() == Some(name))?;
        Some(Parameter { place, is_rest: matches!(self.segments[place], Segment::Rest(_)) })
    }
}

impl Segment {
    fn parse(text: &str) -> Result<Self, &'static str> {
        if !text.contains(['{', '}']) {
            return Ok(Self::Literal(text.into()));
        }
        let Some(inner) = text.strip_prefix('{') else {
            return Err("a parameter is a whole segment, as in /users/{id}");
        };
        let Some(inner) = inner.strip_suffix('}') else {
            return Err("a brace that is not closed before the segment ends");
        };
        if inner.trim_start_matches('*').len() < inner.len() || inner.ends_with(['*', '+']) {
            return Err("any number of segments is written {rest...}, with three dots and no *");
        }
        let (name, is_rest) = inner.strip_suffix("...").map_or((inner, false), |name| (name, true));
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(is_name) {
            return Err("a parameter has a name of letters, digits and _");
        }
        Ok(if is_rest { Self::Rest(name.into()) } else { Self::One(name.into()) })
    }

    fn name(&self) -> Option<&str> {
        match self {
            Self::Literal(_) => None,
            Self::One(name) | Self::Rest(name) => Some(name),
        }
    }
}

impl Parameter {
    /// The value in a path that matches; none if no segment is there.
    pub(super) fn value(self, path: &str) -> Option<&str> {
        let rest = path.splitn(self.place + 1, '/').nth(self.place)?;
        if self.is_rest { Some(rest) } else { rest.split('/').next() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_template_says_why() {
        for (text, why) in [
            ("", "a path starts with /"),
            ("users/{id}", "a path starts with /"),
            ("/users/{id", "a brace that is not closed before the segment ends"),
            ("/users/{id/x}", "a brace that is not closed before the segment ends"),
            ("/users/id}", "a parameter is a whole segment, as in /users/{id}"),
            ("/users/v{id}", "a parameter is a whole segment, as in /users/{id}"),
            ("/users/{id}.json", "a brace that is not closed before the segment ends"),
            (
                "/files/{rest*}",
                "any number of segments is written {rest...}, with three dots and no *",
            ),
            ("/{*rest}", "any number of segments is written {rest...}, with three dots and no *"),
            ("/{}", "a parameter has a name of letters, digits and _"),
            ("/{...}", "a parameter has a name of letters, digits and _"),
            ("/{{a}}", "a parameter has a name of letters, digits and _"),
            ("/{a b}", "a parameter has a name of letters, digits and _"),
            ("/{a}/{a}", "two parameters of one name"),
            ("/{a}/{a...}", "two parameters of one name"),
            ("/{a...}/b", "only the last segment may be any number of segments"),
            ("/a?b=c", "a path ends before its ? or #: take `query` to tell queries apart"),
            (&"/a".repeat(64), "a path of more than 63 segments"),
        ] {
            assert_eq!(Template::parse(text), Err(why), "{text}");
        }
        for text in ["//", "/a//{b}", "/./a", "/a/..", "/ü/%2F", "/%41", "/a;b", "/a\\b", "/a\tb"]
        {
            let why = Template::parse(text).expect_err(text);
            assert!(
                ["a path with", "a path is"].iter().any(|start| why.starts_with(start)),
                "{why}"
            );
        }
        for text in
            ["/", "/a/", "/{a}/", "/{a...}", "/*", "/ü", "/a b", "/100%", "/...", &"/a".repeat(63)]
        {
            assert_eq!(Template::parse(text).unwrap().text(), text);
        }
    }

    #[test]
    fn a_parameter_is_found_in_the_path() {
        let template = Template::parse("/users/{id}/files/{rest...}").unwrap();
        let value = |name, path| template.parameter(name).and_then(|place| place.value(path));
        assert_eq!(value("id", "/users/7/files"), Some("7"));
        assert_eq!(value("id", "/users/a b/files/x"), Some("a b"));
        assert_eq!(value("rest", "/users/7/files"), None);
        assert_eq!(value("rest", "/users/7/files/"), Some(""));
        assert_eq!(value("rest", "/users/7/files/a/b/"), Some("a/b/"));
        assert_eq!(value("other", "/users/7/files"), None);
    }
}
