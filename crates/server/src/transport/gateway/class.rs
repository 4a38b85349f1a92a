//! The class header of a policy: the next server gets the class that the policy decided, never the
//! client's header.

use std::cell::Cell;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use tidegate::concurrency::Class;
use tidegate::policy::Domain;

tokio::task_local! {
    /// The class header of the request whose future runs.
    static CLASS: ClassField;
}

/// The class header of a request, and its class.
#[derive(Debug)]
pub(super) struct ClassField {
    header: HeaderName,
    /// The names of all classes, most important first.
    names: Vec<HeaderValue>,
    /// The class of the request; set only if a concurrency limiter applies.
    class: Cell<Option<Class>>,
}

impl ClassField {
    /// `None` if the domain has no class header.
    pub(super) fn of(domain: &Domain) -> Option<Self> {
        let classes = domain.classes();
        let header = HeaderName::from_bytes(classes.header()?.as_bytes()).ok()?;
        // The names of classes are words.
        let names = classes.names().filter_map(|name| HeaderValue::from_str(name).ok()).collect();
        Some(Self { header, names, class: Cell::new(None) })
    }

    /// Runs the future that answers a request, with this class header as its task-local value.
    pub(super) async fn scope<F: Future>(self, answer: F) -> F::Output {
        CLASS.scope(self, answer).await
    }
}

/// Notes the class of the request whose future runs.
pub(super) fn note(class: Class) {
    let _ = CLASS.try_with(|field| field.class.set(Some(class)));
}

/// Replaces the client's class header.
pub(super) fn replace_in(headers: &mut HeaderMap) {
    let _ = CLASS.try_with(|field| {
        headers.remove(&field.header);
        let name = field.class.get().and_then(|class| field.names.get(class.rank()));
        if let Some(name) = name {
            headers.insert(field.header.clone(), name.clone());
        }
    });
}
