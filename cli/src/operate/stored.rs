//! The form in which a key is stored: a web layer may store the client's network for an address, or a prefix with the key.

use std::collections::BTreeSet;

use clap::Args;
use sqlx::{AssertSqlSafe, PgConnection};

use crate::error::{CliError, Result, lacks_privilege};
use crate::output;
use crate::text::{escaped, quoted};
use pg_limiter::web::{StoredKeys, stored_keys};
use pg_limiter::{Error, KeySecret, Limiter, Schema};

#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct ExactArgs {
    /// Use the key exactly as given. Without this, an address also means the key that a web layer stores for it, such as
    /// 2001:db8::/64 for 2001:db8::1
    #[arg(long)]
    exact: bool,
}

/// A key as an operator knows it, and the forms in which it may be stored.
pub(crate) struct Forms {
    given: String,
    /// All forms, the usual one first; none if the key is meant exactly.
    all: Vec<String>,
    secret: Option<KeySecret>,
}

/// The forms that have rows, each behind the name of its limit.
type Stored = BTreeSet<(String, String)>;

impl Forms {
    pub(crate) fn new(key: String, ExactArgs { exact }: ExactArgs, secret: Option<KeySecret>) -> Self {
        let mut all = Vec::new();
        if !exact && !key.is_empty() {
            let StoredKeys { usual, others, .. } = stored_keys(&key);
            all.extend([&usual].into_iter().chain(&others).map(|form| form.as_str().to_owned()));
        }
        Self { given: key, all, secret }
    }

    /// The key as a layer without settings stores it.
    pub(crate) fn usual(&self) -> &str {
        self.all.first().unwrap_or(&self.given)
    }

    /// A form as rows of the limit have it: hashed, if there is a secret.
    pub(crate) fn stored_key(&self, name: &str, form: &str) -> String {
        self.secret.as_ref().map_or_else(|| form.to_owned(), |secret| secret.stored_key(name, form))
    }

    /// The keys that have rows, in any form and of any limit, and the given one.
    pub(crate) async fn every(&self, limiter: &Limiter) -> Result<Vec<String>> {
        let stored = self.look(limiter, None).await?.unwrap_or_default();
        let first = if self.all.contains(&self.given) { self.given.as_str() } else { self.usual() };
        let others = stored.into_iter().map(|(_, form)| form).filter(|form| form != first).collect::<BTreeSet<_>>();
        Ok([first.to_owned()].into_iter().chain(others).collect())
    }

    /// Finds the form of which this limit has a row: the key as given, or else the only other one. Without a row, it is the usual
    /// form. Prints a note if it is not the key as given, or if `always` no row is of this form.
    pub(crate) async fn find(&self, limiter: &Limiter, name: &str, always: bool) -> Result<String> {
        let stored = self.look(limiter, Some(name)).await?;
        let here = stored.iter().flatten().filter(|(of, _)| of == name).map(|(_, form)| form.as_str());
        let here: Vec<&str> = here.collect();
        let form = match here[..] {
            _ if here.contains(&&*self.given) => &self.given,
            [] => self.usual(),
            [form] => form,
            _ => {
                let (given, forms) = (escaped(&self.given), quoted(&here));
                let why = format!("\"{given}\" is stored in several forms: {forms}; give one of them, with --exact");
                return Err(CliError::usage(why));
            }
        };
        self.note(form, !here.is_empty(), stored.as_ref(), always).iter().for_each(output::note);
        Ok(form.to_owned())
    }

    fn note(&self, form: &str, is_here: bool, stored: Option<&Stored>, always: bool) -> Option<String> {
        let (given, shown) = (escaped(&self.given), escaped(form));
        let is_otherwise = form != self.given;
        if is_here {
            return is_otherwise.then(|| format!("\"{given}\" is stored as \"{shown}\""));
        }
        let is_elsewhere = stored.into_iter().flatten().any(|(_, other)| other == form);
        if self.all.is_empty() || (is_elsewhere && !is_otherwise) {
            return None;
        }
        let in_limit = |(name, other): &(String, String)| format!("\"{}\" in \"{}\"", escaped(other), escaped(name));
        let others: Vec<String> = stored.into_iter().flatten().map(in_limit).collect();
        let found = match &others[..] {
            [] if !is_otherwise && !always => return None,
            [] if stored.is_none() => "this role may not read which keys are stored".to_owned(),
            [] => "no limit has a row of it, in any form".to_owned(),
            others => format!("other limits have rows of {}", others.join(", ")),
        };
        let of_given = if is_otherwise { format!(" of \"{given}\"") } else { String::new() };
        Some(format!(
            "the key{of_given} is \"{shown}\"; {found}. A layer with alternative keys (.or) stores it as \"1:{shown}\" or \"2:{shown}\": \
             give that form if yours does"
        ))
    }

    /// The forms that have rows of this limit, or if there are none, of all limits. `None`: this role may not read the rows.
    async fn look(&self, limiter: &Limiter, name: Option<&str>) -> Result<Option<Stored>> {
        let schema = limiter.schema();
        if self.all.is_empty() {
            return Ok(Some(Stored::new()));
        }
        let read = async {
            let mut tx = limiter.pool().begin().await?;
            let mut found = Stored::new();
            if let Some(name) = name {
                found = self.of_limits(&mut tx, schema, &[name.to_owned()]).await?;
            }
            if found.is_empty() {
                let sql = AssertSqlSafe(format!("SELECT n FROM {}._names() AS n", schema.quoted()));
                let names: Vec<String> = sqlx::query_scalar(sql).persistent(false).fetch_all(&mut *tx).await?;
                found = self.of_limits(&mut tx, schema, &names).await?;
            }
            tx.rollback().await.map(|()| found)
        };
        match read.await {
            Ok(found) => Ok(Some(found)),
            // The command itself may need no right to read the table.
            Err(error) if lacks_privilege(&error) => Ok(None),
            Err(error) => Err(Error::from_sql(error, schema.name()).into()),
        }
    }

    /// The forms that have rows of these limits, with the names of the limits. Runs in a transaction of the caller's.
    pub(crate) async fn of_limits(
        &self,
        conn: &mut PgConnection,
        schema: &Schema,
        names: &[String],
    ) -> Result<Stored, sqlx::Error> {
        // Each form is looked up by the primary key, even if the table was never analyzed.
        let plan = "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_seqscan = off";
        sqlx::raw_sql(plan).execute(&mut *conn).await?;
        let pairs = names.iter().flat_map(|name| self.all.iter().map(move |form| (name, form)));
        let pairs: Vec<(&String, &String)> = pairs.collect();
        let sql = format!(
            "SELECT DISTINCT u.nth FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (name, key, nth) \
             JOIN {}.rate_limits AS r ON r.name = u.name AND r.key = u.key",
            schema.quoted()
        );
        let found = sqlx::query_scalar(AssertSqlSafe(sql))
            .bind(pairs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>())
            .bind(pairs.iter().map(|(name, form)| self.stored_key(name, form)).collect::<Vec<_>>());
        let nth: Vec<i64> = found.persistent(false).fetch_all(conn).await?;
        let pair = |nth: i64| pairs.get(usize::try_from(nth - 1).ok()?);
        Ok(nth.into_iter().filter_map(pair).map(|(name, form)| ((*name).clone(), (*form).clone())).collect())
    }
}
