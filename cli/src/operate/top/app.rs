//! The state of the screen: the contents of the tabs, and how keys change it.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::Result;
use crate::operate::live::{GroupView, KeyView, LISTED, LimitView, Live, QueueView, Seen};
use crate::operate::top::columns::{Id, Listed, Sort, Style};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tab {
    #[default]
    Limits,
    Keys,
    Queue,
}

pub(super) const TABS: [Tab; 3] = [Tab::Limits, Tab::Keys, Tab::Queue];

/// For each tab, the text that its `/` filters by: of limits, keys and queues. Empty: all.
pub(super) type Filters = [String; 3];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Draw,
    /// Draw, and read what the new filters need.
    Read,
    Quit,
}

#[derive(Default)]
pub(super) struct App {
    pub(super) tab: Tab,
    pub(super) filters: Filters,
    /// The filter of this tab before it was edited, while it is edited.
    pub(super) edited: Option<String>,
    pub(super) is_help: bool,
    pub(super) sorts: [Sort; 3],
    /// For each tab, the place of the selected row, and the row, which the selection follows.
    selections: [(usize, Id); 3],
    pub(super) style: Style,
    pub(super) data: Data,
}

impl App {
    pub(super) fn new(filters: Filters, style: Style) -> Self {
        // By the tokens taken, and by the lag.
        Self { filters, sorts: [2, 2, 5].map(|column| Sort { column, is_reversed: false }), style, ..Self::default() }
    }

    pub(super) fn limits(&self) -> Vec<LimitView> {
        let [limit, key, _] = &self.filters;
        self.sorts[0].sorted(self.data.seen.snapshot.filtered(limit, key), &self.style)
    }

    pub(super) fn unused(&self) -> impl Iterator<Item = &(String, String)> {
        self.data.seen.snapshot.unused.iter().filter(|(name, _)| name.contains(&self.filters[0]))
    }

    pub(super) fn keys(&self) -> Vec<KeyView> {
        let [limit, key, _] = &self.filters;
        self.sorts[1].sorted(self.data.seen.snapshot.keys(limit, key), &self.style)
    }

    pub(super) fn groups(&self) -> Vec<GroupView> {
        let [_, key, queue] = &self.filters;
        let is_shown = |group: &&GroupView| group.queue.contains(queue) && group.group.starts_with(key);
        self.sorts[2].sorted(self.data.groups.iter().filter(is_shown).cloned().collect(), &self.style)
    }

    pub(super) fn selected<T: Listed>(&self, rows: &[T]) -> Option<usize> {
        let (place, id) = &self.selections[self.tab as usize];
        let last = rows.len().checked_sub(1)?;
        Some(rows.iter().position(|row| row.id() == *id).unwrap_or(last.min(*place)))
    }

    pub(super) fn press(&mut self, key: KeyEvent) -> Next {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && key.code == KeyCode::Char('c') {
            return Next::Quit;
        }
        if self.edited.is_some() {
            return self.edit(key.code, is_control);
        }
        if self.is_help {
            self.is_help = false;
            return if key.code == KeyCode::Char('q') { Next::Quit } else { Next::Draw };
        }
        match key.code {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.is_help = true,
            KeyCode::Char(number @ '1'..='3') => self.tab = TABS[number as usize - '1' as usize],
            KeyCode::Tab | KeyCode::Right => self.tab = TABS[(self.tab as usize + 1) % TABS.len()],
            KeyCode::BackTab | KeyCode::Left => self.tab = TABS[(self.tab as usize + TABS.len() - 1) % TABS.len()],
            KeyCode::Char('/') => self.edited = Some(self.filter().clone()),
            KeyCode::Esc => {
                self.filters = Filters::default();
                return Next::Read;
            }
            KeyCode::Char('s' | '>') => self.sort_by(1),
            KeyCode::Char('S' | '<') => self.sort_by(-1),
            KeyCode::Char('r') => self.sorts[self.tab as usize].is_reversed ^= true,
            KeyCode::Enter if self.tab == Tab::Limits => return self.open(),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::PageDown => self.select(10),
            KeyCode::PageUp => self.select(-10),
            KeyCode::Home | KeyCode::Char('g') => self.select(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.select(isize::MAX),
            _ => {}
        }
        Next::Draw
    }

    fn filter(&mut self) -> &mut String {
        &mut self.filters[self.tab as usize]
    }

    fn edit(&mut self, code: KeyCode, is_control: bool) -> Next {
        match code {
            KeyCode::Enter => self.edited = None,
            KeyCode::Esc => *self.filter() = self.edited.take().unwrap_or_default(),
            KeyCode::Char('u') if is_control => self.filter().clear(),
            KeyCode::Char(c) if !is_control => self.filter().push(c),
            KeyCode::Backspace => drop(self.filter().pop()),
            _ => return Next::Draw,
        }
        Next::Read
    }

    fn open(&mut self) -> Next {
        let limits = self.limits();
        let Some(place) = self.selected(&limits) else { return Next::Draw };
        self.filters[Tab::Limits as usize].clone_from(&limits[place].name);
        self.tab = Tab::Keys;
        Next::Read
    }

    fn sort_by(&mut self, step: isize) {
        let sort = &mut self.sorts[self.tab as usize];
        *sort = Sort { column: sort.column + step, is_reversed: false };
    }

    fn select(&mut self, step: isize) {
        fn at<T: Listed>(app: &App, rows: &[T], step: isize) -> (usize, Id) {
            let Some(selected) = app.selected(rows) else { return Default::default() };
            let place = selected.saturating_add_signed(step).min(rows.len() - 1);
            (place, rows[place].id())
        }
        self.selections[self.tab as usize] = match self.tab {
            Tab::Limits => at(self, &self.limits(), step),
            Tab::Keys => at(self, &self.keys(), step),
            Tab::Queue => at(self, &self.groups(), step),
        };
    }
}

/// The groups of so many queues are read.
pub(super) const QUEUES: usize = 20;
/// Keys of each limit that are looked up by their prefix.
const LIKE: u32 = 5;

#[derive(Default)]
pub(super) struct Data {
    pub(super) seen: Seen,
    pub(super) queues: Vec<QueueView>,
    /// Whether there may be more queues than are read.
    pub(super) queues_are_cut: bool,
    pub(super) groups: Vec<GroupView>,
    pub(super) queue_error: Option<String>,
}

impl Data {
    pub(super) async fn read(live: &Live, filters: &Filters) -> Self {
        let [_, prefix, queue] = filters;
        if !prefix.is_empty() {
            // The sampler then also follows keys that are neither busy nor empty. A failure shows in the sample, too.
            for (name, key) in live.keys_like(prefix, LIKE).await.unwrap_or_default() {
                live.watch_key(&name, &key).await;
            }
        }
        let mut data = Self { seen: live.sample().await, ..Self::default() };
        data.queue_error = data.read_queues(live, queue).await.err().map(|error| error.to_string());
        data
    }

    async fn read_queues(&mut self, live: &Live, filter: &str) -> Result<()> {
        self.queues = live.queues().await?;
        self.queues_are_cut = self.queues.len() >= LISTED;
        self.queues.retain(|queue| queue.queue.contains(filter));
        for queue in self.queues.iter().take(QUEUES) {
            self.groups.extend(live.groups(&queue.queue, None).await?);
        }
        Ok(())
    }
}
