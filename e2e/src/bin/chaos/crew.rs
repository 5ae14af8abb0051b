//! The adapter processes.

use std::time::Duration;

use ayatori_e2e::replica::{Adapter, Replica};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Replicas of each adapter.
pub(crate) const REPLICAS: usize = 2;
/// How long one that has ended by itself is away, as under a kubelet.
const RESTART: Duration = Duration::from_secs(1);

/// What a replica is told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// SIGKILL, and a new process.
    Die,
    /// SIGSTOP, and SIGCONT after this time.
    Sleep(Duration),
    /// SIGKILL, for good.
    End,
}

/// The adapter processes, each started again whenever it ends, as the kubelet would.
#[derive(Default)]
pub(crate) struct Crew {
    members: Vec<Member>,
}

struct Member {
    adapter: Adapter,
    identity: String,
    orders: mpsc::UnboundedSender<Order>,
    task: JoinHandle<anyhow::Result<u32>>,
}

/// How a replica is called, also in the Lease that it may hold.
pub(crate) fn identity(adapter: Adapter, replica: usize) -> String {
    format!("{}-{replica}", adapter.name())
}

impl Member {
    /// Fails only where its task has failed, which the end of the run tells.
    fn obey(&self, order: Order) {
        let _ = self.orders.send(order);
    }
}

impl Crew {
    /// Keeps one more replica running, under this identity.
    pub(crate) fn hire(
        &mut self,
        adapter: Adapter,
        identity: String,
        start: impl Fn() -> anyhow::Result<Replica> + Send + 'static,
    ) {
        let (orders, received) = mpsc::unbounded_channel();
        let task = tokio::spawn(keep(start, received));
        self.members.push(Member {
            adapter,
            identity,
            orders,
            task,
        });
    }

    /// To the replica of this identity.
    pub(crate) fn order(&self, identity: &str, order: Order) {
        self.members
            .iter()
            .filter(|member| member.identity == identity)
            .for_each(|member| member.obey(order));
    }

    /// To all replicas of an adapter.
    pub(crate) fn order_all(&self, adapter: Adapter, order: Order) {
        self.members
            .iter()
            .filter(|member| member.adapter == adapter)
            .for_each(|member| member.obey(order));
    }

    /// Ends all of them; how often one was started again.
    pub(crate) async fn end(self) -> anyhow::Result<u32> {
        let mut restarts = 0;
        for Member { orders, task, .. } in self.members {
            let _ = orders.send(Order::End);
            restarts += task.await??;
        }
        Ok(restarts)
    }
}

/// Keeps one replica running; how often it was started again.
async fn keep(
    start: impl Fn() -> anyhow::Result<Replica>,
    mut orders: mpsc::UnboundedReceiver<Order>,
) -> anyhow::Result<u32> {
    let mut restarts = 0;
    while tend(start()?, &mut orders).await? {
        restarts += 1;
    }
    Ok(restarts)
}

/// Does to one process what is ordered, until it has ended; whether another one is to follow.
async fn tend(mut replica: Replica, orders: &mut mpsc::UnboundedReceiver<Order>) -> anyhow::Result<bool> {
    loop {
        let order = tokio::select! {
            ended = replica.ended(Duration::MAX) => {
                ended?;
                sleep(RESTART).await;
                return Ok(true);
            }
            order = orders.recv() => order.unwrap_or(Order::End),
        };
        match order {
            Order::Sleep(time) => {
                // One that has just ended cannot.
                if replica.freeze().is_ok() {
                    sleep(time).await;
                    replica.wake_up()?;
                }
            }
            Order::Die => {
                replica.kill().await?;
                return Ok(true);
            }
            Order::End => {
                replica.kill().await?;
                return Ok(false);
            }
        }
    }
}
