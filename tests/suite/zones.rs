//! The zones of calendar windows are the names of `pg_timezone_names`. No setting of a session changes what they mean.

use pg_limiter::sqlx::{self, Connection, PgConnection, Row};
use pg_limiter::{Calendar, Error, Limit, Limits};

use crate::support::Database;

fn is_valid(zone: &str) -> bool {
    let limit = Limit::calendar(1, Calendar::days(1)).zone(zone).build();
    let file = format!("[limits.a]\nkind = \"calendar_window\"\nrate = 1\nevery = \"1 day\"\nzone = {zone:?}");
    assert_eq!(Limits::from_toml(&file).is_ok(), limit.is_ok(), "{zone}");
    limit.is_ok()
}

/// Whether SQL accepts the form of the zone. If it does not, all calls from SQL name the zone.
async fn is_valid_in_sql(conn: &mut PgConnection, zone: &str) -> bool {
    let sql = "SELECT rate_limit._calendar_invalid('1 day', $1, '2026-01-01')";
    let reason: Result<Option<String>, _> = sqlx::query_scalar(sql).bind(zone).fetch_one(&mut *conn).await;
    let is_valid = match &reason {
        Ok(reason) => reason.is_none(),
        Err(error) => error.to_string().contains("time zone"), // A name that the server does not know.
    };
    if !is_valid && !zone.contains(' ') {
        let kind = format!("calendar_window 1 day {zone} 2026-01-01T00:00:00");
        let element = serde_json::json!([{"name": "a", "key": "k", "kind": "calendar_window", "rate": 1, "every": "1 day", "zone": zone}]);
        let element = element.to_string();
        for (sql, argument) in [
            ("SELECT FROM rate_limit.limit_with('a', 'k', $1, 1, '1 day')", &kind),
            ("SELECT FROM rate_limit.check_with('a', 'k', $1, 1, '1 day')", &kind),
            ("SELECT FROM rate_limit.limit_all_with($1::jsonb)", &element),
            ("SELECT FROM rate_limit.check_all_with($1::jsonb)", &element),
            ("SELECT FROM rate_limit.window($1, 86400000000)", &kind),
        ] {
            let error = sqlx::query(sql).bind(argument).execute(&mut *conn).await.expect_err(zone).to_string();
            assert!(error.contains("invalid_limit: ") && error.contains(zone), "{sql}: {error}");
        }
    }
    is_valid
}

/// Returns the offsets from UTC in summer and winter: those of the zone, and those that calendar windows use.
const OFFSETS: &str = "
    SELECT n.name, array_agg(zone_offset(n.name, m.at) ORDER BY m.at) AS expected,
      array_agg(extract(epoch FROM m.at AT TIME ZONE rate_limit._calendar_zone('calendar_window 1 day ' || n.name || ' x')
        - m.at AT TIME ZONE 'Etc/UTC')::integer ORDER BY m.at) AS used
    FROM pg_timezone_names AS n
    CROSS JOIN (VALUES (timestamptz '1996-07-01 12:00Z'), ('2012-01-10 12:00Z'), ('2026-01-10 12:00Z'), ('2026-07-10 12:00Z')) AS m (at)
    GROUP BY 1";

/// SET looks up no abbreviations.
const ZONE_OFFSET: &str = "
    CREATE FUNCTION zone_offset(zone text, at timestamptz) RETURNS integer LANGUAGE plpgsql SET timezone = 'UTC' AS $$
    BEGIN
      PERFORM set_config('timezone', zone, true);
      RETURN extract(timezone FROM at);
    END $$";

#[tokio::test]
async fn every_name_of_the_server_is_valid_and_means_its_zone() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    database.execute(ZONE_OFFSET).await;
    for abbreviations in ["Default", "Australia", "India"] {
        let set = format!("SET timezone_abbreviations = '{abbreviations}'; SET timezone = 'Australia/Sydney'");
        sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(&mut conn).await.expect("settings");
        let rows = sqlx::query(OFFSETS).fetch_all(&mut conn).await.expect("the names");
        assert!(rows.len() > 400, "{} zones", rows.len());
        for row in rows {
            let name: String = row.get("name");
            let offsets = |column| row.get::<Vec<i32>, _>(column);
            assert_eq!(offsets("used"), offsets("expected"), "{name} with {abbreviations}");
            if abbreviations == "Default" {
                assert!(is_valid(&name), "{name}");
                assert!(is_valid_in_sql(&mut conn, &name).await, "{name}");
                assert!(is_valid(&name.to_lowercase()) && is_valid(&name.to_uppercase()), "{name}");
            }
        }
    }
}

#[tokio::test]
async fn an_abbreviation_that_is_no_name_is_invalid() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let sql =
        "SELECT abbrev FROM pg_timezone_abbrevs WHERE upper(abbrev) NOT IN (SELECT upper(name) FROM pg_timezone_names)";
    for abbreviations in ["Default", "Australia", "India"] {
        let set = sqlx::AssertSqlSafe(format!("SET timezone_abbreviations = '{abbreviations}'"));
        sqlx::raw_sql(set).execute(&mut conn).await.expect("settings");
        let zones: Vec<String> = sqlx::query_scalar(sql).fetch_all(&mut conn).await.expect("abbreviations");
        assert!(zones.len() > 100 && zones.iter().any(|zone| zone == "CEST"), "{zones:?}");
        for zone in zones {
            for zone in [zone.to_lowercase(), zone] {
                assert!(!is_valid(&zone), "{zone}");
                assert!(abbreviations != "Default" || !is_valid_in_sql(&mut conn, &zone).await, "{zone}");
            }
        }
    }
}

/// The server takes most of these as zones.
#[tokio::test]
async fn what_is_no_name_is_invalid_in_code_and_in_sql() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let zones = "GMT+3 GMT-3 GMT3 gmt+3 GMT+12 UTC+2 UTC0 UTC-0 UCT3 CET-1 CET-1CEST EST5 EST5EDT4 MET-1MEST <+03>-3 <x>3 +03 -03 03
        +03:00 Etc/GMT+13 Etc/GMT-15 Etc/GMT+03 Etc/GMT3 Etc/GMT+20 Etc/GMT+00 Etc/UTC+3 Etc/UTC0 Europe/Berlin1 Europe/Berlin-1
        Europe/Berlin+1 Asia/Tokyo9 Europe Europe/ /Europe/Berlin Europe//Berlin ./UTC ../UTC Europe/../UTC right/UTC
        right/Europe/Berlin Right/Europe/Berlin posix/GMT+3 posix/CEST zone.tab leapseconds tzdata.zi Z z DEFAULT LOCAL now J";
    for zone in zones.split_whitespace().chain(["", " ", "Europe/Berlin ", " UTC", "Europe/\u{212a}iev", "\u{130}ran"])
    {
        assert!(!is_valid(zone), "{zone:?}");
        assert!(!is_valid_in_sql(&mut conn, zone).await, "{zone:?}");
    }
}

/// Some names are also abbreviations. In Australia, EST was ten hours ahead of UTC.
#[tokio::test]
async fn the_abbreviations_of_a_session_move_no_window() {
    let database = Database::migrated().await;
    let windows = "SELECT w.length, w.filled_in FROM unnest($1::text[]) AS z (zone)
        CROSS JOIN LATERAL rate_limit.window('calendar_window 1 day ' || z.zone || ' 2026-01-01T00:00:00', 86400000000, 1, 1783684800000000) AS w";
    let zones = [
        "EST",
        "MST",
        "HST",
        "CET",
        "MET",
        "EET",
        "WET",
        "UTC",
        "GMT",
        "Zulu",
        "Europe/Berlin",
        "EST5EDT",
        "Israel",
        "PRC",
    ];
    let mut seen = Vec::new();
    for settings in [
        "timezone_abbreviations = 'Default'",
        "timezone_abbreviations = 'Australia'",
        "timezone_abbreviations = 'India'",
        "timezone = 'America/Denver'",
        "timezone = 'Africa/Cairo'",
    ] {
        database
            .execute(&format!(
                "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET {}', current_database()); END $$",
                settings.replace('\'', "''")
            ))
            .await;
        let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
        let rows: Vec<(i64, i64)> = sqlx::query_as(windows).bind(zones).fetch_all(&mut conn).await.expect("windows");
        assert_eq!(rows.len(), zones.len());
        seen.push(rows);
        // A name that is not valid is rejected whatever it abbreviates.
        assert!(!is_valid_in_sql(&mut conn, "IST").await);
    }
    assert!(seen.iter().all(|rows| *rows == seen[0]), "{seen:?}");
    let hours_left: Vec<i64> = seen[0].iter().map(|(_, left)| left / 3_600_000_000).collect();
    assert_eq!(hours_left, [17, 19, 22, 10, 10, 9, 11, 12, 12, 12, 10, 16, 9, 4], "of 10 July 2026, 12:00 UTC");
}

#[tokio::test]
async fn a_name_that_only_this_server_does_not_know_is_an_invalid_limit() {
    let database = Database::migrated().await;
    for zone in ["Mars/Phobos", "America/Argentina", "posix/Mars/Phobos"] {
        let limits = Limits::new().define("a", Limit::calendar(1, Calendar::days(1)).zone(zone)).expect("a limit");
        let error = database.limiter(limits).limit(("a", "k")).await.expect_err(zone);
        assert!(matches!(&error, Error::InvalidLimit(_)) && error.to_string().contains(zone), "{error}");
    }
    assert_eq!(database.rows().await, 0);
}
