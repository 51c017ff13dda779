//! The state of the screen: the contents of the tabs, and how keys change it.

use std::time::{Duration, Instant};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tokio::sync::{mpsc, watch};

use crate::live::{Filter, GroupView, KeyView, LimitView, Live, QueueView, Seen, pause};
use crate::top::columns::{Listed, Sort, Style};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tab {
    #[default]
    Limits,
    Keys,
    Queue,
}

impl Tab {
    pub(super) const ALL: [Self; 3] = [Self::Limits, Self::Keys, Self::Queue];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Limits => "Limits",
            Self::Keys => "Keys",
            Self::Queue => "Queue",
        }
    }
}

/// For each tab, the text that its `/` filters by: of limits, keys and queues. Empty: all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filters(pub(super) [String; 3]);

impl Filters {
    pub(super) fn key(&self) -> &str {
        &self.0[Tab::Keys as usize]
    }

    pub(super) fn queue(&self) -> &str {
        &self.0[Tab::Queue as usize]
    }

    pub(super) fn of_keys(&self) -> Filter {
        Filter { limit: self.0[Tab::Limits as usize].clone(), key_prefix: self.key().to_owned() }
    }
}

/// The selected row of a table. It follows the row, not its place.
#[derive(Clone, Debug, Default)]
struct Selection {
    place: usize,
    id: Option<(String, String)>,
}

/// The action after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Draw,
    /// Draw, and read what the new filters need.
    Read,
    Quit,
}

/// The state of the screen. It does no I/O.
pub(super) struct App {
    pub(super) tab: Tab,
    pub(super) filters: Filters,
    /// The filter of this tab before it was edited, while it is edited.
    pub(super) edited: Option<String>,
    pub(super) is_help: bool,
    pub(super) sorts: [Sort; 3],
    selections: [Selection; 3],
    pub(super) style: Style,
    pub(super) data: Data,
    /// Whether anything has been read.
    pub(super) is_read: bool,
}

impl App {
    pub(super) fn new(filters: Filters, style: Style) -> Self {
        let sorts = [
            Sort::by::<LimitView>(LimitView::SORTED_BY),
            Sort::by::<KeyView>(KeyView::SORTED_BY),
            Sort::by::<GroupView>(GroupView::SORTED_BY),
        ];
        Self {
            tab: Tab::default(),
            filters,
            edited: None,
            is_help: false,
            sorts,
            selections: Default::default(),
            style,
            data: Data::default(),
            is_read: false,
        }
    }

    pub(super) fn update(&mut self, data: Data) {
        self.data = data;
        self.is_read = true;
    }

    /// The rows of the three tables, filtered and sorted.
    pub(super) fn limits(&self) -> Vec<LimitView> {
        let mut rows = self.data.seen.snapshot.filtered(&self.filters.of_keys());
        self.sorts[0].sort(&mut rows);
        rows
    }

    pub(super) fn keys(&self) -> Vec<KeyView> {
        let mut rows = self.data.seen.snapshot.keys(&self.filters.of_keys());
        self.sorts[1].sort(&mut rows);
        rows
    }

    pub(super) fn groups(&self) -> Vec<GroupView> {
        let mut rows = self.data.groups.clone();
        rows.retain(|group| group.queue.contains(self.filters.queue()) && group.group.starts_with(self.filters.key()));
        self.sorts[2].sort(&mut rows);
        rows
    }

    /// The place of the selected row.
    pub(super) fn selected<T: Listed>(&self, tab: Tab, rows: &[T]) -> Option<usize> {
        let Selection { place, id } = &self.selections[tab as usize];
        let found = id.as_ref().and_then(|id| rows.iter().position(|row| row.id() == *id));
        found.or_else(|| rows.len().checked_sub(1).map(|last| last.min(*place)))
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
            KeyCode::Char('1') => self.tab = Tab::Limits,
            KeyCode::Char('2') => self.tab = Tab::Keys,
            KeyCode::Char('3') => self.tab = Tab::Queue,
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(Tab::ALL.len() - 1),
            KeyCode::Char('/') => self.edited = Some(self.filter().clone()),
            KeyCode::Esc => {
                self.filters = Filters::default();
                return Next::Read;
            }
            KeyCode::Char('s' | '>') => self.sort_by(|column, _| column + 1),
            KeyCode::Char('S' | '<') => self.sort_by(|column, columns| column + columns - 1),
            KeyCode::Char('r') => {
                let sort = &mut self.sorts[self.tab as usize];
                sort.is_descending = !sort.is_descending;
            }
            KeyCode::Enter if self.tab == Tab::Limits => return self.open(),
            KeyCode::Down | KeyCode::Char('j') => self.select(|place, _| place + 1),
            KeyCode::Up | KeyCode::Char('k') => self.select(|place, _| place.saturating_sub(1)),
            KeyCode::PageDown => self.select(|place, _| place + 10),
            KeyCode::PageUp => self.select(|place, _| place.saturating_sub(10)),
            KeyCode::Home | KeyCode::Char('g') => self.select(|_, _| 0),
            KeyCode::End | KeyCode::Char('G') => self.select(|_, rows| rows),
            _ => {}
        }
        Next::Draw
    }

    fn filter(&mut self) -> &mut String {
        &mut self.filters.0[self.tab as usize]
    }

    fn edit(&mut self, code: KeyCode, is_control: bool) -> Next {
        match code {
            KeyCode::Enter => self.edited = None,
            KeyCode::Esc => {
                if let Some(before) = self.edited.take() {
                    *self.filter() = before;
                }
            }
            KeyCode::Char('u') if is_control => self.filter().clear(),
            KeyCode::Char(c) if !is_control => self.filter().push(c),
            KeyCode::Backspace => drop(self.filter().pop()),
            _ => return Next::Draw,
        }
        Next::Read
    }

    fn turn(&mut self, by: usize) {
        self.tab = Tab::ALL[(self.tab as usize + by) % Tab::ALL.len()];
    }

    /// Shows the keys of the selected limit.
    fn open(&mut self) -> Next {
        let limits = self.limits();
        let Some(limit) = self.selected(Tab::Limits, &limits).and_then(|place| limits.get(place)) else {
            return Next::Draw;
        };
        self.filters.0[Tab::Limits as usize].clone_from(&limit.name);
        self.tab = Tab::Keys;
        Next::Read
    }

    fn sort_by(&mut self, next: impl Fn(usize, usize) -> usize) {
        fn by<T: Listed>(sort: &mut Sort, next: impl Fn(usize, usize) -> usize) {
            *sort = Sort::by::<T>(next(sort.column, T::COLUMNS.len()));
        }
        let sort = &mut self.sorts[self.tab as usize];
        match self.tab {
            Tab::Limits => by::<LimitView>(sort, next),
            Tab::Keys => by::<KeyView>(sort, next),
            Tab::Queue => by::<GroupView>(sort, next),
        }
    }

    fn select(&mut self, next: impl Fn(usize, usize) -> usize) {
        fn at<T: Listed>(app: &App, rows: &[T], next: impl Fn(usize, usize) -> usize) -> Selection {
            let Some(last) = rows.len().checked_sub(1) else { return Selection::default() };
            let place = next(app.selected(app.tab, rows).unwrap_or_default(), rows.len()).min(last);
            Selection { place, id: rows.get(place).map(Listed::id) }
        }
        self.selections[self.tab as usize] = match self.tab {
            Tab::Limits => at(self, &self.limits(), next),
            Tab::Keys => at(self, &self.keys(), next),
            Tab::Queue => at(self, &self.groups(), next),
        };
    }
}

/// The groups of so many queues are read.
pub(super) const QUEUES: usize = 20;
/// Keys of each limit that are looked up by their prefix.
const LIKE: u32 = 5;

/// The results of one round of reading.
#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    pub(super) seen: Seen,
    pub(super) queues: Vec<QueueView>,
    /// The groups of the first queues that match the filter.
    pub(super) groups: Vec<GroupView>,
    /// Why the queues could not be read.
    pub(super) queue_error: Option<String>,
}

impl Data {
    pub(super) async fn read(live: &Live, filters: &Filters) -> Self {
        let prefix = filters.key();
        if !prefix.is_empty() {
            // The sampler then also follows keys that are neither busy nor empty. A failure shows in the sample, too.
            for (name, key) in live.keys_like(prefix, LIKE).await.unwrap_or_default() {
                live.watch_key(&name, &key).await;
            }
        }
        let mut data = Self { seen: live.sample().await, ..Self::default() };
        data.queue_error = data.read_queues(live, filters).await.err().map(|error| error.to_string());
        data
    }

    async fn read_queues(&mut self, live: &Live, filters: &Filters) -> Result<(), crate::error::CliError> {
        self.queues = live.queues().await?;
        self.queues.retain(|queue| queue.queue.contains(filters.queue()));
        for queue in self.queues.iter().take(QUEUES) {
            self.groups.extend(live.groups(&queue.queue, None).await?);
        }
        Ok(())
    }
}

/// Reads at this interval, until the receiver is dropped.
pub(super) async fn keep_reading(
    live: Live,
    interval: Duration,
    mut filters: watch::Receiver<Filters>,
    data: mpsc::Sender<Data>,
) {
    loop {
        let begin = Instant::now();
        let wanted = filters.borrow_and_update().clone();
        let read = Data::read(&live, &wanted).await;
        let pause = pause(interval, begin, read.seen.error.is_some());
        if data.send(read).await.is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // Other filters need other data.
            changed = filters.changed() => if changed.is_err() { return },
        }
    }
}
