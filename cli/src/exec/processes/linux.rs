//! The processes of this machine, from `/proc`.

use std::collections::HashSet;
use std::{fs, io};

use rustix::process::Pid;

#[derive(Clone, Copy)]
pub(super) struct Process {
    pub(super) id: Pid,
    /// The process group.
    pub(super) group: Option<Pid>,
    parent: Option<Pid>,
    session: Option<Pid>,
}

/// The processes that have not ended.
fn all() -> io::Result<Vec<Process>> {
    let ids = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(ids.filter_map(|id| read(Pid::from_raw(id)?)).collect())
}

/// Returns `None` if the process has ended.
fn read(id: Pid) -> Option<Process> {
    // "1 (the name) S 2 3 ..": the state, the parent and the group. The name may contain anything.
    let stat = fs::read(format!("/proc/{id}/stat")).ok()?;
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = std::str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace();
    let is_alive = !["Z", "X"].contains(&fields.next()?);
    // A process that is just ending has -1 here.
    let mut pid = || fields.next()?.parse().ok().filter(|id| *id > 0).and_then(Pid::from_raw);
    let (parent, group, session) = (pid(), pid(), pid());
    is_alive.then_some(Process { id, group, parent, session })
}

/// Whether no shell with job control started this process, so that nothing continues it if it stops.
pub(super) fn is_orphaned() -> bool {
    let parent = rustix::process::getppid().and_then(read);
    let (Some(own), Some(parent)) = (read(rustix::process::getpid()), parent) else { return true };
    own.session != parent.session || own.group == parent.group
}

/// The children of this process.
pub(super) fn children() -> Vec<Pid> {
    let parent = Some(rustix::process::getpid());
    all().unwrap_or_default().iter().filter(|process| process.parent == parent).map(|process| process.id).collect()
}

/// The processes of the group, and the descendants of this process except these children of it and their own descendants.
pub(super) fn members(group: Pid, except: &[Pid]) -> Option<Vec<Process>> {
    let mut rest = all().ok()?;
    rest.retain(|process| !except.contains(&process.id));
    let mut parents = HashSet::from([rustix::process::getpid()]);
    let mut members = Vec::new();
    loop {
        let is_member = |process: &Process| {
            process.group == Some(group) || process.parent.is_some_and(|parent| parents.contains(&parent))
        };
        let (found, others): (Vec<_>, _) = rest.into_iter().partition(is_member);
        if found.is_empty() {
            return Some(members);
        }
        parents.extend(found.iter().map(|process| process.id));
        members.extend(found);
        rest = others;
    }
}
