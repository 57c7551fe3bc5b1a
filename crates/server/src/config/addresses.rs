//! The addresses that clients connect to, and the one of the metrics.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use toml::Spanned;

use super::Overrides;
use super::error::{ConfigError, Given, Origin, Source};
use super::raw::{ListenAddress, ListenList, ListenText, NotAnAddress};

pub(super) fn listen(
    raw: Option<Spanned<ListenList>>,
    overrides: &Overrides,
    source: Source<'_>,
) -> Result<Given<Vec<SocketAddr>>, ConfigError> {
    let raw = raw.map(|raw| parse_listen(&raw, source)).transpose()?;
    let flag = (!overrides.listen.is_empty()).then(|| ("--listen", overrides.listen.clone()));
    let given = Given::pick(flag, raw, vec![LISTEN_DEFAULT]);
    let addresses = &given.value;
    let refuse = |why| Err(source.blame(&given.origin, why));
    if addresses.is_empty() {
        return refuse("the list is empty, so no client can connect".to_owned());
    }
    if addresses.len() > LISTEN_ADDRESSES_MAX {
        return refuse(format!(
            "the server can listen on at most {LISTEN_ADDRESSES_MAX} addresses"
        ));
    }
    let bound = |address| Bound::new(address, addresses);
    for (i, address) in addresses.iter().enumerate() {
        let others = &addresses[..i];
        match others.iter().find(|other| bound(address).collides_with(&bound(other))) {
            Some(other) if other == address => return refuse(format!("{address} is given twice")),
            Some(other) => {
                return refuse(format!("the server cannot listen on both {other} and {address}"));
            }
            None => {}
        }
    }
    Ok(given)
}

fn parse_listen(
    raw: &Spanned<ListenList>,
    source: Source<'_>,
) -> Result<Spanned<Vec<SocketAddr>>, ConfigError> {
    let ListenList(texts) = raw.as_ref();
    let addresses = texts.iter().map(|ListenText { text, span }| {
        let ListenAddress(address) = text.parse().map_err(|error: NotAnAddress| {
            source.at(span.as_ref().unwrap_or(&raw.span()), error.to_string())
        })?;
        Ok(address)
    });
    Ok(Spanned::new(raw.span(), addresses.collect::<Result<_, _>>()?))
}

pub(super) fn metrics(
    raw: Option<Spanned<ListenAddress>>,
    listen: &Given<Vec<SocketAddr>>,
    overrides: &Overrides,
    source: Source<'_>,
) -> Result<Option<SocketAddr>, ConfigError> {
    let (ListenAddress(address), origin) = match (overrides.metrics, raw) {
        (Some(address), _) => (address, Origin::Flag("--metrics")),
        (None, Some(raw)) => (*raw.get_ref(), Origin::Text(raw.span())),
        (None, None) => return Ok(None),
    };
    // Its `::` always includes IPv4: it is no part of the list.
    let own = Bound::new(&address, &[]);
    let taken =
        listen.value.iter().find(|taken| Bound::new(taken, &listen.value).collides_with(&own));
    let Some(taken) = taken else { return Ok(Some(address)) };
    // A flag is wrong for the file that it is given with, which is right without it.
    let origin = match (&origin, &listen.origin) {
        (Origin::Text(_), Origin::Flag(_)) => &listen.origin,
        _ => &origin,
    };
    let why = format!("the server cannot serve clients on {taken} and metrics on {address}");
    Err(source.blame(origin, why))
}

/// Whether the socket of `address` takes IPv6 alone. `::` includes IPv4, but not where an IPv4
/// address of the list has the same port: the two would collide.
pub(crate) fn is_v6_only(address: &SocketAddr, listen: &[SocketAddr]) -> bool {
    let mut others = listen.iter().filter(|other| other.port() == address.port());
    address.ip() == Ipv6Addr::UNSPECIFIED
        && address.port() != 0
        && others.any(|other| other.ip().to_canonical().is_ipv4())
}

/// The address of a listening socket, as the kernel compares it with those of others.
struct Bound {
    /// Of IPv4 also where it is written as one of IPv6.
    address: SocketAddr,
    is_v6_only: bool,
}

impl Bound {
    fn new(address: &SocketAddr, listen: &[SocketAddr]) -> Self {
        let is_v6_only = is_v6_only(address, listen);
        let address = match address.ip().to_canonical() {
            ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
            // With its scope.
            IpAddr::V6(_) => *address,
        };
        Self { address, is_v6_only }
    }

    /// Whether the kernel would refuse the second of the two (EADDRINUSE).
    fn collides_with(&self, other: &Self) -> bool {
        // Port 0 asks for any free port, so two such sockets do not collide.
        let share_port = self.address.port() == other.address.port() && self.address.port() != 0;
        share_port && (self.includes(other) || other.includes(self))
    }

    fn includes(&self, other: &Self) -> bool {
        match self.address.ip() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => other.address.is_ipv4(),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => other.address.is_ipv6() || !self.is_v6_only,
            _ => self.address == other.address,
        }
    }
}

const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2049);
const LISTEN_ADDRESSES_MAX: usize = 64;
