//! Checks whether commits are durable, and whether transactions can write.

use crate::doctor::finding::Finding;
use crate::doctor::session::{Session, Settings};

pub(super) fn durability(settings: &Settings, yugabyte: bool) -> Finding {
    if yugabyte {
        return Finding::ok("YugabyteDB commits to most replicas of a tablet, whatever these settings are");
    }
    let shown = |name| settings.shown(name);
    let mut finding = Finding::ok(["synchronous_commit", "fsync", "full_page_writes"].map(shown).join(", "));
    if settings.get("synchronous_commit") == Some("off") {
        finding = finding.and(
            Finding::warning("decisions are returned before they are on disk")
                .advise("After a crash of the server, tokens taken in the last moments are available again. If you want this, set")
                .advise("LimiterConfig::durability to Durability::Relaxed, and set synchronous_commit to on for everything else:")
                .advise("ALTER ROLE app_role SET synchronous_commit = on; -- or ALTER DATABASE, or postgresql.conf"),
        );
    }
    if settings.get("fsync") == Some("off") {
        finding = finding.and(
            Finding::problem("a crash of the machine may destroy the database")
                .advise("Set fsync = on in postgresql.conf, unless this is a test."),
        );
    }
    if settings.get("full_page_writes") == Some("off") {
        finding =
            finding
                .and(Finding::problem("pages may be torn by a crash").advise(
                    "Set full_page_writes = on in postgresql.conf, unless the file system never tears a page.",
                ));
    }
    finding
}

pub(super) async fn writable(session: &mut Session, settings: &Settings) -> Result<Finding, sqlx::Error> {
    let (standby,) = session.row("SELECT pg_is_in_recovery()").await?;
    if standby {
        return Ok(Finding::problem("this is a standby: it cannot take tokens").advise(
            "Use the URL of the primary. With a list of hosts or a load balancer, select the server that accepts writes.",
        ));
    }
    if settings.get("default_transaction_read_only") == Some("on") {
        let found = format!("transactions are read-only: {}", settings.shown("default_transaction_read_only"));
        return Ok(Finding::problem(found).advise(
            "ALTER ROLE app_role RESET default_transaction_read_only; -- or ALTER DATABASE, or postgresql.conf",
        ));
    }
    Ok(Finding::ok("a primary, and transactions may write"))
}
