//! Room for opens of files that are still to be made: a file that was made for an OPEN without room
//! would be in the way of its retry, so the room is taken first.

use proto::nfs4::ClientId;
use rustc_hash::FxHashMap;

/// The room that opens take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RoomSize {
    pub(super) opens: usize,
    /// The names of their owners.
    pub(super) names_bytes: usize,
}

/// The room that is taken and not used yet.
#[derive(Debug, Default)]
pub(super) struct OpenRooms {
    by_client: FxHashMap<ClientId, RoomSize>,
    all: RoomSize,
}

impl OpenRooms {
    pub(super) fn all(&self) -> RoomSize {
        self.all
    }

    pub(super) fn of(&self, client: ClientId) -> RoomSize {
        self.by_client.get(&client).copied().unwrap_or_default()
    }

    pub(super) fn take(&mut self, client: ClientId, size: RoomSize) {
        self.all.add(size);
        self.by_client.entry(client).or_default().add(size);
    }

    pub(super) fn give_back(&mut self, client: ClientId, size: RoomSize) {
        self.all.subtract(size);
        let own = self.by_client.get_mut(&client).expect("it has taken room");
        own.subtract(size);
        if *own == RoomSize::default() {
            self.by_client.remove(&client);
        }
    }
}

impl RoomSize {
    fn add(&mut self, other: Self) {
        self.opens += other.opens;
        self.names_bytes += other.names_bytes;
    }

    fn subtract(&mut self, other: Self) {
        self.opens -= other.opens;
        self.names_bytes -= other.names_bytes;
    }
}
