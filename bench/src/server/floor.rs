//! Floors of the transports: servers that do almost nothing but answer.

mod resp;
#[cfg(feature = "tonic")]
mod rls;

use crate::Failure;
use crate::options::number;

/// `floor-resp PORT` and `floor-rls PORT THREADS`: serves until it is killed.
pub fn serve(which: &str, arguments: &[String]) -> Result<(), Failure> {
    match (which, arguments) {
        ("floor-resp", [port]) => resp::serve(u16::try_from(number(port)?)?),
        #[cfg(feature = "tonic")]
        ("floor-rls", [port, threads]) => {
            rls::serve(u16::try_from(number(port)?)?, number(threads)?)
        }
        _ => Err(format!("{which}: PORT, and THREADS where there are several").into()),
    }
}
