//! The processes of this machine, from `/proc`. Only Linux has it in this form: elsewhere nothing is found.

use std::collections::HashSet;
use std::fs;

use rustix::process::{Pid, getpid, getppid};

#[derive(Clone, Copy)]
pub(super) struct Process {
    pub(super) id: Pid,
    pub(crate) group: Option<Pid>,
    parent: Option<Pid>,
    session: Option<Pid>,
}

/// The processes that have not ended, or `None` if the system has no list.
fn all() -> Option<Vec<Process>> {
    let ids = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let all: Vec<Process> = ids.filter_map(|id| read(Pid::from_raw(id)?)).collect();
    all.iter().any(|process| process.id == getpid()).then_some(all)
}

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
    let (Some(own), Some(parent)) = (read(getpid()), getppid().and_then(read)) else { return true };
    own.session != parent.session || own.group == parent.group
}

pub(super) fn children() -> Vec<Pid> {
    let parent = Some(getpid());
    all().unwrap_or_default().iter().filter(|process| process.parent == parent).map(|process| process.id).collect()
}

/// The processes of the group, and the descendants of this process: not these children, their groups and their descendants.
pub(super) fn members(group: Pid, except: &[Pid]) -> Option<Vec<Process>> {
    let mut rest = all()?;
    rest.retain(|process| !except.contains(&process.id) && !process.group.is_some_and(|group| except.contains(&group)));
    let mut parents = HashSet::from([getpid()]);
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
