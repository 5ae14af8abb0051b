//! The line to the OpenSandbox server, which can be cut, held and slowed down while requests are under way.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What a slow line takes for each piece.
const SLOW: Duration = Duration::from_millis(700);

/// What becomes of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Everything passes.
    Whole,
    /// Those that are there break, and no new one lasts.
    Refuses,
    /// They stay, and nothing passes either way.
    Silent,
    /// Requests pass, and the connection breaks when the answer comes.
    CutsAnswers,
    /// A request passes, and behind it its end of the connection is closed; the other end stays open.
    HangsUp,
    /// Everything passes late.
    Slow,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(match self {
            Mode::Whole => "whole",
            Mode::Refuses => "refused",
            Mode::Silent => "silent",
            Mode::CutsAnswers => "cut before the answer",
            Mode::HangsUp => "closed by half after the request",
            Mode::Slow => "slow",
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    There,
    Back,
}

/// A TCP proxy on loopback.
pub(crate) struct Wire {
    /// What it listens on.
    pub(crate) address: SocketAddr,
    mode: watch::Sender<Mode>,
    task: JoinHandle<()>,
}

impl Wire {
    /// A whole line to this address.
    pub(crate) async fn to(server: SocketAddr) -> anyhow::Result<Wire> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (mode, now) = watch::channel(Mode::Whole);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, server, now.clone()));
            }
        });
        Ok(Wire { address, mode, task })
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whatever ends it, both ends see their connection closed.
async fn carry(client: TcpStream, server: SocketAddr, mut mode: watch::Receiver<Mode>) {
    if *mode.borrow() == Mode::Refuses {
        return;
    }
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pump(from_client, to_server, Direction::There, mode.clone()) => {}
        () = pump(from_server, to_client, Direction::Back, mode.clone()) => {}
        _ = mode.wait_for(|mode| *mode == Mode::Refuses) => {}
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    direction: Direction,
    mut mode: watch::Receiver<Mode>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let now = *mode.borrow_and_update();
        match now {
            Mode::Whole | Mode::Refuses | Mode::HangsUp => {}
            Mode::Silent => {
                // Fails only once the proxy is gone.
                if mode.wait_for(|mode| *mode != Mode::Silent).await.is_err() {
                    return;
                }
            }
            Mode::CutsAnswers if direction == Direction::Back => return,
            Mode::CutsAnswers => {}
            Mode::Slow => tokio::time::sleep(SLOW).await,
        }
        let Some(read) = buffer.get(..length) else { return };
        if to.write_all(read).await.is_err() {
            return;
        }
        if now == Mode::HangsUp && direction == Direction::There {
            // What becomes of the answer is the server's choice.
            if to.shutdown().await.is_ok() {
                std::future::pending::<()>().await;
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        address
    }

    /// What comes back of a word, or nothing where the line breaks.
    async fn answer(line: &mut TcpStream) -> Option<Vec<u8>> {
        line.write_all(b"word").await.ok()?;
        let mut back = vec![0; 4];
        line.read_exact(&mut back).await.ok()?;
        Some(back)
    }

    #[tokio::test]
    async fn a_line_carries_is_cut_and_carries_again() {
        let wire = Wire::to(echo().await).await.unwrap();
        let mut line = TcpStream::connect(wire.address).await.unwrap();
        assert_eq!(answer(&mut line).await.as_deref(), Some(&b"word"[..]));
        wire.set(Mode::Refuses);
        assert_eq!(answer(&mut line).await, None);
        let mut refused = TcpStream::connect(wire.address).await.unwrap();
        assert_eq!(answer(&mut refused).await, None);
        wire.set(Mode::CutsAnswers);
        let mut cut = TcpStream::connect(wire.address).await.unwrap();
        assert_eq!(answer(&mut cut).await, None);
        wire.set(Mode::Whole);
        let mut line = TcpStream::connect(wire.address).await.unwrap();
        assert_eq!(answer(&mut line).await.as_deref(), Some(&b"word"[..]));
    }

    #[tokio::test]
    async fn a_line_that_hangs_up_after_the_request_still_carries_the_answer_back() {
        let wire = Wire::to(echo().await).await.unwrap();
        wire.set(Mode::HangsUp);
        let mut line = TcpStream::connect(wire.address).await.unwrap();
        assert_eq!(answer(&mut line).await.as_deref(), Some(&b"word"[..]));
        assert_eq!(answer(&mut line).await, None, "nothing passes a second time");
    }

    #[tokio::test]
    async fn a_silent_line_delivers_what_it_held_when_it_speaks_again() {
        let wire = Wire::to(echo().await).await.unwrap();
        let mut line = TcpStream::connect(wire.address).await.unwrap();
        assert!(answer(&mut line).await.is_some());
        wire.set(Mode::Silent);
        let mut waiting = std::pin::pin!(answer(&mut line));
        assert!(futures::poll!(&mut waiting).is_pending());
        wire.set(Mode::Whole);
        assert_eq!(waiting.await.as_deref(), Some(&b"word"[..]));
    }
}
