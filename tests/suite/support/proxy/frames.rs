//! The frames of PostgreSQL's protocol: a type byte, an i32 length that counts itself, a body.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::support::payloads::Payload;

#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub body: Vec<u8>,
}

impl Frame {
    pub fn new(kind: u8, body: impl Into<Vec<u8>>) -> Self {
        Self { kind, body: body.into() }
    }

    /// A simple query.
    pub fn query(sql: &str) -> Self {
        Self::new(b'Q', format!("{sql}\0"))
    }

    /// `I`: idle; `T`: in a transaction; `E`: in a failed one.
    pub fn ready(status: u8) -> Self {
        Self::new(b'Z', [status])
    }

    /// A row of one column.
    pub fn row(text: &str) -> Self {
        let mut body = 1_u16.to_be_bytes().to_vec();
        body.extend((text.len() as u32).to_be_bytes());
        body.extend(text.as_bytes());
        Self::new(b'D', body)
    }

    pub fn error(payload: &Payload) -> Self {
        let mut body = String::new();
        let fields = [
            ('S', payload.severity),
            ('V', payload.severity),
            ('C', payload.code),
            ('M', payload.message),
            ('D', payload.detail),
            ('W', payload.context),
            ('R', payload.routine),
        ];
        for (field, value) in fields.into_iter().filter(|(_, value)| !value.is_empty()) {
            body.push(field);
            body.push_str(value);
            body.push('\0');
        }
        body.push('\0');
        Self::new(b'E', body)
    }

    /// The zero-terminated texts at the beginning of the body.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.body.split(|byte| *byte == 0).map(|text| std::str::from_utf8(text).unwrap_or_default())
    }
}

/// Incoming frames. Reading is cancel safe: the part of a frame that has arrived is kept.
pub struct Frames<R> {
    from: R,
    come: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub const fn new(from: R) -> Self {
        Self { from, come: Vec::new() }
    }

    async fn more(&mut self) -> io::Result<()> {
        let mut bytes = [0; 16 * 1024];
        match self.from.read(&mut bytes).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.come.extend_from_slice(&bytes[..count]);
                Ok(())
            }
        }
    }

    fn length_at(&self, place: usize) -> Option<usize> {
        let bytes = self.come.get(place..place + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().expect("four bytes")) as usize)
    }

    /// Reads the first message of a client, which has no type.
    pub async fn startup(&mut self) -> io::Result<Vec<u8>> {
        loop {
            match self.length_at(0) {
                Some(length) if self.come.len() >= length => return Ok(self.come.drain(..length).collect()),
                _ => self.more().await?,
            }
        }
    }

    pub async fn next(&mut self) -> io::Result<Frame> {
        loop {
            match self.length_at(1) {
                Some(length) if self.come.len() > length => {
                    let frame: Vec<u8> = self.come.drain(..=length).collect();
                    return Ok(Frame::new(frame[0], &frame[5..]));
                }
                _ => self.more().await?,
            }
        }
    }

    /// Returns when the other side has disconnected; what it sends meanwhile is kept.
    pub async fn gone(&mut self) {
        while self.more().await.is_ok() {}
    }
}

/// Sends all frames in one write, so that the other side never sees half of them.
pub async fn send(to: &mut (impl AsyncWrite + Unpin), frames: &[Frame]) -> io::Result<()> {
    let mut bytes = Vec::new();
    for frame in frames {
        bytes.push(frame.kind);
        bytes.extend((frame.body.len() as u32 + 4).to_be_bytes());
        bytes.extend(&frame.body);
    }
    to.write_all(&bytes).await?;
    to.flush().await
}
