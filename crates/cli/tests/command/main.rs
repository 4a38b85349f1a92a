//! The command as users run it. `flood` is a separate test because it uses all file descriptors.

mod compare;
mod lint;
mod question;
mod schema;
mod serve;
