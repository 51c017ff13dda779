/// Splits a migration into statements, for engines whose schema changes are not transactional: they run each one separately.
///
/// A statement ends with a semicolon at the end of a line, outside of dollar quotes. All [`migrations`](super::migrations) are
/// written this way.
pub(super) fn statements(sql: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut start, mut at) = (0, 0);
    let mut quote: Option<&str> = None;
    for line in sql.split_inclusive('\n') {
        at += line.len();
        let code = if quote.is_none() { line.split("--").next().unwrap_or_default() } else { line };
        for tag in tags(code) {
            match quote {
                None => quote = Some(tag),
                Some(open) if open == tag => quote = None,
                Some(_) => {}
            }
        }
        if quote.is_none() && code.trim_end().ends_with(';') {
            found.push(sql[start..at].trim());
            start = at;
        }
    }
    let rest = sql[start..].trim();
    if rest.lines().any(|line| !line.trim_start().starts_with("--") && !line.trim().is_empty()) {
        found.push(rest);
    }
    found
}

/// The dollar quotes in a line: `$$`, `$name$`.
fn tags(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        loop {
            let open = rest.find('$')?;
            let after = &rest[open + 1..];
            let close = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
            if after[close..].starts_with('$') {
                let tag = &rest[open..open + close + 2];
                rest = &after[close + 1..];
                return Some(tag);
            }
            rest = after;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::statements;
    use crate::migrate::{Part, functions, migrations};
    use crate::sql::Schema;

    #[test]
    fn quotes_and_comments_are_not_split() {
        let sql = "-- a; b;\nCREATE TABLE t (a int);\n\n-- a function\nCREATE FUNCTION f() AS $f$\nBEGIN\n  EXECUTE $q$ x; $q$;\nEND\n$f$;\nDO $$\n;\n$$;\n-- the end;\n";
        let found = statements(sql);
        assert_eq!(found.len(), 3, "{found:#?}");
        assert!(found[1].ends_with("END\n$f$;") && found[2] == "DO $$\n;\n$$;", "{found:#?}");
    }

    #[test]
    fn splitting_keeps_every_word_of_migrations_and_functions() {
        let schema = Schema::default();
        let tables = migrations(&schema, Part::ALL).into_iter().map(|migration| migration.sql);
        for sql in tables.chain(functions(&schema, Part::ALL).into_iter().map(|function| function.sql)) {
            let found = statements(&sql);
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&found.join("\n")), words(&sql));
            for statement in found {
                let code =
                    statement.lines().find(|line| !line.starts_with("--") && !line.is_empty()).unwrap_or_default();
                let repeatable = ["CREATE OR REPLACE FUNCTION", "COMMENT ON FUNCTION", "DO $"];
                assert!(repeatable.iter().any(|begin| code.starts_with(begin)), "may it be run again? {code}");
            }
        }
    }
}
