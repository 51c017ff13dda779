//! The processes of the command.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(unix))]
mod other;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub(super) use other::Processes;
#[cfg(unix)]
pub(super) use unix::{Processes, Stopped};
