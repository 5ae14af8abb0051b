//! A way to a server that can be cut: a listener that passes on whatever comes, both ways.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The way. It ends, with every connection, when this is dropped.
pub(crate) struct Passage {
    /// Where it begins.
    pub(crate) address: SocketAddr,
    open: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Passage {
    /// An open way to this address.
    pub(crate) async fn to(server: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let open = watch::Sender::new(true);
        Ok(Self {
            address: listener.local_addr()?,
            task: tokio::spawn(accept(listener, server, open.subscribe())),
            open,
        })
    }

    /// Lets connections through, or cuts those there are and every new one.
    pub(crate) fn open(&self, open: bool) {
        self.open.send_replace(open);
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, open: watch::Receiver<bool>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(pass(stream, server, open.clone()));
    }
}

async fn pass(mut stream: TcpStream, server: SocketAddr, mut open: watch::Receiver<bool>) {
    let passing = async {
        let mut server = TcpStream::connect(server).await?;
        copy_bidirectional(&mut stream, &mut server).await
    };
    tokio::select! {
        biased;
        _ = open.wait_for(|open| !open) => {}
        // However it ended: both ends see that it did.
        _ = passing => {}
    }
}
