//! Checks that a server accepts connections, by speaking the start of its protocol: an open port alone does not prove it.

use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(5);

/// Connects as `postgres` without a password, and returns the version that the server reports.
pub(super) fn server_version(host: &str, port: u16) -> io::Result<String> {
    let address = (host, port).to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;

    let parameters = b"user\0postgres\0database\0postgres\0\0";
    let mut startup = Vec::new();
    startup.extend(u32::try_from(8 + parameters.len()).unwrap_or(0).to_be_bytes());
    startup.extend(196_608_u32.to_be_bytes()); // protocol 3.0
    startup.extend(parameters);
    stream.write_all(&startup)?;

    let mut version = None;
    loop {
        let mut head = [0; 5];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        // Anything longer is not PostgreSQL.
        let length = length.checked_sub(4).filter(|length| *length < 65_536).ok_or(io::ErrorKind::InvalidData)?;
        let mut body = vec![0; length as usize];
        stream.read_exact(&mut body)?;
        match head[0] {
            b'E' => {
                return Err(io::Error::other(String::from_utf8_lossy(&body).replace('\0', " ")));
            }
            // ParameterStatus: a name and a value.
            b'S' => version = version.or_else(|| parameter(&body, "server_version")),
            // ReadyForQuery: send Terminate, or the server logs a lost connection.
            b'Z' => {
                stream.write_all(&[b'X', 0, 0, 0, 4])?;
                return version.ok_or_else(|| io::ErrorKind::InvalidData.into());
            }
            _ => {}
        }
    }
}

/// The value up to the first space. The rest is the version of the package.
fn parameter(body: &[u8], name: &str) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    let (key, value) = text.trim_end_matches('\0').split_once('\0')?;
    if key == name { value.split(' ').next().map(str::to_owned) } else { None }
}
