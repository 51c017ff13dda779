//! Checks what the connected role may do to the tables directly. A role that is not their owner should have no such rights.

use sqlx::Row;

use crate::doctor::finding::Finding;
use crate::doctor::session::Session;

/// The connected role.
#[derive(Debug)]
pub(super) struct Role {
    pub(super) name: String,
    pub(super) superuser: bool,
    pub(super) owner: bool,
}

impl Role {
    pub(super) async fn read(session: &mut Session) -> Result<Self, sqlx::Error> {
        let sql = format!(
            "SELECT current_user::text, (SELECT rolsuper FROM pg_roles WHERE rolname = current_user), \
             coalesce((SELECT pg_has_role(c.relowner, 'USAGE') FROM pg_class AS c \
               JOIN pg_namespace AS n ON n.oid = c.relnamespace \
               WHERE n.nspname = {} AND c.relname = 'rate_limits'), false)",
            session.schema_literal()
        );
        let row = session.row(&sql).await?;
        Ok(Self {
            name: row.try_get(0)?,
            superuser: row.try_get::<Option<bool>, _>(1)?.unwrap_or_default(),
            owner: row.try_get(2)?,
        })
    }

    /// Describes a superuser or the owner of the tables. Returns `None` for any other role.
    pub(super) fn may_do_all(&self) -> Option<String> {
        let as_what = match (self.superuser, self.owner) {
            (true, _) => "a superuser",
            (false, true) => "the owner of the tables",
            (false, false) => return None,
        };
        Some(format!("connected as {}, {as_what}", self.name))
    }
}

pub(super) async fn check(session: &mut Session, role: &Role) -> Result<Finding, sqlx::Error> {
    if let Some(found) = role.may_do_all() {
        return Ok(Finding::note(format!("{found}, and may change every table by hand")).advise(
            "Connect the application as a role that has only EXECUTE on the functions (guide: migrations, privileges).",
        ));
    }
    let sql = format!(
        "SELECT c.relname::text, \
           has_table_privilege(c.oid, 'DELETE, TRUNCATE, TRIGGER') OR has_any_column_privilege(c.oid, 'INSERT, UPDATE'), \
           has_any_column_privilege(c.oid, 'SELECT') \
         FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
         WHERE n.nspname = {} AND c.relkind = 'r' \
           AND c.relname IN ('rate_limits', 'jobs', 'groups', 'workers') \
         ORDER BY c.relname",
        session.schema_literal()
    );
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    for row in session.rows(&sql).await? {
        let table = session.table(row.try_get(0)?);
        if row.try_get(1)? {
            writes.push(table);
        } else if row.try_get(2)? {
            reads.push(table);
        }
    }
    let name = &role.name;
    let quoted = format!("\"{}\"", name.replace('"', "\"\""));
    if !writes.is_empty() {
        let tables = writes.join(", ");
        return Ok(Finding::warning(format!("the role {name} may change {tables} by hand"))
            .advise(format!("REVOKE INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER ON {tables} FROM {quoted};"))
            .advise("(Or revoke them from the role that it inherits them from.) The functions run as their owner: callers need no rights on tables."));
    }
    Ok(match reads.as_slice() {
        [] => Finding::ok(format!("the role {name} can neither read nor change the tables by hand")),
        reads => Finding::note(format!("the role {name} may read {} by hand, and change nothing", reads.join(", "))),
    })
}
