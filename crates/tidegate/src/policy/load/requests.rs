use crate::policy::{document::Node, finding::Findings, request::RequestRules};
pub(super) fn read(_n: &Node, _p: &str, _f: &mut Findings) -> RequestRules {
    RequestRules
}
