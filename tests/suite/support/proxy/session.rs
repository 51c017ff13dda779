//! One connection: it forwards whole requests, up to their Sync, and whole answers, up to their ReadyForQuery.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::fault::{Plan, Point, Way};
use super::frames::{Frame, Frames, send};
use crate::support::payloads::Payload;

const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;
const CANCEL_REQUEST: u32 = 80_877_102;

/// A statement that makes a transaction fail, and does nothing outside of one.
const POISON: &str = "ROLLBACK TO SAVEPOINT the_fault_proxy_has_made_none";

/// The frames that the client sends up to a Sync or a query.
struct Request {
    frames: Vec<Frame>,
    point: Option<Point>,
}

/// Counts as under way until it is dropped.
struct UnderWay(Arc<Plan>);

impl UnderWay {
    fn of(plan: &Arc<Plan>) -> Self {
        plan.busy.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(plan))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Session {
    plan: Arc<Plan>,
    from_client: Frames<OwnedReadHalf>,
    to_client: OwnedWriteHalf,
    from_server: Frames<OwnedReadHalf>,
    to_server: OwnedWriteHalf,
    /// The texts of prepared statements, by name.
    statements: HashMap<String, String>,
    /// The status in the server's last ReadyForQuery.
    status: u8,
}

/// Serves one client. When it ends, both connections are closed without a message.
pub(super) async fn session(client: TcpStream, address: String, plan: Arc<Plan>) {
    let _ = serve(client, &address, plan).await;
}

fn gone<T>() -> io::Result<T> {
    Err(io::ErrorKind::ConnectionAborted.into())
}

async fn serve(client: TcpStream, address: &str, plan: Arc<Plan>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let (from_client, mut to_client) = client.into_split();
    let mut from_client = Frames::new(from_client);
    let startup = loop {
        let startup = from_client.startup().await?;
        match startup.get(4..8).map(|code| u32::from_be_bytes(code.try_into().expect("four bytes"))) {
            Some(SSL_REQUEST | GSS_REQUEST) => to_client.write_all(b"N").await?,
            Some(CANCEL_REQUEST) => return TcpStream::connect(address).await?.write_all(&startup).await,
            _ => break startup,
        }
    };
    plan.count(Point::Connect, false);
    match plan.next(Point::Connect) {
        Some(Way::Before(payload) | Way::After(payload)) => {
            return send(&mut to_client, &[Frame::error(payload)]).await;
        }
        Some(Way::Delay(time) | Way::Late(time)) => tokio::time::sleep(time).await,
        Some(Way::Hold) => plan.held().await,
        Some(Way::Drop | Way::Cut | Way::SaysRollback | Way::Says(_)) => return gone(),
        None => {}
    }
    let server = TcpStream::connect(address).await?;
    server.set_nodelay(true)?;
    let (from_server, mut to_server) = server.into_split();
    to_server.write_all(&startup).await?;
    let from_server = Frames::new(from_server);
    let statements = HashMap::new();
    let mut session = Session { plan, from_client, to_client, from_server, to_server, statements, status: b'I' };
    session.authenticate().await?;
    loop {
        let request = session.request().await?;
        session.answer(request).await?;
    }
}

impl Session {
    /// Forwards everything until the server is ready.
    async fn authenticate(&mut self) -> io::Result<()> {
        loop {
            tokio::select! {
                frame = self.from_client.next() => send(&mut self.to_server, &[frame?]).await?,
                frame = self.from_server.next() => {
                    let frame = frame?;
                    send(&mut self.to_client, std::slice::from_ref(&frame)).await?;
                    if frame.kind == b'Z' {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Reads the client's next request, and forwards what the server sends meanwhile: notices, and that it shuts down.
    async fn request(&mut self) -> io::Result<Request> {
        let mut frames = Vec::new();
        loop {
            tokio::select! {
                frame = self.from_client.next() => {
                    let frame = frame?;
                    let kind = frame.kind;
                    frames.push(frame);
                    match kind {
                        b'S' | b'Q' => break,
                        b'X' => {
                            send(&mut self.to_server, &frames).await?;
                            return gone();
                        }
                        b'H' | b'd' | b'c' | b'f' => panic!("the proxy supports neither COPY nor Flush"),
                        _ => {}
                    }
                }
                frame = self.from_server.next() => send(&mut self.to_client, &[frame?]).await?,
            }
        }
        let point = self.point(&frames);
        Ok(Request { frames, point })
    }

    fn point(&mut self, frames: &[Frame]) -> Option<Point> {
        let mut point = None;
        for frame in frames {
            let mut texts = frame.texts();
            let first = texts.next().unwrap_or_default().to_owned();
            let second = texts.next().unwrap_or_default().to_owned();
            match frame.kind {
                b'Q' => point = of_text(&first),
                b'P' => {
                    point = match of_text(&second) {
                        Some(Point::Statement) => Some(Point::Prepare),
                        Some(Point::AdvisoryLock) => Some(Point::AdvisoryLock),
                        _ => None,
                    };
                    self.statements.insert(first, second);
                }
                b'B' => point = self.statements.get(&second).and_then(|text| of_text(text)),
                _ => {}
            }
        }
        point
    }

    async fn answer(&mut self, Request { frames, point }: Request) -> io::Result<()> {
        let Some(point) = point else { return self.pass(&frames).await };
        let is_lone = point == Point::Statement && self.status == b'I';
        self.plan.count(point, is_lone);
        let _under_way = UnderWay::of(&self.plan);
        if let Some(way) = self.plan.next(point) {
            return self.fault(&frames, point, way).await;
        }
        if is_lone && let Some(way) = self.plan.next(Point::Commit) {
            return self.fault_in_commit_of_lone(&frames, way).await;
        }
        self.pass(&frames).await
    }

    async fn pass(&mut self, frames: &[Frame]) -> io::Result<()> {
        let answer = self.exchange(frames).await?;
        send(&mut self.to_client, &answer).await
    }

    /// Returns the server's whole answer. If the client disconnects before that, the session ends.
    async fn exchange(&mut self, frames: &[Frame]) -> io::Result<Vec<Frame>> {
        send(&mut self.to_server, frames).await?;
        let mut answer = Vec::new();
        loop {
            tokio::select! {
                frame = self.from_server.next() => match frame {
                    Ok(frame) => {
                        answer.push(frame);
                        if let Some(Frame { kind: b'Z', body }) = answer.last() {
                            self.status = body[0];
                            return Ok(answer);
                        }
                    }
                    Err(error) => {
                        // The frames that arrived before the server closed the connection.
                        send(&mut self.to_client, &answer).await?;
                        return Err(error);
                    }
                },
                () = self.from_client.gone() => return gone(),
            }
        }
    }

    /// Runs the request to its end, whether the client waits or not.
    async fn run_out(&mut self, frames: &[Frame]) -> io::Result<Vec<Frame>> {
        send(&mut self.to_server, frames).await?;
        let mut answer = Vec::new();
        loop {
            match self.from_server.next().await {
                Ok(frame) => answer.push(frame),
                Err(error) => {
                    // The frames that arrived before the server closed the connection.
                    send(&mut self.to_client, &answer).await?;
                    return Err(error);
                }
            }
            if let Some(Frame { kind: b'Z', body }) = answer.last() {
                self.status = body[0];
                return Ok(answer);
            }
        }
    }

    async fn fault(&mut self, frames: &[Frame], point: Point, way: Way) -> io::Result<()> {
        match way {
            Way::Before(payload) => {
                match point {
                    Point::Commit => drop(self.run_out(&[Frame::query("ROLLBACK")]).await?),
                    Point::Begin => {}
                    // A failed transaction cannot commit any more.
                    _ => drop(self.run_out(&[Frame::query(POISON)]).await?),
                }
                self.tell(&[], payload).await
            }
            Way::After(payload) => {
                self.run_out(frames).await?;
                match point {
                    Point::Begin => drop(self.run_out(&[Frame::query("ROLLBACK")]).await?),
                    _ if self.status == b'T' => drop(self.run_out(&[Frame::query(POISON)]).await?),
                    _ => {}
                }
                self.tell(&[], payload).await
            }
            Way::Drop => gone(),
            Way::Cut => {
                self.run_out(frames).await?;
                gone()
            }
            Way::Delay(time) => {
                tokio::time::sleep(time).await;
                let answer = self.run_out(frames).await?;
                send(&mut self.to_client, &answer).await
            }
            Way::Hold => {
                self.plan.held().await;
                let answer = self.run_out(frames).await?;
                send(&mut self.to_client, &answer).await
            }
            Way::Late(time) => {
                let answer = self.run_out(frames).await?;
                tokio::time::sleep(time).await;
                send(&mut self.to_client, &answer).await
            }
            Way::SaysRollback => {
                let answer = self.run_out(&[Frame::query("ROLLBACK")]).await?;
                send(&mut self.to_client, &answer).await
            }
            Way::Says(text) => {
                let mut answer = self.run_out(frames).await?;
                answer.iter_mut().filter(|frame| frame.kind == b'D').for_each(|row| *row = Frame::row(text));
                send(&mut self.to_client, &answer).await
            }
        }
    }

    /// A fault in the commit of a limiter's statement that is its own transaction: the result arrives, but not the regular end.
    async fn fault_in_commit_of_lone(&mut self, frames: &[Frame], way: Way) -> io::Result<()> {
        let runs = match way {
            Way::After(_) | Way::Cut | Way::Delay(_) | Way::Hold | Way::Late(_) => true,
            Way::Before(_) | Way::Drop | Way::SaysRollback | Way::Says(_) => false,
        };
        let mut answer = if runs {
            self.run_out(frames).await?
        } else {
            self.run_out(&[Frame::query("BEGIN")]).await?;
            let answer = self.run_out(frames).await?;
            self.run_out(&[Frame::query("ROLLBACK")]).await?;
            answer
        };
        if answer.iter().any(|frame| frame.kind == b'E') {
            // The statement itself has failed.
            *answer.last_mut().expect("it is ready") = Frame::ready(self.status);
            return send(&mut self.to_client, &answer).await;
        }
        let result = &answer[..answer.len() - 1];
        match way {
            Way::Before(payload) | Way::After(payload) => {
                let result = result.to_vec();
                self.tell(&result, payload).await
            }
            Way::Drop | Way::Cut | Way::SaysRollback | Way::Says(_) => {
                send(&mut self.to_client, result).await?;
                gone()
            }
            Way::Delay(time) | Way::Late(time) => {
                tokio::time::sleep(time).await;
                send(&mut self.to_client, &answer).await
            }
            Way::Hold => {
                self.plan.held().await;
                send(&mut self.to_client, &answer).await
            }
        }
    }

    /// Sends these frames and then the error; if the error is fatal, closes the connection.
    async fn tell(&mut self, first: &[Frame], payload: &Payload) -> io::Result<()> {
        let mut told = first.to_vec();
        told.push(Frame::error(payload));
        if payload.is_fatal() {
            send(&mut self.to_client, &told).await?;
            return gone();
        }
        told.push(Frame::ready(self.status));
        send(&mut self.to_client, &told).await
    }
}

fn of_text(text: &str) -> Option<Point> {
    if text.starts_with("BEGIN") {
        Some(Point::Begin)
    } else if text == "COMMIT" {
        Some(Point::Commit)
    } else if text == "SELECT" {
        Some(Point::Probe)
    } else if text.contains("pg_logical_emit_message") {
        Some(Point::Flush)
    } else if text.contains("pg_advisory_xact_lock(") {
        Some(Point::AdvisoryLock)
    } else if text.starts_with("SELECT pg_catalog.version()") {
        Some(Point::Version)
    } else if [
        "._decide(",
        "._take_slots(",
        "._decide_sums(",
        "._decide_one(",
        "._take_token_bucket(",
        "._take_fixed_window(",
        "._take_sliding_window(",
        "._take_two_token_buckets(",
        "._take_few(",
        "._decide_once(",
    ]
    .iter()
    .any(|name| text.contains(name))
    {
        Some(Point::Statement)
    } else if text.contains("._claim(") {
        Some(Point::Claim)
    } else {
        None
    }
}
