//! `pg-limiter ui` in Chromium, through WebDriver. Pictures of all pages are written to target/ui-screenshots.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pg_limiter::queue::{Job, Queue};
use pg_limiter::{Item, Limits};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::gate::limiter;
use crate::support::{Database, scheduled};
use crate::ui_server::{LIMITS, Ui, filled};

/// A browser, and its driver. Dropping it ends both.
struct Browser {
    driver: Child,
    session: String,
    client: reqwest::Client,
    _profile: TempDir,
}

const INSTALL: &str = "these tests need Chromium and its driver, which tests/browser installs";

impl Browser {
    async fn start() -> Self {
        let driver = Command::new("chromedriver").arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut driver = driver.expect(INSTALL);
        let mut lines = BufReader::new(driver.stdout.take().expect("its output")).lines();
        let port = loop {
            let line = lines.next().expect(INSTALL).expect("a line");
            if let Some(port) = line.strip_suffix('.').and_then(|line| line.rsplit_once("on port ")) {
                break port.1.to_owned();
            }
        };
        std::thread::spawn(move || lines.for_each(drop));
        let profile = tempfile::tempdir().expect("a folder");
        let client = reqwest::Client::new();
        let args = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
        ];
        let mut args: Vec<String> = args.map(str::to_owned).to_vec();
        args.push(format!("--user-data-dir={}", profile.path().display()));
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": {"args": args}, "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let mut browser =
            Self { driver, session: format!("http://127.0.0.1:{port}/session"), client, _profile: profile };
        let answer = browser.post("", &capabilities).await;
        let id = answer["sessionId"].as_str().unwrap_or_else(|| panic!("{INSTALL}: {answer}")).to_owned();
        browser.session = format!("{}/{id}", browser.session);
        browser
    }

    async fn answer(response: reqwest::Response) -> Value {
        let text = response.text().await.expect("a text");
        let mut value: Value = serde_json::from_str(&text).expect("JSON");
        value["value"].take()
    }

    async fn post(&self, command: &str, body: &Value) -> Value {
        let request = self.client.post(format!("{}{command}", self.session)).body(body.to_string());
        Self::answer(request.header("content-type", "application/json").send().await.expect("an answer")).await
    }

    async fn open(&self, url: &str) {
        let answer = self.post("/url", &json!({"url": url})).await;
        assert!(answer.is_null(), "{url}: {answer}");
    }

    async fn script(&self, script: &str) -> Value {
        let answer = self.post("/execute/sync", &json!({"script": script, "args": []})).await;
        assert!(answer.get("error").is_none(), "{script}: {answer}");
        answer
    }

    /// Waits until a script returns true.
    async fn until(&self, condition: &str) {
        for _ in 0..600 {
            // A page that is being left answers with an error.
            let script = json!({"script": format!("return Boolean({condition})"), "args": []});
            if self.post("/execute/sync", &script).await == json!(true) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("never {condition}: {}", self.script("return document.body.innerText").await);
    }

    async fn find(&self, selector: &str) -> String {
        let answer = self.post("/element", &json!({"using": "css selector", "value": selector})).await;
        let id = answer["element-6066-11e4-a52e-4f735466cecf"].as_str();
        id.unwrap_or_else(|| panic!("no {selector}: {answer}")).to_owned()
    }

    async fn click(&self, selector: &str) {
        for _ in 0..100 {
            let id = self.find(selector).await;
            let answer = self.post(&format!("/element/{id}/click"), &json!({})).await;
            // The page may have been refreshed since.
            if answer["error"] != "stale element reference" {
                assert!(answer.is_null(), "{selector}: {answer}");
                return;
            }
        }
        panic!("{selector} is always stale");
    }

    async fn type_into(&self, selector: &str, text: &str) {
        let id = self.find(selector).await;
        self.post(&format!("/element/{id}/clear"), &json!({})).await;
        let answer = self.post(&format!("/element/{id}/value"), &json!({"text": text})).await;
        assert!(answer.is_null(), "{selector}: {answer}");
    }

    /// A command of Chromium's own protocol.
    async fn chromium(&self, command: &str, params: Value) -> Value {
        self.post("/goog/cdp/execute", &json!({"cmd": command, "params": params})).await
    }

    async fn look(&self, scheme: &str, width: u32) {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500});
        self.chromium("Emulation.setDeviceMetricsOverride", size).await;
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.chromium("Emulation.setEmulatedMedia", media).await;
    }

    async fn picture(&self, name: &str) {
        let shot =
            self.chromium("Page.captureScreenshot", json!({"captureBeyondViewport": true, "format": "png"})).await;
        let bytes = decode(shot["data"].as_str().unwrap_or_else(|| panic!("no picture: {shot}")));
        let folder = folder();
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join(format!("{name}.png")), bytes).expect("write a picture");
    }

    /// The messages that the browser has logged since the last call.
    async fn log(&self) -> Vec<Value> {
        let log = self.post("/se/log", &json!({"type": "browser"})).await;
        log.as_array().unwrap_or_else(|| panic!("no log: {log}")).clone()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends with its session, which this request closes.
        let session = self.session.clone();
        let closing = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async { reqwest::Client::new().delete(session).send().await.map(drop) })
        });
        let _ = closing.join();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/ui-screenshots")
}

/// Decodes base64.
fn decode(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let bytes = text.bytes().filter(|byte| *byte != b'=');
    let (mut out, mut bits, mut kept) = (Vec::new(), 0_u32, 0);
    for byte in bytes {
        kept = (kept << 6 | u32::from(value(byte))) & 0xffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((kept >> bits) as u8);
        }
    }
    out
}

/// The texts of a page that have a contrast of less than 4.5 to the colour behind them, by the formula of WCAG 2.2.
const FAINT: &str = r#"
    const rgba = color => {
        const n = color.match(/[\d.]+/g).map(Number), scale = color.startsWith('color(') ? 255 : 1;
        return [n[0] * scale, n[1] * scale, n[2] * scale, n[3] ?? 1];
    };
    const over = ([r, g, b, a], under) => [r, g, b].map((c, i) => c * a + under[i] * (1 - a));
    const behind = element => {
        const layers = [];
        for (let e = element; e; e = e.parentElement) layers.unshift(rgba(getComputedStyle(e).backgroundColor));
        return layers.reduce((under, layer) => over(layer, under), [255, 255, 255]);
    };
    const luminance = color => {
        const [r, g, b] = color.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const faint = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    let read = 0;
    while (texts.nextNode()) {
        const text = texts.currentNode.data.trim(), element = texts.currentNode.parentElement;
        if (!text || !element.checkVisibility() || element.closest('script, title, desc, option')) continue;
        const style = getComputedStyle(element), under = behind(element);
        const color = rgba(element.namespaceURI.endsWith('svg') ? style.fill : style.color);
        for (let e = element; e; e = e.parentElement) color[3] *= Number(getComputedStyle(e).opacity);
        const [dark, light] = [luminance(over(color, under)), luminance(under)].sort((a, b) => a - b);
        const contrast = (light + 0.05) / (dark + 0.05);
        read += 1;
        if (contrast < 4.5) faint.push(`${contrast.toFixed(2)}: ${text.slice(0, 40)}`);
    }
    return read < 8 ? ['too few texts'] : faint;
"#;

async fn with_jobs(database: &Database) -> (i64, i64) {
    let limiter = limiter(&database.pool, Limits::from_toml(LIMITS).expect("limits"), |_| {});
    let queue = Queue::new(&limiter, "mail").expect("a queue");
    let mut ids = Vec::new();
    for group in ["acme", "globex", "globex"] {
        let job = Job::new(("sharded", group), &json!({"to": group})).expect("a job");
        ids.push(scheduled(&queue.enqueue(job).await.expect("an answer")).id);
    }
    let sql =
        "UPDATE rate_limit.jobs SET state = 'dead', finished_at = 1e15, failures = 2, last_error = '503' WHERE id = ";
    database.execute(&format!("{sql}{}", ids[0])).await;
    (ids[0], ids[1])
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: run tests/browser"]
async fn every_page_is_usable_in_light_and_dark_and_on_a_phone() {
    let (database, _dir, limits) = filled().await;
    let (dead, _) = with_jobs(&database).await;
    let ui = Ui::start(Some(&database), &["--limits", &limits, "--allow-changes"]);
    ui.page_with("/limits", "keys in use").await;
    let browser = Browser::start().await;
    let pages = [
        ("limits", "/limits".to_owned()),
        ("limit", "/limit?name=sharded".to_owned()),
        ("key", "/key?key=u1".to_owned()),
        ("key-unknown", "/key?key=nobody".to_owned()),
        ("queue", "/queue?queue=mail".to_owned()),
        ("jobs", "/queue?queue=mail&state=dead".to_owned()),
        ("job", format!("/job?id={dead}")),
        ("what-if", "/what-if".to_owned()),
        ("health", "/health".to_owned()),
    ];
    for (name, path) in &pages {
        for (look, scheme, width) in [("light", "light", 1200), ("dark", "dark", 1200), ("phone", "light", 390)] {
            browser.look(scheme, width).await;
            browser.open(&format!("{}{path}", ui.url)).await;
            browser.picture(&format!("{name}-{look}")).await;
            let overflow = browser
                .script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
                .await;
            assert_eq!(overflow, json!(0), "{path} scrolls sideways at {width} px");
            assert_eq!(browser.script(FAINT).await, json!([]), "{path} has faint texts, {look}");
        }
        let unnamed = "return [...document.querySelectorAll('input:not([type=hidden]), select, textarea')].filter(e => !e.labels?.length).length \
                       + [...document.querySelectorAll('main svg')].filter(e => !e.getAttribute('aria-label')).length \
                       + [...document.querySelectorAll('table')].filter(e => !e.caption).length";
        assert_eq!(browser.script(unnamed).await, json!(0), "{path}: fields, pictures or tables without names");
    }
    assert_eq!(browser.log().await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: run tests/browser"]
async fn buttons_do_what_they_say() {
    let (database, _dir, limits) = filled().await;
    let (dead, waiting) = with_jobs(&database).await;
    let limiter = limiter(&database.pool, Limits::from_toml(LIMITS).expect("limits"), |_| {});
    let ui = Ui::start(Some(&database), &["--limits", &limits, "--allow-changes"]);
    let browser = Browser::start().await;
    browser.look("light", 1200).await;

    // The search leads to the key.
    browser.open(&format!("{}/key", ui.url)).await;
    browser.type_into("main input[name=key]", "u1").await;
    browser.click("main .filter button").await;
    browser.until("document.querySelector('h1').innerText === 'Key u1'").await;

    browser.click("[aria-label=bucket] .act:nth-of-type(1) summary").await;
    browser.type_into("[aria-label=bucket] input[name=count]", "2").await;
    browser.click("[aria-label=bucket] form[action='/key/credit'] button").await;
    browser.until("location.search.includes('done=credited')").await;
    assert_eq!(limiter.peek(("bucket", "u1")).await.expect("a balance").remaining().floor(), 5.0);
    browser.click("[aria-label=bucket] .act:nth-of-type(2) summary").await;
    browser.click("[aria-label=bucket] form[action='/key/reset'] button").await;
    browser.until("location.search.includes('done=reset')").await;
    assert_eq!(limiter.peek(("bucket", "u1")).await.expect("a balance").remaining(), 10.0);
    browser.click("[aria-label=banned] summary").await;
    browser.click("[aria-label=banned] form button").await;
    browser.until("location.search.includes('done=unblocked')").await;
    assert_eq!(limiter.is_blocked(("banned", "u1")).await.expect("an answer"), None);

    let queue = Queue::new(&limiter, "mail").expect("a queue");
    for (id, done, state) in [(dead, "requeued", "scheduled"), (waiting, "cancelled", "cancelled")] {
        browser.open(&format!("{}/job?id={id}", ui.url)).await;
        browser.click(".act summary").await;
        browser.click(".act button").await;
        browser.until(&format!("location.search.includes('done={done}')")).await;
        assert_eq!(queue.job(id).await.expect("an answer").expect("a job").state.as_str(), state);
    }

    // A page renews itself.
    browser.open(&format!("{}/key?key=u9", ui.url)).await;
    limiter.limit(Item::new("bucket", "u9").count(4)).await.expect("a decision").enforce().expect("tokens");
    browser.until("document.querySelector('[aria-label=bucket] .value')?.innerText === '6'").await;

    // So does the page of a key with a line break, and its forms name this key.
    let take = async || assert!(limiter.limit(("bucket", "a\nb")).await.expect("a decision").enforce().is_ok());
    take().await;
    browser.open(&format!("{}/key?key=a%0Ab", ui.url)).await;
    take().await;
    browser.until("document.querySelector('[aria-label=bucket] .value')?.innerText === '8'").await;
    browser.click("[aria-label=bucket] .act:nth-of-type(2) summary").await;
    browser.click("[aria-label=bucket] form[action='/key/reset'] button").await;
    browser.until("location.search.includes('done=reset')").await;
    assert_eq!(limiter.peek(("bucket", "a\nb")).await.expect("a balance").remaining(), 10.0);
    browser.open(&format!("{}/key?key=u9", ui.url)).await;

    // It keeps what the visitor types, and says that it waits.
    browser.type_into("main input[name=key]", "u7").await;
    browser.until("document.getElementById('renewal').innerText.includes('Waits for your input')").await;
    browser.script("document.activeElement.blur()").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(browser.script("return document.querySelector('main input[name=key]').value").await, json!("u7"));

    // A simulation is drawn as it is typed.
    browser.open(&format!("{}/what-if", ui.url)).await;
    let before = browser.script("return document.querySelector('#result .facts').innerText").await;
    browser.type_into("input[name=rate]", "600").await;
    browser.until(&format!("document.querySelector('#result .facts')?.innerText !== {before}")).await;
    browser.type_into("input[name=period]", "soon").await;
    browser.until("document.querySelector('#result .notice')").await;
    // An empty field is named by its label.
    browser.type_into("input[name=period]", " ").await;
    browser.script("const f = document.forms['what-if']; f.elements.kind.value = 'concurrency'; f.elements.kind.dispatchEvent(new Event('input', {bubbles: true}))").await;
    browser.until("document.querySelector('#result .notice')?.innerText.includes('“Capacity” is empty')").await;
    assert_eq!(browser.log().await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: run tests/browser"]
async fn a_wrong_token_and_another_site_are_refused() {
    let (database, _dir, limits) = filled().await;
    let token = "0123456789abcdef";
    let ui = Ui::start(Some(&database), &["--limits", &limits, "--allow-changes", "--token", token]);
    let browser = Browser::start().await;
    browser.open(&format!("{}/limits?token=wrong-wrong-wrong", ui.url)).await;
    browser.until("document.body.innerText.includes('needs the token')").await;
    browser.open(&format!("{}/limits?token={token}", ui.url)).await;
    browser.until("document.querySelector('h1')?.innerText === 'Limits' && !location.search").await;
    // The browser logs the refusal above, and nothing else.
    let log = browser.log().await;
    assert!(log.iter().all(|entry| entry["message"].as_str().is_some_and(|text| text.contains("401"))), "{log:?}");

    // A page of another origin posts a form here, with the visitor's browser.
    browser.open("data:text/html,<form method=post id=f></form>").await;
    let post = format!(
        "f.action = '{}/key/reset'; for (const [n, v] of [['limit', 'bucket'], ['key', 'u1'], ['form', '0']]) {{ \
                        const i = document.createElement('input'); i.name = n; i.value = v; f.append(i) }}; f.submit()",
        ui.url
    );
    browser.script(&post).await;
    browser.until("document.body.innerText.includes('from other sites are refused')").await;
    let limiter = limiter(&database.pool, Limits::from_toml(LIMITS).expect("limits"), |_| {});
    assert_eq!(limiter.peek(("bucket", "u1")).await.expect("a balance").remaining().floor(), 3.0);
}
