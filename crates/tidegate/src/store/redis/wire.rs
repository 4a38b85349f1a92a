//! Commands and replies: key names, script arguments, calls and the connection that sends them.

pub(super) mod call;
pub(super) mod connection;
pub(super) mod deadline;
pub(super) mod entry;
pub(super) mod name;
pub(super) mod reply;
pub(super) mod request;
pub(super) mod script;
pub(super) mod script_args;
