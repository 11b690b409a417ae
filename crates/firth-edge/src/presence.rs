//! [`Rooms`]: who is there. Pure.
//!
//! A room is a collection, or one document of it, of one tenant. Presence is state, not events:
//! watchers are told how the room is now, at most a few times a second however many come and go,
//! encoded once for all of them. It covers the clients of this gateway.

use crate::protocol::server;
use firth_router::Tenant;
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// What a room is about.
pub(crate) type Place = (Tenant, Box<str>, Option<Box<str>>);

pub(crate) struct Rooms {
    rooms: Slab<Room>,
    places: HashMap<Place, usize>,
    changed: Vec<usize>,
}

struct Room {
    place: Place,
    /// Named users, with the number of their connections.
    users: BTreeMap<Arc<str>, usize>,
    nameless: usize,
    watchers: BTreeSet<(usize, Arc<str>)>,
    is_changed: bool,
}

impl Rooms {
    pub(crate) fn new() -> Self {
        Self { rooms: Slab::new(), places: HashMap::new(), changed: Vec::new() }
    }

    /// A connection enters, and watches under this name.
    pub(crate) fn enter(
        &mut self,
        place: Place,
        slot: usize,
        name: Arc<str>,
        user: Option<&Arc<str>>,
    ) -> usize {
        let at = *self.places.entry(place).or_insert_with_key(|place| {
            let users = BTreeMap::new();
            let watchers = BTreeSet::new();
            self.rooms.insert(Room { place: place.clone(), users, nameless: 0, watchers, is_changed: false })
        });
        let room = &mut self.rooms[at];
        room.watchers.insert((slot, name));
        match user {
            Some(user) => *room.users.entry(user.clone()).or_default() += 1,
            None => room.nameless += 1,
        }
        self.change(at);
        at
    }

    /// A connection leaves.
    pub(crate) fn leave(&mut self, at: usize, slot: usize, name: &Arc<str>, user: Option<&Arc<str>>) {
        let room = &mut self.rooms[at];
        room.watchers.remove(&(slot, name.clone()));
        match user {
            Some(user) => {
                if let Some(count) = room.users.get_mut(user) {
                    *count -= 1;
                    if *count == 0 {
                        room.users.remove(user);
                    }
                }
            }
            None => room.nameless -= 1,
        }
        if room.watchers.is_empty() {
            let room = self.rooms.remove(at);
            self.places.remove(&room.place);
            self.changed.retain(|changed| *changed != at);
        } else {
            self.change(at);
        }
    }

    /// Tells every watcher of a changed room its state: slot, name of the subscription, shared
    /// text.
    pub(crate) fn flush(&mut self, named: usize, mut tell: impl FnMut(usize, &Arc<str>, &Arc<str>)) {
        for at in self.changed.drain(..) {
            let room = &mut self.rooms[at];
            room.is_changed = false;
            let names: Vec<&str> = room.users.keys().take(named).map(|user| &**user).collect();
            let text = server::presence_tail(room.users.len() + room.nameless, &names);
            for (slot, name) in &room.watchers {
                tell(*slot, name, &text);
            }
        }
    }

    fn change(&mut self, at: usize) {
        if !std::mem::replace(&mut self.rooms[at].is_changed, true) {
            self.changed.push(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(rooms: &mut Rooms) -> Vec<(usize, String)> {
        let mut told = Vec::new();
        rooms.flush(2, |slot, _, text| told.push((slot, text.to_string())));
        told
    }

    #[test]
    fn watchers_hear_the_state_once_for_any_number_of_changes() {
        let mut rooms = Rooms::new();
        let place: Place = (Tenant::new("t").unwrap(), "c".into(), None);
        let ann: Arc<str> = "ann".into();
        let name: Arc<str> = "\"n\"".into();
        let at = rooms.enter(place.clone(), 1, name.clone(), Some(&ann));
        assert_eq!(rooms.enter(place.clone(), 2, name.clone(), Some(&ann)), at);
        rooms.enter(place.clone(), 3, name.clone(), None);
        let told_all = told(&mut rooms);
        assert_eq!(told_all.len(), 3);
        assert_eq!(told_all[0].1, r#"{"count":2,"members":["ann"]}"#);
        assert!(told(&mut rooms).is_empty());
        rooms.leave(at, 1, &name, Some(&ann));
        rooms.leave(at, 3, &name, None);
        assert_eq!(told(&mut rooms), [(2, r#"{"count":1,"members":["ann"]}"#.to_owned())]);
        rooms.leave(at, 2, &name, Some(&ann));
        assert!(told(&mut rooms).is_empty() && rooms.places.is_empty() && rooms.rooms.is_empty());
    }
}
