use crate::error::message_and_hint;
use crate::migrate::script::WAYS_OUT;

/// The reason why a migration failed. Its transaction is rolled back, and all locks are released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// A newer release has migrated the schema, and this release cannot work with the result.
    #[error(
        "the schema \"{schema}\" is at version {found}, which this release cannot work with: it knows versions up to {known}; \
         update pg-limiter"
    )]
    SchemaTooNew {
        /// The schema.
        schema: String,
        /// The newest version found in the database that is marked as breaking.
        found: i32,
        /// The newest version that this release knows.
        known: i32,
    },
    /// Another process is migrating, and did not finish in time.
    #[error("another process is migrating the schema \"{schema}\": {}; retry when it is done", message_and_hint(.source))]
    Busy {
        /// The schema.
        schema: String,
        /// The driver's error.
        source: sqlx::Error,
    },
    /// The server refused a statement (SQLSTATE 42501): a privilege is missing, or an event trigger does not permit the change. If it
    /// is CREATE or USAGE on the schema, or CREATE on the database, the error is [`Lacking`](Self::Lacking).
    #[error(
        "cannot migrate the schema \"{schema}\": {}; grant the role the privilege that it lacks, or, if an event trigger refused the \
         change, let its owner permit it; then migrate again",
        message_and_hint(.source)
    )]
    Privilege {
        /// The schema.
        schema: String,
        /// The driver's error.
        source: sqlx::Error,
    },
    /// The role that migrates may not create objects in the schema, or may not create the schema.
    #[error(
        "cannot migrate the schema \"{schema}\": the role {role} needs {privilege} ON {what}; let {granted_by}, who owns it, or a \
         superuser run: GRANT {privilege} ON {what} TO {role};"
    )]
    Lacking {
        /// The schema.
        schema: String,
        /// The role that migrates, as an SQL identifier.
        role: String,
        /// The privileges that are missing: `CREATE`, `USAGE` or both.
        privilege: String,
        /// The object: `SCHEMA x` or `DATABASE x`.
        what: String,
        /// The role that can grant them, as an SQL identifier.
        granted_by: String,
    },
    /// The schema already has a relation or a function with the name of one of the limiter's.
    #[error(
        "the schema \"{schema}\" already has an object \"{table}\" that is not the rate limiter's; choose another schema"
    )]
    Occupied {
        /// The schema.
        schema: String,
        /// The name of the relation, or the signature of the function.
        table: String,
    },
    /// The objects do not all belong to the role that has migrated, as after a restore by a superuser. The functions run as their
    /// owner on the tables, so both must belong to one role.
    #[error("cannot migrate the schema \"{schema}\": {}", with_remedy(.problem, .statements))]
    Misowned {
        /// The schema.
        schema: String,
        /// The objects and their owner.
        problem: String,
        /// The statements that give the objects to their owner. Empty if the role cannot read which role that is.
        statements: Vec<String>,
    },
    /// The role that migrates neither owns the objects nor is a member of the role that owns them.
    #[error(
        "cannot migrate the schema \"{schema}\": its objects belong to the role {owner}; migrate as this role, or as a member that \
         may SET ROLE to it"
    )]
    NotOwner {
        /// The schema.
        schema: String,
        /// The role that owns the objects.
        owner: String,
    },
    /// The schema is not safe: another role can create objects in it, or owns or has changed an object with one of the limiter's
    /// names. Code of that role could run as the role that migrates.
    #[error("the schema \"{schema}\" is not safe: {}", with_ways_out(.problems))]
    Untrusted {
        /// The schema.
        schema: String,
        /// The problems, one sentence each.
        problems: Vec<String>,
    },
    /// Transactions are read-only, because the server is a standby or because of its settings.
    #[error(
        "cannot migrate the schema \"{schema}\": {}; connect to the primary, with default_transaction_read_only = off",
        message_and_hint(.source)
    )]
    ReadOnly {
        /// The schema.
        schema: String,
        /// The driver's error.
        source: sqlx::Error,
    },
    /// The database reported any other error.
    #[error(
        "cannot migrate the schema \"{schema}\": {}; correct the cause and migrate again",
        message_and_hint(.source)
    )]
    Database {
        /// The schema.
        schema: String,
        /// The driver's error.
        source: sqlx::Error,
    },
}

/// The problem with the owners, and the statements that solve it.
pub(super) fn with_remedy(problem: &str, statements: &[String]) -> String {
    match statements {
        [] => problem.to_owned(),
        _ => format!("{problem}; let a superuser, or a member of both roles, run: {}", few_of(statements, " ")),
    }
}

/// Between a trigger or a rule and the statement that removes it.
pub(super) const REMOVE: &str = ": run ";

fn with_ways_out(problems: &[String]) -> String {
    let few = few_of(problems, "; ");
    if problems.iter().all(|problem| problem.contains(REMOVE)) { few } else { format!("{few}; {WAYS_OUT}") }
}

/// The first few, and the number of the others.
pub(super) fn few_of(problems: &[String], between: &str) -> String {
    const FEW: usize = 4;
    let listed = problems.iter().take(FEW).map(String::as_str).collect::<Vec<_>>().join(between);
    match problems.len().saturating_sub(FEW) {
        0 => listed,
        more => format!("{listed}{between}and {more} more"),
    }
}
