//! Gossip over real sockets on loopback, with timers that are short and real.

use super::*;
use onward_gossip::{ClusterKey, DropReason, MemberState};

const PATIENCE: Duration = Duration::from_secs(60);

fn keys(first: u8, second: Option<u8>) -> ClusterKeys {
    let key = |byte| ClusterKey::new([byte; 32]);
    ClusterKeys::new(key(first), second.map(key))
}

fn rule() -> GossipRule {
    let ms = Duration::from_millis;
    GossipRule {
        probe_every: ms(200),
        answer_within: ms(100),
        suspect_for: ms(1_000),
        spread_every: ms(50),
        join_every: ms(200),
        look_for_missing_every: ms(1_000),
        ..GossipRule::default()
    }
}

fn config(name: &str, peers: &[SocketAddr], incarnation: u64) -> GossipConfig {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    GossipConfig {
        keys: keys(1, None),
        bind: loopback,
        advertise: loopback,
        name: NodeLabel::new(name).unwrap(),
        role: Role::Manager,
        datacenter: Some(NodeLabel::new("dc-a").unwrap()),
        incarnation,
        peers: peers.to_vec(),
        rule: rule(),
    }
}

async fn start(name: &str, peers: &[SocketAddr]) -> GossipHandle {
    GossipHandle::start(&config(name, peers, 1), Pulse::default()).await.unwrap()
}

async fn until(handle: &GossipHandle, what: &str, is_so: impl Fn(&RingView) -> bool) {
    let mut views = handle.views();
    let seen = timeout(PATIENCE, views.wait_for(|view| is_so(view))).await;
    assert!(matches!(seen, Ok(Ok(_))), "not within {PATIENCE:?}: {what}; {:?}", handle.view());
}

fn state(view: &RingView, name: &str) -> Option<MemberState> {
    Some(view.named(name)?.state)
}

async fn three() -> [GossipHandle; 3] {
    let first = start("m1", &[]).await;
    let second = start("m2", &[first.address()]).await;
    let third = start("m3", &[first.address(), second.address()]).await;
    for handle in [&first, &second, &third] {
        until(handle, "all three see each other", |view| {
            view.members.len() == 2 && view.members.iter().all(|member| member.state == MemberState::Alive)
        })
        .await;
    }
    [first, second, third]
}

#[tokio::test]
async fn a_killed_leader_is_down_and_the_others_are_not() {
    let [first, second, third] = three().await;
    third.report(NodeHealth { accepting: true, leads: true, workers: 7, ..NodeHealth::default() });
    for handle in [&first, &second] {
        until(handle, "its health is known", |view| {
            let report = view.named("m3").and_then(|member| member.report.as_ref());
            report.is_some_and(|report| report.health.leads && report.health.workers == 7)
        })
        .await;
    }
    drop(third);
    for handle in [&first, &second] {
        until(handle, "the third is down", |view| state(view, "m3") == Some(MemberState::Down)).await;
        assert_eq!(state(&handle.view(), "m1").or(state(&handle.view(), "m2")), Some(MemberState::Alive));
    }
}

#[tokio::test]
async fn a_goodbye_is_no_death_and_the_next_life_is_welcome() {
    let [first, second, third] = three().await;
    let address = third.address();
    third.leave().await;
    drop(third);
    for handle in [&first, &second] {
        until(handle, "the third has left", |view| state(view, "m3") == Some(MemberState::Left)).await;
    }
    let again = GossipConfig { bind: address, advertise: address, ..config("m3", &[first.address()], 2) };
    let again = GossipHandle::start(&again, Pulse::default()).await.unwrap();
    for handle in [&first, &second] {
        until(handle, "the third is back", |view| {
            view.named("m3").is_some_and(|third| third.state == MemberState::Alive && third.identity.incarnation == 2)
        })
        .await;
    }
    until(&again, "it sees both", |view| view.members.len() == 2).await;
}

/// Runs on a runtime of its own, whose only thread is put to sleep.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_node_is_down_and_comes_back_without_an_accusation() {
    let first = start("m1", &[]).await;
    let second = start("m2", &[first.address()]).await;
    let peers = [first.address(), second.address()];
    let (sleeping, told_to_sleep) = std::sync::mpsc::channel::<()>();
    let (started, frozen) = std::sync::mpsc::channel();
    let (wake, woken) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let third = start("m3", &peers).await;
            started.send(third.clone()).unwrap();
            loop {
                match told_to_sleep.try_recv() {
                    // Nothing on this runtime goes on until it is woken.
                    Ok(()) => woken.recv().unwrap(),
                    Err(std::sync::mpsc::TryRecvError::Empty) => sleep(Duration::from_millis(20)).await,
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
                }
            }
        });
    });
    let third = frozen.recv().unwrap();
    for handle in [&first, &second] {
        until(handle, "all are there", |view| view.members.len() == 2).await;
    }
    sleeping.send(()).unwrap();
    for handle in [&first, &second] {
        until(handle, "it is down", |view| state(view, "m3") == Some(MemberState::Down)).await;
    }
    wake.send(()).unwrap();
    for handle in [&first, &second] {
        until(handle, "it is back", |view| {
            view.named("m3").is_some_and(|it| it.state == MemberState::Alive && it.identity.renewals() > 0)
        })
        .await;
    }
    until(&third, "it knows that it was away", |view| view.gaps > 0).await;
    assert!(third.view().members.iter().all(|member| member.state == MemberState::Alive), "{:?}", third.view());
    drop((sleeping, third));
    tokio::task::block_in_place(|| thread.join().unwrap());
}

#[tokio::test]
async fn a_wrong_key_cannot_join_and_replays_are_dropped_and_counted() {
    let [first, second, _third] = three().await;
    let wrong = GossipConfig { keys: keys(9, None), ..config("m9", &[first.address(), second.address()], 1) };
    let wrong = GossipHandle::start(&wrong, Pulse::default()).await.unwrap();
    until(&first, "it is counted", |view| view.drops.of(DropReason::WrongKey) >= 3).await;
    assert_eq!((state(&first.view(), "m9"), wrong.view().members.len()), (None, 0));

    // Somebody on the way, who has every datagram of a node that talks through them.
    let relay = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let fourth = start("m4", &[relay.local_addr().unwrap()]).await;
    let mut buffer = [0; 2_000];
    let (length, _) = timeout(PATIENCE, relay.recv_from(&mut buffer)).await.unwrap().unwrap();
    let before = first.view().drops;
    for _ in 0..5 {
        relay.send_to(&buffer[..length], first.address()).await.unwrap();
        relay.send_to(&[0; 1_400], first.address()).await.unwrap();
        relay.send_to(b"hello", first.address()).await.unwrap();
    }
    until(&first, "all are dropped", |view| {
        let more = |reason| view.drops.of(reason) - before.of(reason);
        // An announcement to another address is not for us, however often it comes.
        more(DropReason::Misdirected) == 5 && more(DropReason::Oversized) == 5 && more(DropReason::Garbage) == 5
    })
    .await;
    assert_eq!(state(&first.view(), "m4"), None);
    drop(fourth);
}

/// A datagram that was meant for its receiver, once more and once more.
#[tokio::test]
async fn a_datagram_counts_once() {
    let catcher = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = catcher.local_addr().unwrap();
    let sender = start("m1", &[address]).await;
    let mut buffer = [0; 2_000];
    let (length, _) = timeout(PATIENCE, catcher.recv_from(&mut buffer)).await.unwrap().unwrap();
    drop((catcher, sender));
    let receiver = GossipConfig { bind: address, advertise: address, ..config("m2", &[], 1) };
    let receiver = GossipHandle::start(&receiver, Pulse::default()).await.unwrap();
    let other = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for _ in 0..6 {
        other.send_to(&buffer[..length], address).await.unwrap();
    }
    until(&receiver, "five of six are replays", |view| view.drops.of(DropReason::Replayed) == 5).await;
    assert_eq!(receiver.view().drops.of(DropReason::Garbage), 0);
}

#[tokio::test]
async fn keys_are_rotated_while_all_run() {
    let handles = three().await;
    for next in [keys(1, Some(2)), keys(2, Some(1)), keys(2, None)] {
        for handle in &handles {
            handle.use_keys(next.clone()).await;
        }
    }
    let sent = handles[0].view().received;
    until(&handles[0], "they still talk", |view| view.received > sent + 20).await;
    for handle in &handles {
        assert!(handle.view().members.iter().all(|member| member.state == MemberState::Alive));
    }
}

#[test]
fn every_life_has_a_higher_number_than_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    let first = next_incarnation(folder.path()).unwrap();
    assert!(next_incarnation(folder.path()).unwrap() > first);
    // The clock was set back by a century.
    std::fs::write(folder.path().join("incarnation"), "9000000000000").unwrap();
    assert_eq!(next_incarnation(folder.path()).unwrap(), 9_000_000_000_001);
}

#[test]
fn a_key_file_that_cannot_be_used_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cluster.key");
    assert!(read_keys(&path).unwrap_err().to_string().contains("cannot be read"));
    std::fs::write(&path, "x").unwrap();
    assert!(read_keys(&path).unwrap_err().to_string().contains("line 1 is not base64"));
    std::fs::write(&path, ClusterKey::new([1; 32]).to_line()).unwrap();
    assert_eq!(read_keys(&path).unwrap(), keys(1, None));
}
