//! The command as people run it; `flood` is apart, for it takes every file descriptor there is.

mod compare;
mod lint;
mod question;
mod schema;
mod serve;
