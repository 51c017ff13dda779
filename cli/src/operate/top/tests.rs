//! The screens, on the data of a private server.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::operate::live;
use crate::operate::top::app::{App, Data, Filters, Next, Tab};
use crate::operate::top::columns::Style;
use crate::operate::top::screen::draw;
use pg_limiter::Item;
use pg_limiter::queue::{Job, Queue};

const LIMITS: &str = r#"
    [limits]
    api = { kind = "token_bucket", rate = 1, period = "36525d", capacity = 100 }
    logins = { kind = "sliding_window", rate = 10, period = "1h" }
    unused = { kind = "fixed_window", rate = 5, period = "1h" }
"#;

struct Fixture {
    of: live::tests::Fixture,
    app: App,
}

impl Fixture {
    /// Three keys of `api`, one of `logins`, and two groups of the queue `mails`.
    async fn new(hide_keys: bool) -> Self {
        let app = App::new(Filters::default(), Style::new(hide_keys, true).unwrap());
        let mut fixture = Self { of: live::tests::fixture(LIMITS).await, app };
        fixture.read().await;
        for (limit, key, count) in [("api", "ann", 60), ("api", "bob", 80), ("api", "cy", 5), ("logins", "ann", 9)] {
            fixture.of.limiter.limit(Item::new(limit, key).count(count)).await.unwrap().enforce().unwrap();
        }
        let queue = Queue::new(&fixture.of.limiter, "mails").unwrap();
        for group in ["org-1", "org-2", "org-2"] {
            queue.enqueue(Job::new(("api", group), &"hello").unwrap()).await.unwrap().enforce().unwrap();
        }
        fixture.read().await;
        fixture
    }

    async fn read(&mut self) {
        self.app.data = Data::read(&self.of.live, &self.app.filters).await;
    }

    fn lines(&self, width: u16, height: u16) -> Vec<String> {
        let mut terminal = ratatui::Terminal::new(ratatui::backend::TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &self.app)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    /// The screen, which has these texts. They are separated by `|`.
    fn screen(&self, texts: &str) -> String {
        let screen = self.lines(80, 24).join("\n");
        texts.split('|').for_each(|text| assert!(screen.contains(text), "no {text} in\n{screen}"));
        screen
    }

    /// The line of the screen that begins with this text.
    fn line(&self, begins: &str) -> String {
        let lines = self.lines(80, 24);
        let found = lines.iter().find(|line| line.trim_start_matches("> ").trim_start().starts_with(begins));
        found.unwrap_or_else(|| panic!("no {begins:?} in\n{}", lines.join("\n"))).clone()
    }

    fn press(&mut self, keys: &str) -> Next {
        let mut next = Next::Draw;
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\t' => KeyCode::Tab,
                '\u{1b}' => KeyCode::Esc,
                '\u{8}' => KeyCode::Backspace,
                key => KeyCode::Char(key),
            };
            next = self.app.press(KeyEvent::new(code, KeyModifiers::NONE));
        }
        next
    }

    /// The limit and the key of each row.
    fn keys(&self) -> Vec<String> {
        self.app.keys().iter().map(|key| format!("{} {}", key.bucket.name, key.bucket.key)).collect()
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Two keys that differ only behind the cut must not look like whole keys.
#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_is_cut_has_a_mark() {
    let mut top = Fixture::new(false).await;
    let long = "a".repeat(60);
    top.of.limiter.limit(Item::new("api", &*long)).await.unwrap().enforce().unwrap();
    top.read().await;
    top.press("\t");
    for (style, mark) in [(Style::new(false, true), '…'), (Style::new(false, false), '>')] {
        top.app.style = style.unwrap();
        let line = top.lines(80, 24).into_iter().find(|line| line.contains("aaaa")).unwrap();
        let key = words(&line).into_iter().find(|word| word.starts_with("aaaa")).unwrap().to_owned();
        assert_eq!((key.trim_matches('a'), key.ends_with(mark)), (&*mark.to_string(), true), "{line}");
        assert!(top.lines(200, 24).iter().any(|line| line.contains(&long)), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_tabs_fit_in_80_columns_and_24_lines() {
    let mut top = Fixture::new(false).await;
    let limits = top.screen("[1 Limits]|LIMIT|KEYS|TAKEN/S▼|LEAST LEFT|LAST 10 MIN|UTC|q quit|? help");
    top.screen("api: token_bucket, 1 per 36525d, capacity 100");
    let [api, logins] = ["api", "logins"].map(|limit| top.line(limit));
    // Two jobs took tokens of org-2.
    assert_eq!((&words(&api)[..3], words(&logins)[1]), (&[">", "api", "5"][..], "1"), "{limits}");
    assert!(words(&api)[3].replace(',', "").parse::<f64>().unwrap() > 0.0, "{limits}");
    assert!(api.contains("20 %") && logins.contains("10 %"), "{limits}");
    // The busiest and the emptiest key of the selected limit, side by side.
    let first = limits.lines().skip_while(|line| !line.starts_with("BUSIEST")).nth(1).unwrap();
    assert!(first.starts_with("bob ") && words(first).ends_with(&["bob", "20", "of", "100"]), "{limits}");

    top.press("\t");
    let keys = top.screen("[2 Keys]|FULL IN");
    assert!(top.line("api").contains("20 of 100") && top.line("logins").contains("1 of 10"), "{keys}");

    top.press("3");
    let queue = top.screen("SCHEDULED|RUNNING|DEAD|CANCELLED|AVAILABLE|NEXT START|LAG▼|org-1|org-2");
    assert_eq!(words(&top.line("mails"))[1], "3", "{queue}");
    let narrow = top.lines(50, 14).join("\n");
    assert!(narrow.contains("mails ") && narrow.contains("SCHEDULED AVAILABLE   RUNNING      DEAD"), "{narrow}");

    top.press("?");
    top.screen("reverse the order|stored at the last write.");
    top.press("x");
    // A wide screen has more columns; a small one names the size that is needed.
    assert!(top.lines(200, 50).join("\n").contains("WAITS FOR A SLOT OF"));
    assert!(top.lines(30, 5).join("\n").contains("top needs 50 x 12"));
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_sort_filter_and_select() {
    let mut top = Fixture::new(false).await;
    // By the limit, then by the key, then by the tokens taken.
    top.press("2SS");
    assert_eq!((top.app.sorts[1].column, &*top.keys()[0]), (0, "api ann"));
    top.press("r");
    assert_eq!(top.keys()[0], "logins ann");
    top.press("ss");
    assert_eq!(top.keys()[..2], ["api bob", "api ann"]);
    // By what is left: 10 % of `logins`.
    top.press("s");
    assert_eq!(top.keys()[0], "logins ann");
    // The selection follows its row.
    top.press("j");
    let selected = |top: &Fixture| top.keys()[top.app.selected(&top.app.keys()).unwrap()].clone();
    assert_eq!(selected(&top), "api bob");
    top.press("r");
    assert_eq!((&*selected(&top), top.line("api").starts_with("> api")), ("api bob", false));
    assert!(top.lines(80, 24).iter().any(|line| line.starts_with("> api") && line.contains("bob")));

    // `/` filters keys while it is typed; Esc goes back, Enter keeps.
    assert_eq!(top.press("/an"), Next::Read);
    assert!(top.line("/ keys that begin with: an_").contains("Enter"));
    assert_eq!(top.keys().len(), 2);
    top.press("n\u{8}\u{1b}");
    assert_eq!(top.keys().len(), 6);
    top.press("/bob\n");
    assert_eq!(top.keys(), ["api bob"]);
    let status = &top.lines(80, 24)[1];
    assert!(status.contains("only key /bob") && !status.contains("of all keys"), "{status}");
    assert_eq!(top.press("1"), Next::Draw);
    assert_eq!(top.app.limits().len(), 1);
    assert!(top.lines(80, 24)[1].contains("only key /bob (figures: of all keys)"));
    assert_eq!(top.press("\u{1b}"), Next::Read);
    assert_eq!(top.app.limits().len(), 2);

    // Enter shows the keys of the selected limit.
    top.press("j");
    assert_eq!((top.press("\n"), top.app.tab), (Next::Read, Tab::Keys));
    assert!(top.keys().iter().all(|key| key.starts_with(&format!("{} ", top.app.filters[0]))), "{:?}", top.keys());
    top.press("\u{1b}3/ma\n");
    top.read().await;
    assert_eq!(top.app.groups().len(), 2);
    top.press("/x\n");
    top.read().await;
    assert!(top.app.groups().is_empty() && top.line("no jobs") == "no jobs");

    // A prefix finds keys that are neither busy nor among the emptiest.
    for key in 0..12 {
        top.of.limiter.limit(Item::new("api", format!("many-{key}")).count(50)).await.unwrap().enforce().unwrap();
    }
    top.press("\u{1b}2/cy\n");
    top.read().await;
    top.read().await;
    assert_eq!(top.keys(), ["api cy"]);

    assert_eq!(top.press("?q"), Next::Quit);
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!((top.press("/"), top.app.press(control_c)), (Next::Draw, Next::Quit));
}

#[tokio::test(flavor = "multi_thread")]
async fn hidden_keys_are_nowhere_on_the_screen() {
    let mut top = Fixture::new(true).await;
    for tab in ["1", "2", "3"] {
        top.press(tab);
        let screen = top.lines(200, 50).join("\n");
        let is_hash = |word: &str| {
            word.len() == 12 && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        assert!(screen.split_whitespace().any(is_hash), "{screen}");
        for key in ["ann", "bob", "org-"] {
            assert!(!screen.contains(key), "{key} in\n{screen}");
        }
    }
}

#[test]
fn sparklines_show_amounts_in_unicode_and_ascii() {
    let amounts = [0.0, 0.0, 1.0, 0.0, 4.0, 4.0];
    assert_eq!(Style::new(false, true).unwrap().sparkline(&amounts, 3), " ▁█");
    assert_eq!(Style::new(false, false).unwrap().sparkline(&amounts, 6), "  : ##");
    assert_eq!(Style::new(false, false).unwrap().sparkline(&[0.0; 4], 2), "  ");
}
