//! Limits that follow a file, or the stored limits.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::error::{Error, LimitsFileError, NoRuntime};
use crate::limit::Limits;
use crate::limiter::Limiter;
use crate::observability::limits_reloaded;
use crate::sql::stored_limits_file;
use crate::transact::Notifications;

/// The channel of notifications of changed stored limits.
const CHANNEL: &str = "rate_limit_limits";

/// A changed file is read until two reads in a row are equal, with this pause in between: a program may be writing it.
const PAUSE: Duration = Duration::from_millis(100);
const MOST_READS: usize = 50;
/// The longest time for a question to the server: whether it knows a time zone, or what limits are stored.
const TO_ASK: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_secs(5);

/// A file with limits: JSON if its name ends in `.json`, otherwise TOML (see [`Limits::from_toml`]).
///
/// ```no_run
/// use pg_limiter::{Limiter, LimitsFile};
///
/// # async fn f(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let file = LimitsFile::new("limits.toml");
/// let limiter = Limiter::new(pool, file.read()?); // A wrong file at the start is an error.
/// let watch = limiter.watch_limits_file(file)?; // From now on, a wrong file changes nothing.
/// // .. serve ..
/// if let Some(error) = watch.last_error() {
///     eprintln!("the limits are not those of the file: {error}");
/// }
/// # Ok(()) }
/// ```
///
/// # Default
/// - Read every 5 seconds.
/// - Not read on SIGHUP.
#[derive(Clone, Debug)]
#[must_use]
pub struct LimitsFile {
    path: PathBuf,
    poll: Duration,
    #[cfg(unix)]
    on_sighup: bool,
}

impl LimitsFile {
    /// Names the file. It is not read yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            poll: POLL,
            #[cfg(unix)]
            on_sighup: false,
        }
    }

    /// Sets how often a watched file is read (default: 5 seconds; at least 10 milliseconds). Its content is compared, not its
    /// time, so a file that is replaced or mounted anew is noticed.
    pub fn poll_every(mut self, time: Duration) -> Self {
        self.poll = time.clamp(Duration::from_millis(10), Duration::from_secs(86_400));
        self
    }

    /// Also reads a watched file whenever the process gets the signal SIGHUP. From then on, this signal no longer ends the
    /// process.
    #[cfg(unix)]
    #[cfg_attr(docsrs, doc(cfg(unix)))]
    pub const fn on_sighup(mut self) -> Self {
        self.on_sighup = true;
        self
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file now, and blocks while it does.
    ///
    /// # Errors
    /// [`LimitsFileError`], which names the file, and the limit and the field.
    pub fn read(&self) -> Result<Limits, LimitsFileError> {
        read(&self.path).and_then(|text| self.parse(&text))
    }

    fn parse(&self, text: &str) -> Result<Limits, LimitsFileError> {
        let is_json = self.path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        let limits = if is_json { Limits::from_json(text) } else { parse_toml(text) };
        limits.map_err(|error| error.at(&self.path))
    }
}

#[cfg(feature = "toml")]
fn parse_toml(text: &str) -> Result<Limits, LimitsFileError> {
    Limits::from_toml(text)
}

#[cfg(not(feature = "toml"))]
fn parse_toml(_: &str) -> Result<Limits, LimitsFileError> {
    Err(LimitsFileError::new("cannot read TOML; use the feature \"toml\", or a file whose name ends in .json"))
}

fn read(path: &Path) -> Result<String, LimitsFileError> {
    let wrong = |reason: String| LimitsFileError::new(format!("cannot read it: {reason}")).at(path);
    // To open a pipe would wait for a writer.
    if !std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?.is_file() {
        return Err(wrong("it is not a regular file".to_owned()));
    }
    std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))
}

/// Keeps a limiter's limits up to date with a limits file ([`Limiter::watch_limits_file`]) or with the stored limits
/// ([`Limiter::follow_stored_limits`]), until it is dropped. The limiter then keeps the limits that it has.
#[derive(Debug)]
#[must_use = "the limiter stops following the limits when this is dropped"]
pub struct LimitsWatch {
    follower: Arc<Follower>,
    task: AbortHandle,
}

#[derive(Debug)]
struct Follower {
    limiter: Limiter,
    source: Source,
    /// Held while the limits are read and replace the former ones.
    seen: tokio::sync::Mutex<Seen>,
    status: Mutex<Status>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The last content, or why it was not read.
    read: Option<Result<String, LimitsFileError>>,
    /// The names that the source has defined.
    names: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Status {
    error: Option<LimitsFileError>,
    changes: u64,
}

impl Limiter {
    /// Replaces the limits whenever this file changes, as [`replace_limits`](Self::replace_limits) does. The limits of the file
    /// replace those of the same names; limits that are defined elsewhere stay.
    ///
    /// The file is read at once, and then every [`poll_every`](LimitsFile::poll_every). **A wrong file changes nothing**: all
    /// former limits stay. It is logged as an event of level WARN, once for each content, and
    /// [`last_error`](LimitsWatch::last_error) returns the reason. A file is wrong if
    ///
    /// - it cannot be read or is not valid,
    /// - a limit has a time zone that the server does not know,
    /// - a limit has another kind than the limit of this name: give it a new name, because a row does not store the kind of
    ///   limit that wrote it,
    /// - it lacks a limit that it defined before: calls on it would fail. To remove a limit, restart the process.
    ///
    /// To replace a file, write another one and rename it, so that no half of it is read. (A file that is written in place is
    /// read until it no longer changes.) Processes read the file at different times, and each decides by its own limits.
    ///
    /// # Errors
    /// [`LimitsFileError`] if there is no Tokio runtime, or the signal handler cannot be installed. A wrong file is no error
    /// here: read it with [`LimitsFile::read`] first.
    pub fn watch_limits_file(&self, file: LimitsFile) -> Result<LimitsWatch, LimitsFileError> {
        let hangups = Hangups::new(&file)?;
        self.follow(Source::File(file), hangups)
    }

    /// Replaces the limits whenever the [stored limits](Limits::stored) change, as [`watch_limits_file`](Self::watch_limits_file)
    /// does when a file changes, with the same rules for what is wrong. They are read at once, on each change, of which a
    /// connection of the limiter's own learns by LISTEN, and every 5 seconds. On YugabyteDB, and behind a pooler
    /// ([`LimiterConfig::named_statements`](crate::LimiterConfig::named_statements)), only the latter.
    ///
    /// ```no_run
    /// # async fn f(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// use pg_limiter::{Limiter, Limits};
    /// let limiter = Limiter::new(pool.clone(), Limits::stored(&pool).await?);
    /// let watch = limiter.follow_stored_limits()?;
    /// // .. serve ..
    /// # let _ = watch;
    /// # Ok(()) }
    /// ```
    ///
    /// The role needs EXECUTE on `rate_limit._limits_file`.
    ///
    /// # Errors
    /// [`LimitsFileError`] if there is no Tokio runtime. Stored limits that cannot be read are no error here.
    pub fn follow_stored_limits(&self) -> Result<LimitsWatch, LimitsFileError> {
        self.follow(Source::Stored, Hangups::none())
    }

    fn follow(&self, source: Source, mut hangups: Hangups) -> Result<LimitsWatch, LimitsFileError> {
        let runtime = Handle::try_current().map_err(|_| source.wrong(NoRuntime.to_string()))?;
        let follower = Arc::new(Follower {
            limiter: self.clone(),
            source,
            seen: tokio::sync::Mutex::default(),
            status: Mutex::default(),
        });
        let following = Arc::clone(&follower);
        let task = runtime.spawn(async move {
            // Behind a pooler, other clients would share the session that listens.
            let listen = following.source.is_stored() && following.limiter.named_statements().are_on();
            let changes = Notifications::new(following.limiter.pool(), CHANNEL, None, listen);
            let mut is_forced = false;
            loop {
                let _ = following.look(is_forced).await; // The status has the error.
                is_forced = hangups.within(following.source.poll(), &changes).await;
            }
        });
        Ok(LimitsWatch { follower, task: task.abort_handle() })
    }
}

impl LimitsWatch {
    /// Returns why the file or the stored limits are wrong, so that the limiter still has the former limits. `None` if it has
    /// theirs.
    pub fn last_error(&self) -> Option<LimitsFileError> {
        self.follower.status().error.clone()
    }

    /// Returns how many times the limits were replaced.
    pub fn changes(&self) -> u64 {
        self.follower.status().changes
    }

    /// Reads the file or the stored limits now. Returns once the limiter has these limits.
    ///
    /// # Errors
    /// [`LimitsFileError`] if they are wrong. The former limits stay.
    ///
    /// # Cancel safety
    /// Safe. The limits are replaced or not.
    ///
    /// # In a transaction
    /// Stored limits are read on a connection of their own.
    pub async fn reload(&self) -> Result<(), LimitsFileError> {
        self.follower.look(true).await
    }
}

impl Drop for LimitsWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Follower {
    fn status(&self) -> std::sync::MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the source, and replaces the limits if its content has changed.
    async fn look(&self, is_forced: bool) -> Result<(), LimitsFileError> {
        let mut seen = self.seen.lock().await;
        let mut now = self.read().await;
        let is_new = seen.read.as_ref() != Some(&now);
        if !is_new && !is_forced {
            return Ok(());
        }
        for _ in 0..self.source.most_reads() {
            tokio::time::sleep(PAUSE).await;
            let again = self.read().await;
            if again == now {
                break;
            }
            now = again;
        }
        let result = match now.clone().and_then(|text| self.source.parse(&text)) {
            Ok(limits) => match self.unknown_zone(&limits).await {
                Some(reason) => Err(self.source.wrong(reason)),
                None => self.apply(&limits, &mut seen.names),
            },
            Err(error) => Err(error),
        };
        if is_new && !self.limiter.pool().is_closed() {
            limits_reloaded(if result.is_ok() { "done" } else { "error" });
            if let Err(error) = &result {
                tracing::warn!(%error, "the new limits are wrong; keeping the former limits");
            }
        }
        seen.read = Some(now);
        self.status().error = result.clone().err();
        result
    }

    async fn read(&self) -> Result<String, LimitsFileError> {
        match &self.source {
            Source::File(file) => {
                let path = file.path.clone();
                let stopped = |_| LimitsFileError::new("the Tokio runtime is shutting down");
                tokio::task::spawn_blocking(move || read(&path)).await.map_err(stopped)?
            }
            Source::Stored => {
                let schema = self.limiter.schema();
                let wrong = |error| self.source.wrong(Error::from_sql(error, schema.name()).to_string());
                let asked = tokio::time::timeout(TO_ASK, stored_limits_file(self.limiter.pool(), schema)).await;
                asked.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map_err(wrong)
            }
        }
    }

    /// Returns which limit has a time zone that the server does not know, because all its calls would fail. A server that does
    /// not answer finds nothing.
    async fn unknown_zone(&self, limits: &Limits) -> Option<String> {
        for (name, limit) in limits.iter() {
            let Some(zone) = limit.zone() else { continue };
            let query = sqlx::query("SELECT pg_catalog.timezone($1, pg_catalog.now())").persistent(false).bind(zone);
            let asked = tokio::time::timeout(TO_ASK, query.execute(self.limiter.pool())).await;
            if let Ok(Err(sqlx::Error::Database(error))) = asked
                && error.code().is_some_and(|code| code == "22023")
            {
                return Some(format!("limit \"{name}\": {}; use a name of pg_timezone_names", error.message()));
            }
        }
        None
    }

    /// Replaces the limits. `names` are those that the source has defined.
    fn apply(&self, read: &Limits, names: &mut BTreeSet<String>) -> Result<(), LimitsFileError> {
        let wrong = |reason: String| self.source.wrong(reason);
        if let Some(name) = names.iter().find(|name| read.get(name).is_none()) {
            return Err(wrong(format!(
                "limit \"{name}\" is missing, and calls on it would fail; keep it, or restart the process without it"
            )));
        }
        loop {
            let former = self.limiter.limits();
            let limits = self.merged(read, &former)?;
            names.extend(read.iter().map(|(name, _)| name.to_owned()));
            if limits == former {
                return Ok(());
            }
            // Another source may have changed its limits meanwhile.
            if self.limiter.exchange_limits(&former, limits) {
                self.status().changes += 1;
                tracing::info!(from = %self.source.name(), "limits replaced");
                return Ok(());
            }
        }
    }

    /// Returns the limits with those of the source.
    fn merged(&self, read: &Limits, former: &Limits) -> Result<Limits, LimitsFileError> {
        let wrong = |reason: String| self.source.wrong(reason);
        let mut limits = former.clone();
        for (name, limit) in read.iter() {
            if let Some(old) = former.get(name).filter(|old| old.kind() != limit.kind()) {
                return Err(wrong(format!(
                    "limit \"{name}\": a {} cannot become a {}, because its balances would be misread; give it a new name",
                    old.kind(),
                    limit.kind()
                )));
            }
            limits = limits.define(name, *limit).map_err(|error| wrong(error.to_string()))?;
        }
        Ok(limits)
    }
}

/// Where the limits come from.
#[derive(Debug)]
enum Source {
    File(LimitsFile),
    Stored,
}

impl Source {
    const fn is_stored(&self) -> bool {
        matches!(self, Self::Stored)
    }

    const fn poll(&self) -> Duration {
        match self {
            Self::File(file) => file.poll,
            Self::Stored => POLL,
        }
    }

    /// How many times changed limits are read at most until they no longer change. Those in the database change at once.
    const fn most_reads(&self) -> usize {
        match self {
            Self::File(_) => MOST_READS,
            Self::Stored => 0,
        }
    }

    fn parse(&self, text: &str) -> Result<Limits, LimitsFileError> {
        match self {
            Self::File(file) => file.parse(text),
            Self::Stored => Limits::from_json(text).map_err(LimitsFileError::of_stored),
        }
    }

    fn wrong(&self, reason: String) -> LimitsFileError {
        match self {
            Self::File(file) => LimitsFileError::new(reason).at(&file.path),
            Self::Stored => LimitsFileError::new(reason).of_stored(),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::File(file) => file.path.display().to_string(),
            Self::Stored => "stored limits".to_owned(),
        }
    }
}

/// The signals SIGHUP of the process.
struct Hangups {
    #[cfg(unix)]
    signals: Option<tokio::signal::unix::Signal>,
}

impl Hangups {
    const fn none() -> Self {
        Self {
            #[cfg(unix)]
            signals: None,
        }
    }

    #[cfg(unix)]
    fn new(file: &LimitsFile) -> Result<Self, LimitsFileError> {
        use tokio::signal::unix::{SignalKind, signal};
        let signals = file.on_sighup.then(|| signal(SignalKind::hangup())).transpose();
        let signals = signals.map_err(|error| LimitsFileError::new(format!("cannot wait for SIGHUP: {error}")))?;
        Ok(Self { signals })
    }

    #[cfg(not(unix))]
    fn new(_: &LimitsFile) -> Result<Self, LimitsFileError> {
        Ok(Self {})
    }

    /// Waits for this long, or for a signal or a notification. Returns whether there was a signal.
    async fn within(&mut self, time: Duration, changes: &Notifications) -> bool {
        #[cfg(unix)]
        if let Some(signals) = &mut self.signals {
            return tokio::time::timeout(time, signals.recv()).await.is_ok();
        }
        let _ = tokio::time::timeout(time, changes.received()).await; // In both cases, look.
        false
    }
}
