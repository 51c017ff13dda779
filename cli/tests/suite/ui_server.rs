//! Runs `pg-limiter ui` for a test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use pg_limiter::{Item, Limits};
use tempfile::TempDir;

use crate::binary::{files, tool};
use crate::support::gate::limiter;
use crate::support::{Database, signal};

/// One limit of each kind. Their tokens do not refill during a test.
pub const LIMITS: &str = r#"
    [limits.bucket]
    kind = "token_bucket"
    rate = 10
    period = "36525d"
    [limits.window]
    kind = "sliding_window"
    rate = 100
    period = "1h"
    resolution = 6
    [limits.sharded]
    kind = "token_bucket"
    rate = 400
    period = "36525d"
    shards = 4
    [limits.slots]
    kind = "concurrency"
    capacity = 3
    lease = "1h"
    [limits.banned]
    kind = "gate"
    [limits.unused]
    kind = "fixed_window"
    rate = 5
    period = "1h"
"#;

/// A running page. Dropping it ends the process.
pub struct Ui {
    child: Child,
    /// Without a slash at the end, and without a token.
    pub url: String,
    pub token: Option<String>,
    pub client: reqwest::Client,
}

impl Ui {
    pub fn start(database: Option<&Database>, args: &[&str]) -> Self {
        // The suite may run in the background of a shell, where SIGINT is ignored.
        let mut command = Command::new("env");
        let listen: &[&str] = if args.contains(&"--listen") { &[] } else { &["--listen", "127.0.0.1:0"] };
        command
            .arg("--default-signal")
            .arg(tool())
            .arg("ui")
            .args(listen)
            .args(args)
            .env_remove("PG_LIMITER_UI_TOKEN")
            .env("DATABASE_URL", "mysql://another-program@db/app");
        if let Some(database) = database {
            command.env("DATABASE_URL", &database.url);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start the tool");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        output.read_line(&mut line).expect("a line");
        let (url, token) = match line.trim().split_once("/?token=") {
            Some((url, token)) => (url.to_owned(), Some(token.to_owned())),
            None => (line.trim().trim_end_matches('/').to_owned(), None),
        };
        assert!(url.starts_with("http://"), "{line:?}");
        let no_redirects = reqwest::redirect::Policy::none();
        let client = reqwest::Client::builder().redirect(no_redirects).build().expect("a client");
        Self { child, url, token, client }
    }

    pub async fn get(&self, path: &str) -> (u16, String) {
        let response = self.client.get(format!("{}{path}", self.url)).send().await.expect("a response");
        (response.status().as_u16(), response.text().await.expect("a text"))
    }

    /// The page, once it contains this text.
    pub async fn page_with(&self, path: &str, text: &str) -> String {
        for _ in 0..600 {
            let (_, page) = self.get(path).await;
            if page.contains(text) {
                return page;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("{path} never contains {text:?}: {}", self.get(path).await.1);
    }

    pub async fn post(&self, path: &str, form: &[(&str, &str)], headers: &[(&str, &str)]) -> (u16, String) {
        let body = form.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&");
        let mut request = self.client.post(format!("{}{path}", self.url)).body(body);
        request = request.header("content-type", "application/x-www-form-urlencoded");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.expect("a response");
        let location = response.headers().get("location").map(|to| to.to_str().expect("a text").to_owned());
        (response.status().as_u16(), location.unwrap_or(response.text().await.expect("a text")))
    }

    /// Simulates with these fields, and returns the page.
    pub async fn what_if(&self, fields: &[(&str, &str)]) -> String {
        let part = |(name, value): &(&str, &str)| {
            format!("--b\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        let body = fields.iter().map(part).collect::<String>() + "--b--\r\n";
        let request = self.client.post(format!("{}/what-if", self.url));
        let request = request.header("content-type", "multipart/form-data; boundary=b").body(body);
        request.send().await.expect("a response").text().await.expect("a text")
    }

    /// The token that forms have.
    pub async fn form(&self) -> String {
        let page = self.get("/what-if").await.1;
        let value = page.split("name=\"form\" value=\"").nth(1).and_then(|rest| rest.split('"').next());
        value.expect("a form").to_owned()
    }

    /// Ends the page as Ctrl-C does, and returns its exit code and its messages.
    pub fn interrupt(mut self) -> (Option<i32>, String) {
        signal(self.child.id(), "INT");
        let code = self.child.wait().expect("its end").code();
        let mut text = String::new();
        let mut messages = self.child.stderr.take().expect("its messages");
        std::io::Read::read_to_string(&mut messages, &mut text).expect("a text");
        (code, text)
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A database with buckets of all limits for the key `u1`, and the path of the limits file.
pub async fn filled() -> (Database, TempDir, String) {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool, Limits::from_toml(LIMITS).expect("limits"), |_| {});
    for count in [4, 3] {
        limiter.limit(Item::new("bucket", "u1").count(count)).await.expect("a decision").enforce().expect("tokens");
        limiter.limit(Item::new("window", "u1").count(count)).await.expect("a decision").enforce().expect("tokens");
        limiter.limit(Item::new("sharded", "u1").count(count)).await.expect("a decision").enforce().expect("tokens");
    }
    limiter.limit(("bucket", "<b>&\"u2\"")).await.expect("a decision").enforce().expect("tokens");
    std::mem::forget(limiter.acquire(("slots", "u1")).await.expect("an answer").into_lease().expect("a lease"));
    limiter.block(("banned", "u1"), std::time::Duration::from_secs(3600)).await.expect("a block");
    let (dir, path) = files(&[("limits.toml", LIMITS)]);
    let limits = path("limits.toml");
    (database, dir, limits)
}
