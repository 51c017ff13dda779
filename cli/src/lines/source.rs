use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use crate::error::CliError;
use crate::input;
use crate::lines::compressed::decompressed;
use crate::lines::counted::{Counted, Position};
use crate::lines::lines::Lines;

/// A file whose lines can be read several times. All passes read the same bytes, also if the file is renamed or grows meanwhile.
pub(crate) struct Source {
    name: String,
    content: Content,
}

enum Content {
    /// With its length when it was opened.
    File(File, u64),
    Bytes(Vec<u8>),
}

impl Source {
    /// Opens a file; `-` is standard input. A file that can be read only once, such as a pipe, is copied to a temporary file.
    pub(crate) fn open(path: &Path) -> Result<Self, CliError> {
        let name = input::name(path);
        let content = open(path).map_err(|error| CliError::usage(format!("cannot read {name}: {error}")))?;
        Ok(Self { name, content })
    }

    pub(crate) fn bytes(name: &str, bytes: Vec<u8>) -> Self {
        Self { name: name.to_owned(), content: Content::Bytes(bytes) }
    }

    /// The name for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The length in bytes, as it is stored.
    pub(crate) fn len(&self) -> u64 {
        match &self.content {
            Content::File(_, length) => *length,
            Content::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Begins to read the lines. Another reader must not be in use.
    pub(crate) fn lines(&self) -> Result<Lines<'_>, CliError> {
        let position = Position::default();
        let stored = self.stored().and_then(|stored| {
            let counted = Counted::new(stored, position.clone());
            decompressed(Box::new(BufReader::with_capacity(1 << 16, counted)))
        });
        Lines::new(&self.name, stored.map_err(|error| self.unreadable(&error))?, position)
    }

    fn stored(&self) -> io::Result<Box<dyn Read + Send + '_>> {
        match &self.content {
            Content::Bytes(bytes) => Ok(Box::new(bytes.as_slice())),
            Content::File(file, length) => {
                let mut file = file.try_clone()?;
                file.seek(SeekFrom::Start(0))?;
                Ok(Box::new(file.take(*length)))
            }
        }
    }

    fn unreadable(&self, error: &io::Error) -> CliError {
        CliError::usage(format!("cannot read {}: {error}", self.name))
    }
}

fn open(path: &Path) -> io::Result<Content> {
    if input::is_stdin(path) {
        return spooled(&mut io::stdin().lock());
    }
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if metadata.is_file() { Ok(Content::File(file, metadata.len())) } else { spooled(&mut file) }
}

/// Copies the input to a temporary file, so that memory does not have to hold it.
fn spooled(input: &mut dyn Read) -> io::Result<Content> {
    let mut file = tempfile::tempfile()?;
    let length = io::copy(input, &mut file)?;
    Ok(Content::File(file, length))
}
