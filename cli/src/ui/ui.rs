use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::serve;
use clap::Args;
use tokio::net::TcpListener;
use tokio::sync::Mutex;

use crate::database::{Database, Running};
use crate::error::CliError;
use crate::key_secret::KeySecretArgs;
use crate::live::Live;
use crate::signals::interrupt;
use crate::ui::access::{Access, random_token};
use crate::ui::actions::{Changes, Done};
use crate::ui::app::{App, INTERVAL, Keys};
use crate::ui::demo::{self, Demo};
use crate::ui::routes::routes;
use crate::ui::what_if::Simulator;
use crate::{input, output};
use pg_limiter::{Limits, Schema};

const CHANGING: u32 = 2;

pub(crate) async fn run(args: UiArgs, database: Database) -> Result<(), CliError> {
    if args.demo && database.is_argument {
        return Err(CliError::usage("--demo shows a private server: use it without --database-url"));
    }
    let token = args.token()?;
    let key_secret = args.secret.read()?;
    let limits = match &args.limits {
        Some(path) => input::read_limits(path)?,
        None if args.demo => demo::limits()?,
        None => Limits::new(),
    };
    let running = Arc::new(if args.demo { database.start_private().await? } else { database.named()? });
    // Report a wrong address or password at once. Later, pages report a lost database.
    drop(running.connect().await?);
    let limits = if args.limits.is_none() && !args.demo { running.shown_limits().await? } else { limits };
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|error| CliError::usage(format!("cannot listen on {}: {error}", args.listen)))?;
    let address = listener.local_addr().map_err(CliError::failed)?;
    let token = match token {
        None if !address.ip().is_loopback() => Some(random_token()?),
        token => token,
    };
    let interrupted = interrupt();
    let demo = if args.demo { Some(Demo::start(&running, &limits).await?) } else { None };
    let live = Live::new(running.options.clone(), running.schema.clone(), limits.clone());
    let changes = match args.allow_changes {
        true => Some(Changes(running.limiter_on(running.pool(CHANGING).await?, limits.clone(), None))),
        false => None,
    };
    let app = Arc::new(App {
        live: live.clone(),
        access: Access::new(address, token.clone())?,
        keys: Keys::new(args.hide_keys)?,
        changes,
        done: Done::default(),
        key_secret,
        simulator: Simulator::new(Arc::clone(&running)),
        place: place(&running, args.demo),
        health: Mutex::new(None),
    });
    let query = token.map_or_else(String::new, |token| format!("?token={token}"));
    output::line(format!("http://{address}/{query}"))?;
    output::note("press Ctrl-C to end");
    let served = serve(listener, routes(Arc::clone(&app))).into_future();
    let result = tokio::select! {
        served = served => served.map_err(CliError::failed),
        () = live.watch(INTERVAL) => Ok(()),
        () = app.simulator.tidy() => Ok(()),
        () = interrupted => Ok(()),
    };
    app.simulator.close().await;
    live.close().await;
    if let Some(Changes(limiter)) = &app.changes {
        limiter.close().await;
        limiter.pool().close().await;
    }
    if let Some(demo) = demo {
        output::note("ending the private server");
        demo.stop().await;
    }
    result
}

/// The name of the database, for the heading.
fn place(running: &Running, is_demo: bool) -> String {
    if is_demo {
        return "a private server with made-up traffic".to_owned();
    }
    let options = &running.options;
    let database = options.get_database().unwrap_or_else(|| options.get_username());
    let schema =
        if running.schema == Schema::default() { String::new() } else { format!(", schema {}", &running.schema) };
    format!("{database} on {}{schema}", options.get_host())
}

/// A shorter token could be found by trying.
const SHORTEST_TOKEN: usize = 16;
const VARIABLE: &str = "PG_LIMITER_UI_TOKEN";

#[derive(Args, Debug)]
pub(crate) struct UiArgs {
    /// Address to listen on; port 0 chooses a free port. If it is not a loopback address, visitors need a token
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8420")]
    pub(super) listen: SocketAddr,
    /// Show the balances of the limits that this file defines: TOML, or JSON if its name ends in .json; `-` is standard input
    /// [default: the limits that are stored in the database]
    #[arg(long, value_name = "FILE", conflicts_with = "demo")]
    pub(super) limits: Option<PathBuf>,
    /// Let visitors reset, credit and unblock keys, and requeue and cancel jobs
    #[arg(long)]
    pub(super) allow_changes: bool,
    /// Show short hashes instead of keys, made with a secret of this run
    #[arg(long)]
    pub(super) hide_keys: bool,
    /// Token that visitors need, 16 characters or more [default: the environment variable PG_LIMITER_UI_TOKEN; or else
    /// none on a loopback address, and a random one on any other]
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// Show a private server with live traffic on limits of every kind, instead of a database
    #[arg(long)]
    pub(super) demo: bool,
    #[command(flatten)]
    pub(super) secret: KeySecretArgs,
}

impl UiArgs {
    /// The token that was given. An empty variable counts as unset.
    pub(super) fn token(&self) -> Result<Option<String>, CliError> {
        let variable = || std::env::var(VARIABLE).ok().filter(|token| !token.is_empty());
        let Some(token) = self.token.clone().or_else(variable) else { return Ok(None) };
        let is_plain = token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte));
        if token.len() < SHORTEST_TOKEN || !is_plain {
            return Err(CliError::usage(format!(
                "the token is too short or has other characters: use {SHORTEST_TOKEN} or more letters, digits, -, _, . and ~"
            )));
        }
        Ok(Some(token))
    }
}
