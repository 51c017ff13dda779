//! The owners of the limiter's objects. The functions run as their owner on the tables, so both belong to one role.

use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::migrate::Part;
use crate::migrate::functions::signatures;
use crate::migrate::installed::{Installed, Misowned};
use crate::migrate::tables::tables;
use crate::sql::Schema;

struct Object {
    /// As in ALTER.
    kind: &'static str,
    named: String,
    owner: String,
}

/// The objects of the limiter, and not those of the application that have the same name.
fn objects(installed: &Installed, schema: &Schema) -> Vec<Object> {
    let parts: &[Part] = if installed.has_queue(schema) { Part::ALL } else { &[Part::Core] };
    let owner = |which: &str| installed.definition("owner", which).map(str::to_owned);
    let tables = tables(parts).filter(|line| line.what == "table").filter_map(|line| {
        let is_view = line.definition.starts_with("view");
        let kind = if is_view { "VIEW" } else { "TABLE" };
        Some(Object { kind, named: schema.render(&format!("rate_limit.{}", line.which)), owner: owner(line.which)? })
    });
    let functions = signatures(parts).filter_map(|signature| {
        let owner = owner(signature)?;
        // The arguments can be left out unless the name has several functions.
        let name = signature.split('(').next().unwrap_or_default();
        let which = if installed.functions_named(name) > 1 { signature } else { name };
        Some(Object { kind: "FUNCTION", named: schema.render(&format!("rate_limit.{which}")), owner })
    });
    tables.chain(functions).collect()
}

/// The role that owns all objects of the limiter.
pub(super) fn only_owner(installed: &Installed, schema: &Schema) -> Option<String> {
    only(&objects(installed, schema)).map(str::to_owned)
}

fn only(objects: &[Object]) -> Option<&str> {
    let first = &*objects.first()?.owner;
    objects.iter().all(|object| object.owner == first).then_some(first)
}

/// Returns the objects of a wrong owner.
///
/// All objects may get a new owner together. They also have one owner after a restore by another role. Then the role that connects
/// has no rights on them, or the new owner is a superuser, and the recorded one is not.
pub(super) async fn misowned(
    conn: &mut PgConnection,
    schema: &Schema,
    installed: &Installed,
) -> Result<Option<Misowned>, sqlx::Error> {
    let objects = objects(installed, schema);
    let (Some((current, may)), Some(first)) = (installed.current(), objects.first()) else { return Ok(None) };
    let only = only(&objects);
    let recorded = installed.migrated_by();
    if let Some(owner) = only {
        let is_as_recorded = installed.is_readable() && recorded.is_none_or(|recorded| recorded == owner);
        let has_rights = installed.definition("rights", owner) == Some("true");
        if is_as_recorded || (may == "call" && !has_rights) {
            return Ok(None);
        }
        if has_rights {
            let Some(recorded) = recorded else { return Ok(None) };
            let superusers = (is_superuser(conn, recorded).await?, is_superuser(conn, owner).await?);
            if superusers != (Some(false), Some(true)) {
                return Ok(None);
            }
        }
        if !installed.is_readable() {
            let problem = format!(
                "all {} objects belong to the role {owner}, and {current} has no rights on them; if {owner} is right, grant \
                 {current} what `pg-limiter grants` prints; else let {owner} or a superuser run `pg-limiter migrate --check`, and \
                 give the objects to the role that should own them",
                objects.len()
            );
            return Ok(Some(Misowned { problem, statements: Vec::new() }));
        }
    }
    // The role that is recorded may have been left behind, as in another cluster.
    let recorded = match recorded {
        Some(recorded) if is_superuser(conn, recorded).await?.is_some() => Some(recorded),
        _ => None,
    };
    let right = recorded.unwrap_or(if only.is_some() { current } else { &first.owner });
    let wrong: Vec<&Object> = objects.iter().filter(|object| object.owner != right).collect();
    let altered = |kind: &str, named: &str| format!("ALTER {kind} {named} OWNER TO {};", quoted(right));
    let mut statements = Vec::new();
    if only.is_some() && only == installed.schema_owner() && schema.name() != "public" {
        statements.push(altered("SCHEMA", &quoted(schema.name()))); // It changed hands with the objects.
    }
    statements.extend(wrong.iter().map(|object| altered(object.kind, &object.named)));
    let problem = match (only, wrong.as_slice()) {
        (Some(owner), _) => {
            let all = format!("all {} objects belong to the role {owner}", objects.len());
            match recorded {
                Some(_) => format!("{all} and not to {right}, as after a restore by another role"),
                // The records name a role that is gone.
                None => format!(
                    "{all}, and {right} has no rights on them; if {owner} is right, grant {right} what `pg-limiter grants` \
                     prints; else another role has restored them"
                ),
            }
        }
        (None, []) => return Ok(None),
        (None, [Object { kind, named, owner }, others @ ..]) => {
            let more = if others.is_empty() { String::new() } else { format!(", as {} more objects", others.len()) };
            format!("the {} {named} belongs to the role {owner} and not to {right}{more}", kind.to_lowercase())
        }
    };
    Ok(Some(Misowned { problem, statements }))
}

/// `None` if the role does not exist.
async fn is_superuser(conn: &mut PgConnection, role: &str) -> Result<Option<bool>, sqlx::Error> {
    // In hexadecimal, so that no name ends the literal.
    let hex: String = role.bytes().map(|byte| format!("{byte:02x}")).collect();
    let sql = format!(
        "SELECT r.rolsuper FROM pg_catalog.pg_roles AS r \
         WHERE r.rolname = pg_catalog.convert_from(pg_catalog.decode('{hex}', 'hex'), 'UTF8')"
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).fetch_optional(conn).await?.map(|row| row.try_get(0)).transpose()
}

/// The name as an identifier. It can be a keyword.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
