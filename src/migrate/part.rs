/// A part of an installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// The limits: their tables, and the functions that decide.
    Core,
    /// The rate-limited queue. It needs the core.
    Queue,
}

impl Part {
    /// All parts.
    pub const ALL: &[Self] = &[Self::Core, Self::Queue];
}
