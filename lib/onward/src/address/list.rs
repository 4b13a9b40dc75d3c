//! Addresses of the managers of a datacenter: any of them will do, and the one that leads is quickest.
//!
//! Each answer says who leads, and the leader is asked next time. That is a hint: where the leader is not reached, the
//! addresses that were given are tried, one after the other, and the hint is left alone for a while.

use core::fmt;
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use onward_api::cluster::LeaderHint;

use super::{AddressError, NodeAddress, Proxy};

/// The time for which a hint that led nowhere is not followed again: clients need not see the network that managers
/// see.
const LEFT_ALONE_FOR: Duration = Duration::from_secs(60);

/// The addresses of one node, or of the nodes of a cluster, and the credentials for them. Cheap to clone; clones learn
/// together who leads.
#[derive(Clone)]
pub struct NodeAddresses {
    /// Addresses as they were given; at least one.
    seeds: Arc<[NodeAddress]>,
    choice: Arc<Mutex<Choice>>,
}

#[derive(Default)]
struct Choice {
    /// The index of the next seed.
    seed: usize,
    leader: Option<(NodeAddress, u64)>,
    /// The address that a hint led to in vain, and the instant of the try.
    dead_end: Option<(String, Instant)>,
}

impl fmt::Debug for NodeAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&*self.seeds).finish()
    }
}

impl From<NodeAddress> for NodeAddresses {
    fn from(one: NodeAddress) -> Self {
        Self::of(vec![one]).expect("there is one")
    }
}

impl NodeAddresses {
    /// Addresses from one URL, or from several with commas between them: `http://a:7400,http://b:7400`.
    pub fn at(urls: &str) -> Result<Self, AddressError> {
        Self::parse(urls, NodeAddress::at)
    }

    /// Addresses as [`NodeAddresses::at`] makes them, trusting only these certificates (PEM) for `https`.
    pub fn trusting(urls: &str, pem: &[u8]) -> Result<Self, AddressError> {
        Self::parse(urls, |url| NodeAddress::trusting(url, pem))
    }

    /// None if there is none.
    pub fn of(all: Vec<NodeAddress>) -> Option<Self> {
        (!all.is_empty()).then(|| Self { seeds: all.into(), choice: Arc::default() })
    }

    /// Proves to each of them who calls.
    pub fn with_token(self, token: &str) -> Self {
        self.map(|seed| seed.with_token(token))
    }

    /// Connections to each of them go through a proxy.
    pub fn through(self, between: &Proxy) -> Self {
        self.map(|seed| seed.through(between.clone()))
    }

    /// Each as `host:port`, as they were given.
    pub fn authorities(&self) -> String {
        self.seeds.iter().map(NodeAddress::authority).collect::<Vec<_>>().join(", ")
    }

    fn parse(urls: &str, one: impl Fn(&str) -> Result<NodeAddress, AddressError>) -> Result<Self, AddressError> {
        let all: Result<Vec<_>, _> = urls.split(',').map(str::trim).filter(|url| !url.is_empty()).map(one).collect();
        Self::of(all?).ok_or_else(|| AddressError::NotAnAddress(urls.to_owned()))
    }

    fn map(self, change: impl Fn(NodeAddress) -> NodeAddress) -> Self {
        Self::of(self.seeds.iter().cloned().map(change).collect()).expect("as many as before")
    }

    /// The number of tries in a round: each address once, and the one that a hint names.
    pub(crate) fn round(&self) -> usize {
        self.seeds.len() + usize::from(self.choice().leader.is_some())
    }

    /// Whom to ask next.
    pub(crate) fn next(&self) -> NodeAddress {
        let choice = self.choice();
        match &choice.leader {
            Some((leader, _)) => leader.clone(),
            None => self.seeds[choice.seed % self.seeds.len()].clone(),
        }
    }

    /// Leaves an address that was not reached, or cannot serve: another is next, whatever hints say.
    pub(crate) fn leave(&self, left: &NodeAddress) {
        if self.choice().leader.as_ref().is_some_and(|(leader, _)| leader.authority() == left.authority()) {
            self.choice().dead_end = Some((left.authority().to_owned(), Instant::now()));
        }
        self.skip(left);
    }

    /// Passes over an address that has ended a conversation: another is next.
    pub(crate) fn skip(&self, left: &NodeAddress) {
        let mut choice = self.choice();
        choice.leader.take_if(|(leader, _)| leader.authority() == left.authority());
        if self.seeds[choice.seed % self.seeds.len()].authority() == left.authority() {
            choice.seed = (choice.seed + 1) % self.seeds.len();
        }
    }

    /// Learns who leads from an answer.
    pub(crate) fn learn(&self, hint: &str) {
        let Ok(LeaderHint { address, term }) = hint.parse() else { return };
        let mut choice = self.choice();
        let is_older = choice.leader.as_ref().is_some_and(|(_, known)| *known > term);
        let Some(leader) = self.seeds[choice.seed % self.seeds.len()].elsewhere(&address) else { return };
        let is_dead_end = choice
            .dead_end
            .as_ref()
            .is_some_and(|(authority, at)| authority == leader.authority() && at.elapsed() < LEFT_ALONE_FOR);
        if is_older || is_dead_end {
            return;
        }
        // The very address that was given stays the one that is used.
        let seed = self.seeds.iter().position(|seed| seed.authority() == leader.authority());
        match seed {
            Some(seed) => (choice.seed, choice.leader) = (seed, None),
            None => choice.leader = Some((leader, term)),
        }
    }

    fn choice(&self) -> MutexGuard<'_, Choice> {
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_or_several() {
        let all = NodeAddresses::at("http://a:1, http://b:2,").unwrap();
        assert_eq!((all.authorities().as_str(), all.round()), ("a:1, b:2", 2));
        assert!(matches!(NodeAddresses::at(" , "), Err(AddressError::NotAnAddress(_))));
        assert!(matches!(NodeAddresses::at("http://a:1,b:2"), Err(AddressError::NotAnAddress(_))));
    }

    #[test]
    fn the_leader_is_asked_first_and_the_given_addresses_when_it_is_not_there() {
        let all = NodeAddresses::at("http://a:1,http://b:2").unwrap();
        assert_eq!(all.next().authority(), "a:1");
        all.learn("b:2; term=3");
        assert_eq!((all.next().authority(), all.round()), ("b:2", 2), "one of those that were given");
        all.learn("c:3; term=5");
        assert_eq!((all.next().authority(), all.round()), ("c:3", 3));
        all.learn("d:4; term=4");
        assert_eq!(all.next().authority(), "c:3", "what is older is not news");
        all.leave(&all.next());
        assert_eq!(all.next().authority(), "b:2");
        all.learn("c:3; term=5");
        assert_eq!(all.next().authority(), "b:2", "it led nowhere a moment ago");
        all.learn("e:5; term=6");
        assert_eq!(all.next().authority(), "e:5", "another may be there");
        all.leave(&all.next());
        all.leave(&all.next());
        assert_eq!(all.next().authority(), "a:1");
        all.leave(&NodeAddress::at("http://b:2").unwrap());
        assert_eq!(all.next().authority(), "a:1", "it was not that one");
    }

    #[test]
    fn a_hint_never_leads_out_of_tls() {
        let all = NodeAddresses::at("https://a:1").unwrap();
        all.learn("http://evil:2; term=9");
        assert_eq!(all.next().authority(), "a:1");
        all.learn("b:2; term=9");
        assert_eq!(all.next().authority(), "b:2");
        let plain = NodeAddresses::at("http://a:1").unwrap();
        plain.learn("https://b:2; term=9");
        assert_eq!(plain.next().authority(), "a:1", "nothing is known of whom to trust there");
        plain.learn("nonsense");
        assert_eq!(plain.next().authority(), "a:1");
    }
}
