//! The command `ui`: a web page that shows a limiter in use. The server makes the pages: they need no script and no other server.

mod access;
mod actions;
mod demo;
mod format;
mod health_page;
mod key_page;
mod limits_page;
mod page;
mod queue_page;
#[cfg(feature = "study")]
mod what_if;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::middleware::from_fn_with_state;
use axum::response::Redirect;
use axum::routing::{MethodRouter, get, post};
use axum::{Router, serve};
use clap::Args;
use tokio::sync::Mutex;

use crate::operate::live::{Health, Live};
use crate::signals::interrupt;
use crate::{CliError, Database, KeySecretArgs, Keys, Result, Running, input, output};
use access::{Access, random_token};
use actions::{CHANGES, Done};
use format::encoded;
use page::{JOB_NUMBER, Page, PageError, Wanted, number, table, unexpected};
use pg_limiter::{KeySecret, Limiter, Limits, Schema};

/// How often samples are taken, and pages renewed.
const INTERVAL: Duration = Duration::from_secs(2);

type Shared = State<Arc<App>>;

struct App {
    live: Live,
    access: Access,
    keys: Keys,
    /// Makes changes, on connections of its own. `None`: nothing can be changed.
    changes: Option<Limiter>,
    done: Done,
    key_secret: Option<KeySecret>,
    running: Running,
    /// That of the last simulation, until it is closed.
    #[cfg(feature = "study")]
    sandbox: Arc<Mutex<Option<crate::study::replay::Sandbox>>>,
    place: String,
    health: Mutex<Option<(Health, Instant)>>,
}

const CHANGING: u32 = 2;

pub(crate) async fn run(args: UiArgs, database: &Database) -> Result<()> {
    let has_both = args.demo && database.is_argument;
    CliError::refuse_if(has_both, "--demo shows a private server: use it without --database-url")?;
    let token = args.token()?;
    let key_secret = if args.demo { None } else { args.secret.read()? };
    let of_demo = args.demo.then(|| Limits::from_toml(demo::LIMITS)).transpose().map_err(CliError::failed)?;
    let of_file = args.limits.as_deref().map(input::read_limits).transpose()?.or(of_demo);
    let running = if args.demo { database.start_private(true).await? } else { database.named()? };
    let live = Live::open(&running, of_file).await?;
    let cannot_listen = |error| CliError::usage(format!("cannot listen on {}: {error}", args.listen));
    let listener = tokio::net::TcpListener::bind(args.listen).await.map_err(cannot_listen)?;
    let address = listener.local_addr().map_err(CliError::failed)?;
    let token = if token.is_none() && !address.ip().is_loopback() { Some(random_token()?) } else { token };
    let interrupted = interrupt();
    let mut demo = if args.demo { Some(demo::start(&running, live.limits()).await?) } else { None };
    let changing = if args.allow_changes { Some(running.pool(CHANGING).await?) } else { None };
    let changes = changing.map(|pool| running.limiter_on(pool, live.limits(), None));
    let query = token.as_ref().map_or_else(String::new, |token| format!("?token={token}"));
    let app = Arc::new(App {
        live,
        access: Access::new(address, token)?,
        keys: Keys::new(args.hide_keys)?,
        changes,
        done: Done::default(),
        key_secret,
        place: place(&running, args.demo),
        running,
        #[cfg(feature = "study")]
        sandbox: Arc::default(),
        health: Mutex::new(None),
    });
    output::line(format!("http://{address}/{query}"))?;
    output::note("press Ctrl-C to end");
    let served = serve(listener, routes(Arc::clone(&app))).into_future();
    let result = tokio::select! {
        served = served => served.map_err(CliError::failed),
        () = app.live.watch(INTERVAL) => Ok(()),
        () = interrupted => Ok(()),
    };
    #[cfg(feature = "study")]
    what_if::close(&app.sandbox).await;
    app.live.close().await;
    if let Some((tasks, _)) = &mut demo {
        output::note("ending the private server");
        tasks.shutdown().await;
    }
    for limiter in app.changes.iter().chain(demo.iter().map(|(_, limiter)| limiter)) {
        limiter.close().await;
        limiter.pool().close().await;
    }
    result
}

/// An access log may be so large.
const LARGEST_BODY: usize = 32 << 20;

fn routes(app: Arc<App>) -> Router {
    let routes = Router::new()
        .route("/", get(|| async { Redirect::to("/limits") }))
        .route("/style.css", file("text/css; charset=utf-8", include_str!("style.css")))
        .route("/page.js", file("text/javascript; charset=utf-8", include_str!("page.js")))
        .route("/icon.svg", file("image/svg+xml", include_str!("icon.svg")))
        .route("/limits", get(limits_page::limits))
        .route("/limit", get(limits_page::limit))
        .route("/key", get(key_page::page))
        .route("/key/find", post(key_page::find))
        .route("/queue", get(queue_page::queues))
        .route("/job", get(queue_page::job))
        .route("/health", get(health_page::page));
    #[cfg(feature = "study")]
    let routes = routes.route("/what-if", get(what_if::empty).post(what_if::simulated));
    let changes = CHANGES.split(' ').fold(Router::new(), |changes, path| changes.route(path, post(actions::change)));
    // Without `--allow-changes` there is no route that changes anything.
    let routes = if app.changes.is_some() { routes.merge(changes) } else { routes };
    routes
        .layer(axum::extract::DefaultBodyLimit::max(LARGEST_BODY))
        .layer(from_fn_with_state(Arc::clone(&app), page::frame))
        .fallback(page::no_such_page)
        .layer(from_fn_with_state(Arc::clone(&app), access::guard))
        .with_state(app)
}

fn file(kind: &'static str, text: &'static str) -> MethodRouter<Arc<App>> {
    get(move || async move { ([(axum::http::header::CONTENT_TYPE, kind)], text) })
}

fn place(running: &Running, is_demo: bool) -> String {
    if is_demo {
        return "a private server with made-up traffic".to_owned();
    }
    let Running { options, schema, .. } = running;
    let database = options.get_database().unwrap_or_else(|| options.get_username());
    let schema = if *schema == Schema::default() { String::new() } else { format!(", schema {schema}") };
    format!("{database} on {}{schema}", options.get_host())
}

/// A shorter token could be found by trying.
const SHORTEST_TOKEN: usize = 16;

#[derive(Args, Debug)]
pub(crate) struct UiArgs {
    /// Address to listen on; port 0 chooses a free port. If it is not a loopback address, visitors need a token
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8420")]
    listen: std::net::SocketAddr,
    /// Show the balances of the limits that this file defines: TOML, or JSON if its name ends in .json; `-` is standard input
    /// [default: the limits that are stored in the database]
    #[arg(long, value_name = "FILE", conflicts_with = "demo")]
    limits: Option<PathBuf>,
    /// Let visitors reset, credit and unblock keys, and requeue and cancel jobs
    #[arg(long)]
    allow_changes: bool,
    /// Show short hashes instead of keys, made with a secret of this run
    #[arg(long)]
    hide_keys: bool,
    /// Token that visitors need, 16 characters or more [default: the environment variable PG_LIMITER_UI_TOKEN; or else
    /// none on a loopback address, and a random one on any other]
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// Show a private server with live traffic on limits of every kind, instead of a database
    #[arg(long, conflicts_with = "key_secret_file")]
    demo: bool,
    #[command(flatten)]
    secret: KeySecretArgs,
}

impl UiArgs {
    /// The token that was given. An empty variable counts as unset.
    fn token(&self) -> Result<Option<String>> {
        let variable = std::env::var_os("PG_LIMITER_UI_TOKEN").map(OsString::into_string).transpose();
        let variable = variable.map_err(|_| CliError::usage("PG_LIMITER_UI_TOKEN is not UTF-8"))?;
        let Some(token) = self.token.clone().or(variable.filter(|token| !token.is_empty())) else { return Ok(None) };
        let is_weak = token.len() < SHORTEST_TOKEN || encoded(&token) != token;
        let use_other = format!("use {SHORTEST_TOKEN} or more letters, digits, -, _, . and ~");
        let refusal = format!("the token is too short or has other characters: {use_other}");
        CliError::refuse_if(is_weak, refusal).map(|()| Some(token))
    }
}
