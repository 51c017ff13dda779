//! The uses of the limiter by roles, and the grants that each use needs.

use std::fmt;

use crate::migrate::{Part, names};
use crate::sql::Schema;

/// A use of the limiter by a role. A role can have several uses; each needs its own grants, and no others.
///
/// ```
/// use pg_limiter::Schema;
/// use pg_limiter::migrate::{Part, Use};
///
/// let grants = Use::Trigger.grants(&Schema::default(), Part::ALL, "blog");
/// assert_eq!(grants[0], "GRANT USAGE ON SCHEMA rate_limit TO \"blog\";");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Use {
    /// A service that calls this library: everything of [`Limiter`](crate::Limiter) but `forget`.
    App,
    /// A service that calls the functions from SQL, in any language, with stored limits or with the rules in its calls.
    Sql,
    /// A role with statements that fire triggers or policies, under stored limits. It has no power over the rules.
    Trigger,
    /// A service that enqueues and runs jobs. Handlers that limit need [`App`](Self::App), too.
    Worker,
    /// People and dashboards that look at limits, keys and jobs, and change nothing. Keys can be personal data.
    Reader,
    /// Operators, with the tool: all commands but `migrate`.
    Operator,
}

impl Use {
    /// All uses.
    pub const ALL: [Self; 6] = [Self::App, Self::Sql, Self::Trigger, Self::Worker, Self::Reader, Self::Operator];

    /// The name, such as `app`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::App => "app",
            Self::Sql => "sql",
            Self::Trigger => "trigger",
            Self::Worker => "worker",
            Self::Reader => "reader",
            Self::Operator => "operator",
        }
    }

    /// Returns whether the use needs all of its functions. Otherwise, a role needs those that its statements name.
    pub const fn needs_all(self) -> bool {
        !matches!(self, Self::Sql | Self::Trigger)
    }

    /// The functions that the use calls.
    pub fn functions(self) -> impl Iterator<Item = &'static CallableFunction> {
        CALLABLE.iter().filter(move |function| function.uses.contains(&self))
    }

    /// The tables and views that the use reads.
    pub const fn relations(self) -> &'static [&'static str] {
        match self {
            Self::Reader | Self::Operator => &[
                "buckets",
                "limits",
                "queue_groups",
                "queue_jobs",
                "rate_limits",
                "definitions",
                "jobs",
                "groups",
                "queues",
            ],
            _ => &[],
        }
    }

    /// The statements that grant this use of an installation with these parts to a role. A [`Worker`](Self::Worker) needs the queue.
    pub fn grants(self, schema: &Schema, parts: &[Part], role: &str) -> Vec<String> {
        let installed = names::of(parts);
        let prefix = match schema.name() {
            plain @ ("rate_limit" | "public") => plain.to_owned(),
            _ => schema.quoted(),
        };
        let role = format!("\"{}\"", role.replace('"', "\"\""));
        let listed = |names: &mut dyn Iterator<Item = &str>| {
            names.map(|name| format!("{prefix}.{name}")).collect::<Vec<_>>().join(", ")
        };
        let mut grants = vec![format!("GRANT USAGE ON SCHEMA {prefix} TO {role};")];
        let functions = self.functions().filter(|function| installed.contains(function.name()));
        let functions = listed(&mut functions.map(|function| function.signature));
        if !functions.is_empty() {
            grants.push(format!("GRANT EXECUTE ON FUNCTION {functions} TO {role};"));
        }
        let relations = listed(&mut self.relations().iter().copied().filter(|name| installed.contains(name)));
        if !relations.is_empty() {
            grants.push(format!("GRANT SELECT ON {relations} TO {role};"));
        }
        grants
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A function that roles other than the owner can be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallableFunction {
    /// The name; with the types of the arguments if there are several functions of this name.
    pub signature: &'static str,
    /// The uses that need it.
    pub uses: &'static [Use],
    /// The power that EXECUTE on it gives, as the end of "lets a role ..".
    pub lets: &'static str,
}

impl CallableFunction {
    /// The name without the types of the arguments.
    pub fn name(&self) -> &'static str {
        self.signature.split_once('(').map_or(self.signature, |(name, _)| name)
    }
}

/// The functions that roles can be granted, in the order of their power. All others are called only by these.
pub const fn callable_functions() -> &'static [CallableFunction] {
    CALLABLE
}

const fn of(signature: &'static str, uses: &'static [Use], lets: &'static str) -> CallableFunction {
    CallableFunction { signature, uses, lets }
}

use Use::{App, Operator, Reader, Sql, Trigger, Worker};

const ANY_RULE: &str = "take, give back or reset tokens of every bucket, under any rule";
const ITS_OWN_RULE: &str = "take tokens of every bucket, under any rule";
const GIVE_BACK: &str = "give back tokens of every bucket, under any rule";
const STORED_RULE: &str = "take tokens of stored limits";
const LOOK: &str = "read the balance of every bucket";
const END_LEASES: &str = "renew or end a lease of which it knows the number";
const JOBS: &str = "change every job";

const CALLABLE: &[CallableFunction] = &[
    of("_limits_file", &[App, Reader, Operator], "read the stored limits"),
    of("window", &[App, Sql, Operator], "compute a window, which reads no table"),
    of("_names", &[Reader, Operator], "read the names of the limits that have rows"),
    of("_queue_gauges", &[Worker, Reader, Operator], "count the jobs of a queue"),
    of(
        "_held",
        &[App, Operator],
        "see which buckets are locked, and lock those that are not, until its transaction ends",
    ),
    of("check", &[Sql, Trigger], "read the balance of every bucket of a stored limit"),
    of("check_all", &[Sql, Trigger], "read the balance of every bucket of a stored limit"),
    of("check_with", &[Sql], LOOK),
    of("check_all_with", &[Sql], LOOK),
    of("is_blocked", &[Sql], "see whether a key is blocked"),
    of("prune", &[App, Operator], "delete the rows of full buckets, which changes no decision"),
    of("_prune_answers", &[App, Operator], "delete answers that have expired"),
    of("limit", &[Sql, Trigger], STORED_RULE),
    of("enforce", &[Sql, Trigger], STORED_RULE),
    of("limit_all", &[Sql, Trigger], STORED_RULE),
    of("charge_all", &[Sql], "take tokens of stored limits, also those that are not there"),
    of("acquire", &[Sql], "take slots of stored limits"),
    of("credit_all", &[Sql], "give back tokens of stored limits"),
    of("release", &[Sql], END_LEASES),
    of("renew", &[Sql], END_LEASES),
    of("limit_with", &[Sql], ITS_OWN_RULE),
    of("enforce_with", &[Sql], ITS_OWN_RULE),
    of("limit_all_with", &[Sql], ITS_OWN_RULE),
    of("charge_all_with", &[Sql], ITS_OWN_RULE),
    of("acquire_with", &[Sql], "take slots of every key, under any rule"),
    of("credit_all_with", &[Sql], GIVE_BACK),
    of("_take_token_bucket", &[App, Operator], ITS_OWN_RULE),
    of("_take_fixed_window", &[App, Operator], ITS_OWN_RULE),
    of("_take_sliding_window", &[App, Operator], ITS_OWN_RULE),
    of("_take_two_token_buckets", &[App, Operator], ITS_OWN_RULE),
    of("_take_few", &[App, Operator], ITS_OWN_RULE),
    of("_decide_one", &[App, Operator], ITS_OWN_RULE),
    of("_decide_sums", &[App, Operator], GIVE_BACK),
    of("_take_slots", &[App, Operator], "take slots, and renew and end every lease"),
    of("_decide", &[App, Operator], ANY_RULE),
    of("_decide_once", &[App, Operator], ANY_RULE),
    of("block", &[App, Sql, Operator], "deny every key of a gate, for as long as it likes"),
    of("unblock", &[App, Sql, Operator], "end the block of every key"),
    of("reset(text, text)", &[Sql, Operator], "fill every bucket"),
    of("reset(text)", &[App, Operator], "fill all buckets of every limit, at once"),
    of("_claimed_jobs", &[Worker], "read the payloads of running jobs"),
    of("_enqueue", &[Worker], "add jobs to every queue, under any rule"),
    of("_claim", &[Worker], "start, and so take, the jobs of every queue"),
    of("_job_done", &[Worker], "end a job that it has started"),
    of("_job_again", &[Worker], "delay a job that it has started"),
    of("_job_extend", &[Worker], "keep a job that it has started"),
    of("_jobs_lapsed", &[Worker], "see which jobs were lost"),
    of("_retime_jobs", &[Worker], "move the times of all waiting jobs"),
    of("_job_settle", &[Worker], "correct what a job has taken: give back tokens"),
    of("_job_cancel", &[Worker, Operator], JOBS),
    of("_job_requeue", &[Worker, Operator], JOBS),
    of("requeue_dead", &[Worker, Operator], JOBS),
    of("pause", &[Worker, Operator], "stop every queue and group"),
    of("resume", &[Worker, Operator], "end the pause or the wait of every queue and group"),
    of("drain", &[Worker, Operator], "stop every queue from taking new jobs"),
    of("_jobs_discard", &[Worker, Operator], "delete dead jobs of every queue"),
    of("_jobs_prune", &[Worker, Operator], "delete finished jobs of every queue"),
    of("_dead_jobs_prune", &[Worker, Operator], "delete dead jobs of every queue"),
    of("define", &[Operator], "change every stored limit"),
    of("undefine", &[Operator], "end every stored limit"),
    of("forget", &[Operator], "delete what is stored about a key: it fills its buckets and cancels its jobs"),
];
