//! The addresses a client may connect to, and which of them is in turn.

use std::sync::{
    atomic::{AtomicUsize, Ordering},
    Arc,
};

/// Addresses (`HOST:PORT`) of servers that serve the same queues: one, or
/// several nodes of a cluster. A text may hold several, separated by commas.
///
/// ```
/// use tidegate_client::Servers;
/// let one: Servers = "127.0.0.1:7420".into();
/// let three: Servers = "10.0.0.1:7420, 10.0.0.2:7420,10.0.0.3:7420".into();
/// assert_eq!(three, Servers::from(["10.0.0.1:7420", "10.0.0.2:7420", "10.0.0.3:7420"]));
/// assert_eq!(one.to_string(), "127.0.0.1:7420");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Servers {
    /// Never empty, and no address twice.
    addresses: Vec<String>,
}

impl Servers {
    fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut addresses: Vec<String> = Vec::new();
        for address in texts.into_iter().flat_map(|text| text.split(',')) {
            let address = address.trim();
            if !address.is_empty() && !addresses.iter().any(|known| known == address) {
                addresses.push(address.to_owned());
            }
        }
        if addresses.is_empty() {
            // Connecting to it says what is wrong with it.
            addresses.push(String::new());
        }
        Servers { addresses }
    }

    /// The addresses, in the order in which they are tried.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }
}

impl std::fmt::Display for Servers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.addresses.join(", "))
    }
}

impl From<&str> for Servers {
    fn from(text: &str) -> Self {
        Servers::new([text])
    }
}

impl From<String> for Servers {
    fn from(text: String) -> Self {
        Servers::new([text.as_str()])
    }
}

impl From<&String> for Servers {
    fn from(text: &String) -> Self {
        Servers::new([text.as_str()])
    }
}

impl From<&[String]> for Servers {
    fn from(texts: &[String]) -> Self {
        Servers::new(texts.iter().map(String::as_str))
    }
}

impl From<&Vec<String>> for Servers {
    fn from(texts: &Vec<String>) -> Self {
        Servers::from(texts.as_slice())
    }
}

impl From<Vec<String>> for Servers {
    fn from(texts: Vec<String>) -> Self {
        Servers::from(texts.as_slice())
    }
}

impl<const N: usize> From<[&str; N]> for Servers {
    fn from(texts: [&str; N]) -> Self {
        Servers::new(texts)
    }
}

/// The addresses of one client's links, and the one in turn: whichever link
/// finds it gone moves all of them on, so that they end up at the same node.
#[derive(Debug)]
pub(crate) struct Turns {
    addresses: Vec<Arc<str>>,
    /// All of them, for messages.
    text: String,
    /// Index of the one in turn.
    now: AtomicUsize,
}

impl Turns {
    pub fn new(servers: &Servers) -> Self {
        let addresses = servers.addresses.iter();
        Turns {
            addresses: addresses.map(|address| address.as_str().into()).collect(),
            text: servers.to_string(),
            now: AtomicUsize::new(0),
        }
    }

    /// How many there are; at least 1.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// The one in turn, and its number for [`Turns::leave`].
    pub fn now(&self) -> (usize, Arc<str>) {
        let at = self.now.load(Ordering::Relaxed) % self.addresses.len().max(1);
        let address = self.addresses.get(at).cloned();
        (at, address.unwrap_or_else(|| "".into()))
    }

    /// Number `at` is gone: the next one's turn, unless another link said so first.
    pub fn leave(&self, at: usize) {
        let next = (at + 1) % self.addresses.len().max(1);
        // Failing means that another link moved on already.
        let _ = self
            .now
            .compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub fn text(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_split_trimmed_and_hold_no_address_twice() {
        let servers = Servers::from(vec!["a:1, b:2".to_owned(), "b:2,,c:3".to_owned()]);
        assert_eq!(servers.addresses(), ["a:1", "b:2", "c:3"]);
        assert_eq!(servers.to_string(), "a:1, b:2, c:3");
        assert_eq!(Servers::from(",").addresses(), [""]);
    }

    #[test]
    fn a_turn_ends_once_however_many_find_it_gone() {
        let turns = Turns::new(&"a,b,c".into());
        let (at, address) = turns.now();
        assert_eq!((at, &*address), (0, "a"));
        turns.leave(at);
        turns.leave(at);
        assert_eq!(turns.now().0, 1);
        turns.leave(1);
        turns.leave(2);
        assert_eq!(&*turns.now().1, "a");
    }
}
