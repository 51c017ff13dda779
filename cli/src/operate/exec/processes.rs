//! The processes of the command, and how they are found among those of the machine.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{self, Pid, Signal, WaitOptions};

use crate::operate::exec::args::Outcome;
use crate::operate::exec::terminal::Terminal;
use crate::signals::Signals;
use crate::{output, text};
use pg_limiter::{Lease, LeaseId};

/// The pause between two looks at what is left of a command that has ended.
const TICK: Duration = Duration::from_millis(100);
/// The time after which what is left is asked to end once more.
const AGAIN: Duration = Duration::from_secs(1);

/// A process group, and on Linux also what has left it.
pub(crate) struct Processes {
    /// The command itself. Its id is the id of the group.
    leader: Pid,
    pub(super) status: Option<ExitStatus>,
    /// Children that are not the command's: a shell that runs `exec pg-limiter` leaves its own.
    foreign: Vec<Pid>,
    /// What got SIGTERM after the command had ended: the last time, and whether it was the second.
    terminated: HashMap<Pid, (Instant, bool)>,
    /// Whether SIGINT or SIGQUIT was sent to this process, and not only typed.
    is_interrupted: bool,
    changes: Signals,
    terminal: Option<Terminal>,
    /// `None`: there is no shell to run it.
    guard: Option<Guard>,
}

impl Processes {
    /// Starts the command. If this process is killed, the command gets SIGTERM, and after the grace SIGKILL. If it is stopped for
    /// longer than [`Self::hold`] says, the command has half of the grace.
    pub(crate) fn start(command: &[OsString], lease: LeaseId, grace: Duration) -> io::Result<Self> {
        let (program, rest) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let terminal = Terminal::open();
        // In a pipeline, Ctrl-Z goes to the tool. Elsewhere it must stop the tool like any process.
        let is_in_pipeline = terminal.as_ref().is_some_and(|terminal| terminal.is_in_pipeline);
        let changes = [Signal::CHILD, Signal::CONT, Signal::TSTP];
        let changes = Signals::of(if is_in_pipeline { &changes } else { &changes[..2] })?;
        // Descendants whose parents have ended become children of this process. (Before Linux 3.4, they do not.)
        #[cfg(target_os = "linux")]
        let _ = process::set_child_subreaper(Some(process::getpid()));
        let mut guard = Guard::start().ok();
        let own = Some(process::getpid());
        let children = all().unwrap_or_default().into_iter().filter(|process| process.parent == own);
        let foreign = children.map(|process| process.id).collect();
        let mut command = Command::new(program);
        let child = command.args(rest).env("PG_LIMITER_LEASE", lease.to_string()).process_group(0).spawn()?;
        let leader = Pid::from_child(&child);
        if let Some(input) = guard.as_mut().and_then(|guard| guard.shell.stdin.as_mut()) {
            let _ = writeln!(input, "{leader} {}", grace.as_millis() / 100); // It fails if the guard has ended.
        }
        terminal.iter().for_each(|terminal| terminal.offer(leader));
        let (terminated, status) = (HashMap::new(), None);
        Ok(Self { leader, status, foreign, terminated, is_interrupted: false, changes, terminal, guard })
    }

    /// The guard ends the command after this time unless this is called again, or never if the time is zero.
    pub(crate) fn hold(&self, time: Duration) {
        if let Some(mut input) = self.guard.as_ref().and_then(|guard| guard.shell.stdin.as_ref()) {
            let time = if time.is_zero() { "0".to_owned() } else { format!("{:.1}", time.as_secs_f64()) };
            let _ = writeln!(input, "{time}"); // It fails if the guard has ended.
        }
    }

    /// Waits until `update` may find something new. Cancel safe.
    pub(crate) async fn change(&mut self) {
        let patience = if self.status.is_none() { Duration::MAX } else { TICK };
        if tokio::time::timeout(patience, self.changes.next()).await == Ok(Signal::TSTP.as_raw()) {
            self.send(Signal::TSTP, false);
        }
    }

    /// Looks which children have changed. If the command was stopped in its terminal, returns when it is continued. `early`: with
    /// less left of the lease, the command is not continued.
    pub(crate) async fn update(&mut self, lease: &Lease, early: Duration) {
        let mut stopped = None;
        while let Ok(Some((id, status))) = process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            if id == self.leader {
                stopped = status.stopping_signal();
                if stopped.is_none() {
                    self.status = Some(ExitStatus::from_raw(status.as_raw()));
                }
            } else if let Some(guard) = self.guard.as_mut().filter(|guard| Pid::from_child(&guard.shell) == id) {
                guard.has_ended |= !status.stopped();
            }
        }
        let Some(terminal) = self.terminal.as_ref().filter(|_| self.status.is_none()) else { return };
        // After `bg` and `fg`.
        terminal.offer(self.leader);
        let by_terminal = [Signal::TSTP, Signal::TTIN, Signal::TTOU];
        if let Some(signal) = by_terminal.into_iter().find(|kind| Some(kind.as_raw()) == stopped) {
            self.suspend(terminal, signal, lease, early).await;
        } else if stopped == Some(Signal::STOP.as_raw()) && terminal.is_lent_to(self.leader) && !is_orphaned() {
            // Another process stopped it. The user has no keys to continue it, and gets the shell.
            self.suspend(terminal, Signal::TSTP, lease, early).await;
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        let is_group_empty = || process::test_kill_process_group(self.leader) == Err(rustix::io::Errno::SRCH);
        self.status.is_some() && self.living().map_or_else(is_group_empty, |living| living.is_empty())
    }

    /// The processes of the group, and the descendants of this process: not the foreign children, their groups and their descendants.
    /// `None`: the system has no list.
    fn living(&self) -> Option<Vec<Process>> {
        let is_foreign = |id: &Pid| self.foreign.contains(id);
        let mut rest = all()?;
        rest.retain(|process| !is_foreign(&process.id) && !process.group.as_ref().is_some_and(is_foreign));
        let mut parents = HashSet::from([process::getpid()]);
        let mut members = Vec::new();
        loop {
            let is_member = |process: &Process| {
                process.group == Some(self.leader) || process.parent.is_some_and(|parent| parents.contains(&parent))
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

    pub(crate) fn forward(&mut self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else { return };
        self.is_interrupted |= [Signal::INT, Signal::QUIT].contains(&signal);
        self.send(signal, false);
        if signal == Signal::TERM {
            self.send(Signal::CONT, false);
        }
    }

    pub(crate) fn terminate(&mut self) {
        self.send(Signal::TERM, true);
        self.send(Signal::CONT, true);
    }

    /// Asks those to end that have not been asked since the command has ended: an earlier signal did not reach a child that was
    /// started after it. A second later it asks once more, because a signal between fork and exec is lost if the parent handles it.
    pub(crate) fn terminate_rest(&mut self) {
        let living = self.living();
        if living.is_none() && self.is_next_to_terminate(self.leader) {
            self.terminate();
        }
        for process in living.unwrap_or_default() {
            if self.is_next_to_terminate(process.id) {
                let _ = process::kill_process(process.id, Signal::TERM); // It fails if the process has ended.
                let _ = process::kill_process(process.id, Signal::CONT);
            }
        }
    }

    fn is_next_to_terminate(&mut self, id: Pid) -> bool {
        let before = self.terminated.get(&id).copied();
        let is_next = before.is_none_or(|(last, is_second)| !is_second && last.elapsed() > AGAIN);
        if is_next {
            self.terminated.insert(id, (Instant::now(), before.is_some()));
        }
        is_next
    }

    pub(crate) fn kill(&mut self) {
        self.send(Signal::KILL, true);
    }

    /// Sends the signal to the group, or also to the processes that have left it.
    fn send(&self, signal: Signal, to_all: bool) {
        let living = self.living();
        // The id may belong to another group once the command has ended and its group is empty.
        let is_group = self.status.is_none() || living.is_none();
        if is_group {
            let _ = process::kill_process_group(self.leader, signal); // It fails if the group is empty.
        }
        for process in living.unwrap_or_default() {
            let is_in_group = process.group == Some(self.leader);
            if if is_in_group { !is_group } else { to_all } {
                let _ = process::kill_process(process.id, signal); // It fails if the process has ended.
            }
        }
    }

    pub(crate) fn names(&self) -> String {
        self.living().iter().flatten().map(|process| process.id.to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Stops the tool with its command, so that the shell shows a stopped job, and continues both.
    async fn suspend(&self, terminal: &Terminal, signal: Signal, lease: &Lease, early: Duration) {
        let is_typed = signal == Signal::TSTP;
        if !is_typed && (terminal.is_home() || terminal.is_lent_to(self.leader)) {
            // The command was stopped because it did not have the terminal yet.
            terminal.lend(self.leader);
            return self.send(Signal::CONT, false);
        }
        self.hold(Duration::ZERO); // The command is stopped, too.
        let was_lent = terminal.take_back(self.leader);
        let left = text::wait(Duration::from_secs(lease.ends_in().as_secs()));
        output::note(format!("stopped: the slots are not renewed meanwhile, and free for others in {left}"));
        if !is_typed || !terminal.is_in_pipeline {
            // With all of its own group, as the terminal would. The system ignores the signal if there is no shell to continue it.
            let _ = process::kill_current_process_group(signal);
        } else if !is_orphaned() {
            // The terminal has stopped the rest of the pipeline, unless the command had it. This process handles SIGTSTP.
            let _ = match was_lent {
                true => process::kill_current_process_group(Signal::STOP),
                false => process::kill_process(process::getpid(), Signal::STOP),
            };
        }
        if !is_typed {
            // A command in the background that reads the terminal would stop again at once.
            tokio::time::sleep(TICK * 10).await;
        }
        // Others may hold the slots by now. If so, the command is not continued, but stopped.
        let _ = tokio::time::timeout(lease.ends_in(), lease.renew()).await;
        if lease.ends_in() > early || early.is_zero() {
            terminal.offer(self.leader);
            self.send(Signal::CONT, false);
        }
    }

    /// Takes the terminal back. Passes Ctrl-C on to the tool's own group, such as a script, which did not get it. Returns whether the
    /// guard has ended the command, and the outcome of the command.
    pub(crate) fn finish(self) -> (bool, Option<Outcome>) {
        let has_terminal = self.terminal.is_some();
        let is_returned = self.terminal.is_some_and(|terminal| terminal.take_back(self.leader));
        let signal = self.status.and_then(|status| status.signal());
        let typed = [Signal::INT, Signal::QUIT].into_iter().find(|kind| Some(kind.as_raw()) == signal);
        if let Some(typed) = typed.filter(|_| is_returned && !self.is_interrupted) {
            let _ = process::kill_current_process_group(typed);
        }
        let is_interrupted = has_terminal && typed == Some(Signal::INT);
        let of_command = |status| if is_interrupted { Outcome::Interrupted } else { Outcome::of_command(status) };
        (self.guard.is_some_and(|mut guard| guard.end()), self.status.map(of_command))
    }
}

/// A process that ends the command if this one gets SIGKILL or SIGSTOP, which it cannot handle: see `guard.sh`.
struct Guard {
    shell: Child,
    has_ended: bool,
}

impl Guard {
    fn start() -> io::Result<Self> {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", include_str!("guard.sh")]).current_dir("/").process_group(0);
        // The caller's PATH may lack `sleep`, and only that may have it.
        let mut path = OsString::from("/usr/bin:/bin:");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        shell.env_clear().env("PATH", path);
        let shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        Ok(Self { shell, has_ended: false })
    }

    /// Ends the guard. Returns whether it has ended the command: then it has written something.
    fn end(&mut self) -> bool {
        if !std::mem::replace(&mut self.has_ended, true) {
            let _ = process::kill_process_group(Pid::from_child(&self.shell), Signal::KILL); // It fails if the guard has ended.
            let _ = self.shell.wait();
        }
        let output = self.shell.stdout.take();
        output.is_some_and(|mut output| matches!(output.read(&mut [0]), Ok(1)))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.end();
    }
}

/// A process of this machine, from `/proc`. Only Linux has it in this form: elsewhere nothing is found.
#[derive(Clone, Copy)]
struct Process {
    id: Pid,
    group: Option<Pid>,
    parent: Option<Pid>,
    session: Option<Pid>,
}

/// The processes that have not ended, or `None` if the system has no list.
fn all() -> Option<Vec<Process>> {
    let ids = std::fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let all: Vec<Process> = ids.filter_map(|id| read(Pid::from_raw(id)?)).collect();
    all.iter().any(|process| process.id == process::getpid()).then_some(all)
}

fn read(id: Pid) -> Option<Process> {
    // "1 (the name) S 2 3 ..": the state, the parent and the group. The name may contain anything.
    let stat = std::fs::read(format!("/proc/{id}/stat")).ok()?;
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = std::str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace();
    let is_alive = !["Z", "X"].contains(&fields.next()?);
    // A process that is just ending has -1 here.
    let mut pid = || fields.next()?.parse().ok().filter(|id| *id > 0).and_then(Pid::from_raw);
    let (parent, group, session) = (pid(), pid(), pid());
    is_alive.then_some(Process { id, group, parent, session })
}

/// Whether no shell with job control started this process, so that nothing continues it if it stops.
fn is_orphaned() -> bool {
    let (Some(own), Some(parent)) = (read(process::getpid()), process::getppid().and_then(read)) else { return true };
    own.session != parent.session || own.group == parent.group
}
