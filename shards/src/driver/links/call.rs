//! Calling nodes and being called.

use std::{
    cell::Cell,
    os::fd::OwnedFd,
    rc::Rc,
    time::{Duration, Instant},
};

use futures_lite::future;
use glommio::{net::TcpStream, timer::Timer};
use wire::node::{NodeHello, Refusal, RefusalCode};

use super::{
    cluster::Pass,
    handshake::{self, Failure, Stop, Wire},
    link::{self, is_farewell},
    refusals::{By, Who},
    strangers::{Met, HELLO_DEADLINE},
    Links, Peer,
};
use crate::driver::{fd, shard::Shard};

/// Between two calls, doubling; behind it up to half as much by chance.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MOST: Duration = Duration::from_secs(1);
/// A link that lived so long was a good one: the next call comes soon.
const GOOD_LINK: Duration = Duration::from_secs(5);
/// Nobody linked for so long is not as it should be.
const QUIET: Duration = Duration::from_secs(5);
/// A node that does not even take the connection.
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);

/// Keeps the peer linked; runs until the shard is drained.
pub(super) async fn keep_calling(shard: Rc<Shard>, peer: Rc<Peer>) {
    let Some(links) = shard.links() else { return };
    let mut pause = PAUSE;
    while !links.ended.get() && !peer.removed.get() {
        let begun = Instant::now();
        match call(&shard, links, &peer).await {
            Ok(()) if begun.elapsed() >= GOOD_LINK => pause = PAUSE,
            Ok(()) => {}
            Err(stop) => {
                let at = peer.address.get().to_string();
                links.note(Who::Node(peer.node), &at, &stop);
            }
        }
        let jitter = links.random() % (pause.as_millis() as u64 / 2);
        glommio::timer::sleep(pause + Duration::from_millis(jitter)).await;
        pause = (pause * 2).min(PAUSE_MOST);
    }
}

/// Nobody is linked for long: either nobody is there, or this node was removed while it was
/// away, and those that it does not call by its number call it no more. So it asks them;
/// runs until the shard is drained.
pub(super) async fn keep_asking(shard: Rc<Shard>) {
    let Some(links) = shard.links() else { return };
    while !links.ended.get() {
        glommio::timer::sleep(QUIET).await;
        let peers = links.all();
        if peers.iter().any(|peer| peer.link.borrow().is_some()) {
            continue;
        }
        for peer in peers.iter().filter(|it| it.node > links.cluster.node) {
            // Whoever takes this node for a member refuses the call: it calls itself.
            if call(&shard, links, peer)
                .await
                .is_err_and(|stop| is_removal(&stop))
            {
                links.told_removed();
            }
        }
    }
}

/// A node that has proved to be of the cluster says that this one was removed.
fn is_removal(stop: &Stop) -> bool {
    let Stop::Told { refusal, proven } = stop else {
        return false;
    };
    *proven && refusal.code == RefusalCode::Removed
}

/// Calls once, and serves the link until it ends.
async fn call(shard: &Rc<Shard>, links: &Links, peer: &Peer) -> Result<(), Stop> {
    let connected = TcpStream::connect_timeout(peer.address.get(), CONNECT_DEADLINE).await;
    let stream = connected.map_err(|error| Stop::Gone(describe(&error.into())))?;
    let mut wire = Wire::new(stream);
    let (node, counter) = (peer.node, links.open_counter.get());
    let steps = async {
        let called = handshake::call(&links.cluster, &mut wire, node, links.shard, counter).await;
        if let Err(Stop::Refused(refusal)) = &called {
            wire.refuse(refusal).await;
        }
        called
    };
    let late = async {
        Timer::new(HELLO_DEADLINE).await;
        Err(Stop::Gone("it does not answer hello".to_owned()))
    };
    let session = future::or(steps, late).await?;
    // Another opening of the log since: this link would be the old one's.
    let wanted = !links.ended.get() && !peer.removed.get();
    if counter == links.open_counter.get() && wanted {
        link::serve(shard, links, wire, session).await;
    }
    Ok(())
}

fn describe(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "nobody listens at its address".to_owned(),
        _ => error.to_string(),
    }
}

/// A connection that the listener for nodes accepted.
pub(in crate::driver) async fn called(shard: Rc<Shard>, socket: OwnedFd) {
    let Some(links) = shard.links() else { return };
    let mut wire = Wire::new(fd::adopt(socket));
    let at = wire.address();
    let told = Cell::new(false);
    let met = links.strangers.meet(async {
        let heard = match links.farewell() {
            Some(refusal) => Err(handshake::of_stranger(Stop::Refused(refusal))),
            None => handshake::hear(&links.cluster, &mut wire).await,
        };
        links.conclude(heard, &mut wire, &at, &told).await
    });
    let met = met.await;
    let Some(hello) = links.met(met, &mut wire, &at, &told).await else {
        return;
    };
    let Ok(wished) = NodeHello::decode(&hello).map(|hello| hello.shard) else {
        return;
    };
    if wished == shard.number {
        return answer(&shard, links, wire, &hello, &at).await;
    }
    // A shard that is not up yet must not gather what strangers bring.
    match (links.cluster.pass(), fd::duplicate(&wire.stream)) {
        (Some(pass), Ok(socket)) => shard.hand_link_over(
            wished,
            Called {
                socket,
                hello,
                pass,
            },
        ),
        _ => {
            let crowded = links.met(Met::Crowded, &mut wire, &at, &told);
            let _: Option<()> = crowded.await;
        }
    }
}

/// A connection whose hello, judged, is for another shard than the one that
/// accepted it.
pub(in crate::driver) struct Called {
    socket: OwnedFd,
    hello: Vec<u8>,
    pass: Pass,
}

/// A connection whose hello is for this shard.
pub(in crate::driver) async fn answered(shard: Rc<Shard>, called: Called) {
    let Some(links) = shard.links() else { return };
    let Called {
        socket,
        hello,
        pass,
    } = called;
    drop(pass);
    let wire = Wire::new(fd::adopt(socket));
    let at = wire.address();
    answer(&shard, links, wire, &hello, &at).await;
}

async fn answer(shard: &Rc<Shard>, links: &Links, mut wire: Wire, hello: &[u8], at: &str) {
    let counter = links.open_counter.get();
    let told = Cell::new(false);
    let met = links.strangers.meet(async {
        let answered = match links.farewell() {
            Some(refusal) => Err(handshake::of_stranger(Stop::Refused(refusal))),
            None => handshake::answer(&links.cluster, &mut wire, hello, counter).await,
        };
        links.conclude(answered, &mut wire, at, &told).await
    });
    let met = met.await;
    let Some(session) = links.met(met, &mut wire, at, &told).await else {
        return;
    };
    if counter == links.open_counter.get() && !links.ended.get() {
        link::serve(shard, links, wire, session).await;
    }
}

impl Links {
    /// Why nobody is linked any more, once the shard is drained.
    fn farewell(&self) -> Option<Refusal> {
        let reason = || format!("node {} stops", self.cluster.node);
        let ended = self.ended.get();
        ended.then(|| Refusal::new(RefusalCode::Leaving, reason()))
    }

    /// Notes how a called side's handshake failed, if it did, and tells the peer.
    async fn conclude<T>(
        &self,
        outcome: Result<T, Failure>,
        wire: &mut Wire,
        at: &str,
        told: &Cell<bool>,
    ) -> Option<T> {
        let failure = match outcome {
            Ok(done) => return Some(done),
            Err(failure) => failure,
        };
        self.note(failure.who, at, &failure.stop);
        told.set(true);
        if let Stop::Refused(refusal) = &failure.stop {
            wire.refuse(refusal).await;
        }
        None
    }

    /// The same for one whose time ended before.
    async fn met<T>(
        &self,
        met: Met<Option<T>>,
        wire: &mut Wire,
        at: &str,
        told: &Cell<bool>,
    ) -> Option<T> {
        let refusal = match met {
            Met::Done(done) => return done,
            // Only the time to read why was cut short.
            _ if told.get() => return None,
            Met::Late => {
                let reason = format!("no hello came within {} s", HELLO_DEADLINE.as_secs());
                Refusal::new(RefusalCode::Late, reason)
            }
            Met::Crowded => Refusal::new(
                RefusalCode::Crowded,
                "too many connections that do not say who they are",
            ),
        };
        wire.say(&refusal).await;
        self.note(Who::Stranger, at, &Stop::Refused(refusal));
        None
    }

    fn note(&self, who: Who, at: &str, stop: &Stop) {
        let (by, refusal) = match stop {
            Stop::Refused(refusal) => (Some(By::Us), refusal),
            Stop::Told { refusal, .. } => (Some(By::Them), refusal),
            Stop::Gone(reason) => (None, &Refusal::new(RefusalCode::Leaving, reason.as_str())),
        };
        if let Some(by) = by.filter(|_| !is_farewell(refusal.code)) {
            self.cluster.note(self.shard, who, by, at, refusal);
        }
        if is_removal(stop) {
            self.told_removed();
        }
        if let Who::Node(node) = who {
            if let Some(peer) = self.peer(node) {
                peer.trouble.replace(refusal.reason.clone());
            }
        }
    }
}
