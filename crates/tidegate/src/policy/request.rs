//! Stub.
#[derive(Clone, Debug, Default)]
pub struct RequestRules;
impl RequestRules {
    pub(super) fn extend(&mut self, _o: Self) {}
}
#[derive(Debug)]
pub struct Described;
#[derive(Debug)]
pub struct HttpRequest;
