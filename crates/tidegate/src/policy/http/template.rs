//! Path templates, as in `/v1/users/{id}/files/{rest...}`.
//!
//! # Meaning
//! A normalised path is split at every `/`. A template is written as a normalised path: decoded,
//! without dot segments and duplicate slashes.
//! - A segment without braces matches itself, byte by byte.
//! - `{name}` matches one segment that is not empty.
//! - A last `{name...}` matches any number of segments, including none: `/files/{rest...}` matches
//!   `/files`, `/files/` and all paths below, but not `/filesystem`.
//! - A final slash is significant: `/a/` is not `/a`.

use super::target::never_matches;

/// A path template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    text: Box<str>,
    /// The first segment is the empty text before the first slash.
    segments: Box<[Segment]>,
}

/// One segment of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// Matches itself.
    Literal(Box<str>),
    /// Matches any one segment, under this name.
    One(Box<str>),
    /// Matches all remaining segments, under this name.
    Rest(Box<str>),
}

/// The position of a parameter in a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    /// Number of slashes before it.
    place: usize,
    is_rest: bool,
}

/// The most segments of a template; matching takes one step per segment.
const MAX_SEGMENTS: usize = 64;

impl Template {
    /// Parses a template.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        if !text.starts_with('/') {
            return Err("a path starts with /");
        }
        if text.contains(['?', '#']) {
            return Err("a path has no ? or #: use a `query` entry for query fields");
        }
        if let Some(why) = never_matches(text) {
            return Err(why);
        }
        let segments: Vec<Segment> =
            text.split('/').map(Segment::parse).collect::<Result<_, _>>()?;
        if segments.len() > MAX_SEGMENTS {
            return Err("a path has at most 63 segments");
        }
        let rest = segments.iter().position(|segment| matches!(segment, Segment::Rest(_)));
        if rest.is_some_and(|place| place + 1 < segments.len()) {
            return Err("only the last segment may match several segments");
        }
        let mut names: Vec<&str> = segments.iter().filter_map(Segment::name).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err("two parameters have the same name");
        }
        Ok(Self { text: text.into(), segments: segments.into() })
    }

    /// The template as written.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The segments; the first is the empty text before the first slash.
    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Whether the template matches every path, as `/{any...}` does.
    pub(crate) fn matches_every_path(&self) -> bool {
        matches!(&*self.segments, [_, Segment::Rest(_)])
    }

    /// The position of the parameter of this name.
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
            return Err("a brace is not closed within its segment");
        };
        if inner.trim_start_matches('*').len() < inner.len() || inner.ends_with(['*', '+']) {
            return Err("write {rest...} for any number of segments, with three dots and no *");
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
    /// The value in a path that matches; `None` if the segment is missing.
    pub(super) fn value(self, path: &str) -> Option<&str> {
        let rest = path.splitn(self.place + 1, '/').nth(self.place)?;
        if self.is_rest { Some(rest) } else { rest.split('/').next() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_template_names_the_reason() {
        for (text, why) in [
            ("", "a path starts with /"),
            ("users/{id}", "a path starts with /"),
            ("/users/{id", "a brace is not closed within its segment"),
            ("/users/{id/x}", "a brace is not closed within its segment"),
            ("/users/id}", "a parameter is a whole segment, as in /users/{id}"),
            ("/users/v{id}", "a parameter is a whole segment, as in /users/{id}"),
            ("/users/{id}.json", "a brace is not closed within its segment"),
            (
                "/files/{rest*}",
                "write {rest...} for any number of segments, with three dots and no *",
            ),
            ("/{*rest}", "write {rest...} for any number of segments, with three dots and no *"),
            ("/{}", "a parameter has a name of letters, digits and _"),
            ("/{...}", "a parameter has a name of letters, digits and _"),
            ("/{{a}}", "a parameter has a name of letters, digits and _"),
            ("/{a b}", "a parameter has a name of letters, digits and _"),
            ("/{a}/{a}", "two parameters have the same name"),
            ("/{a}/{a...}", "two parameters have the same name"),
            ("/{a...}/b", "only the last segment may match several segments"),
            ("/a?b=c", "a path has no ? or #: use a `query` entry for query fields"),
            (&"/a".repeat(64), "a path has at most 63 segments"),
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
