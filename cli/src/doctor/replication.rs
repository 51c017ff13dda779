//! Checks for what logical replication can break: publications of parts of rows, and the sequence of the jobs.

use crate::doctor::report::Finding;
use crate::doctor::schema::TABLES;
use crate::doctor::session::Session;

/// Publications with which no row of a table can be changed: a column list without a column of the primary key, or a row filter on
/// another column. Returns `None` if there is none.
pub(super) async fn publications(session: &mut Session) -> Result<Option<Finding>, sqlx::Error> {
    // As JSON, because older servers lack these columns. A filter depends on the columns that it uses.
    let sql = format!(
        "SELECT p.pubname::text AS publication, c.relname::text AS table \
         FROM pg_publication_rel AS r \
         JOIN pg_publication AS p ON p.oid = r.prpubid AND (p.pubupdate OR p.pubdelete) \
         JOIN pg_class AS c ON c.oid = r.prrelid \
         JOIN pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname = {} \
         JOIN pg_index AS i ON i.indrelid = c.oid AND i.indisprimary \
         CROSS JOIN LATERAL to_jsonb(r) AS j \
         WHERE c.relname IN ({TABLES}) \
           AND CASE \
             WHEN j ->> 'prattrs' IS NOT NULL \
             THEN NOT ARRAY(SELECT a::smallint FROM jsonb_array_elements_text(j -> 'prattrs') AS a) @> i.indkey::smallint[] \
             ELSE j ->> 'prqual' IS NOT NULL AND EXISTS ( \
               SELECT FROM pg_depend AS d \
               WHERE d.classid = 'pg_publication_rel'::regclass AND d.objid = r.oid AND d.refobjid = c.oid \
                 AND d.refobjsubid > 0 AND d.refobjsubid <> ALL (i.indkey::smallint[])) \
           END \
         ORDER BY 1, 2",
        session.schema_literal()
    );
    let mut found: Option<Finding> = None;
    for (publication, table) in session.rows::<(String, String)>(&sql).await? {
        let table = session.table(&table);
        let finding = Finding::problem(format!(
            "with the publication \"{publication}\", no row of {table} can be changed: calls fail with SQLSTATE 42P10"
        ))
        .advise("Its column list lacks a column of the primary key, or its row filter uses another column. Leave the table out:")
        .advise(format!("ALTER PUBLICATION \"{}\" DROP TABLE {table};", publication.replace('"', "\"\"")));
        found = Some(match found {
            Some(before) => before.and(finding),
            None => finding,
        });
    }
    Ok(found)
}

/// Logical replication copies rows and no sequences, so a new primary can give a job an id that exists. Returns `None` if all is well,
/// or if the role may not read both.
pub(super) async fn job_ids(session: &mut Session) -> Option<Finding> {
    let (jobs, sequence) = (session.table("jobs"), session.table("jobs_id_seq"));
    let sql = format!("SELECT (SELECT max(id) FROM {jobs}), (SELECT last_value FROM {sequence})");
    let (newest, last) = session.row::<(Option<i64>, i64)>(&sql).await.ok()?;
    let newest = newest?;
    (last < newest).then(|| {
        Finding::problem(format!(
            "the next job gets the id {last} or a little more, and jobs up to {newest} exist: enqueuing fails"
        ))
        .advise("The sequence is behind, as after logical replication, which copies no sequences. Move it on:")
        .advise(format!("SELECT setval('{sequence}', (SELECT max(id) FROM {jobs}));"))
    })
}
