use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use super::fault::{Chaos, Fault, Plan, Seen};
use super::session::session;

/// A proxy in front of a database's server. It runs until it is dropped.
pub struct Proxy {
    /// The URL of the database through the proxy.
    pub url: String,
    plan: Arc<Plan>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy in front of the server of this URL.
    pub async fn before(url: &str) -> Self {
        let start = url.find("://").expect("a URL") + 3;
        let end = start + url[start..].find('/').expect("a URL with a path");
        let start = url[start..end].rfind('@').map_or(start, |at| start + at + 1);
        let mut address = url[start..end].to_owned();
        if !address.contains(':') {
            address.push_str(":5432");
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let url = format!("{}127.0.0.1:{port}{}", &url[..start], &url[end..]);
        let plan = Arc::new(Plan::new());
        let shared = Arc::clone(&plan);
        let task = tokio::spawn(async move {
            let mut sessions = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                sessions.spawn(session(client, address.clone(), Arc::clone(&shared)));
                while sessions.try_join_next().is_some() {}
            }
        });
        Self { url, plan, task }
    }

    pub fn put(&self, fault: Fault) {
        self.plan.put(fault);
    }

    /// Starts random faults.
    pub fn unleash(&self, chaos: Chaos) {
        self.plan.set_chaos(Some(chaos));
    }

    /// Ends all faults.
    pub fn calm(&self) {
        self.plan.clear();
    }

    /// Lets one held request go, now or when it comes.
    pub fn let_go(&self) {
        self.plan.let_go.add_permits(1);
    }

    /// Waits until all delayed requests have been sent on.
    pub async fn until_idle(&self) {
        while self.plan.busy.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub fn seen(&self) -> &Seen {
        &self.plan.seen
    }

    /// The current value of this counter.
    pub fn count(&self, of: impl Fn(&Seen) -> &AtomicU32) -> u32 {
        of(self.seen()).load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}
