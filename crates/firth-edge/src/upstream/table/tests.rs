//! What is registered, by whom it is held, and what goes when room is needed.

use super::*;
use crate::position::Offsets;

const LINGER: Duration = Duration::from_secs(180);
const ROOM: Room = Room { total: 100, per_tenant: 50 };

fn table(room: Room) -> Table {
    Table::new("g", "i", LINGER, room)
}

fn at(offset: u64) -> Position {
    Position::new(1, Offsets::single(offset))
}

fn tenant(name: &str) -> Tenant {
    Tenant::new(name).unwrap()
}

/// Registers all that is wanted; answers how many that were.
fn settle_all(table: &mut Table, answer: &Result<Position, EdgeError>) -> usize {
    let mut registered = 0;
    while let Some(errand) = table.next() {
        match errand {
            Errand::Register { number, asked, .. } => {
                table.settle(number, asked, answer.clone());
                registered += 1;
            }
            Errand::Unregister { is_eviction, .. } => {
                if is_eviction {
                    table.evicted();
                }
            }
        }
    }
    registered
}

fn state(state: &watch::Receiver<State>) -> State {
    state.borrow().clone()
}

#[test]
fn all_who_ask_for_the_same_share_one_registration_which_outlives_them_by_the_window() {
    let mut table = table(ROOM);
    let now = Instant::now();
    let mine = SubscriptionRequest::collection("mine", "orders");
    let yours = SubscriptionRequest::collection("yours", "orders");
    let (first, live) = table.hold(&tenant("a"), &mine, now).unwrap();
    assert_eq!(table.hold(&tenant("a"), &yours, now).unwrap().0, first, "names do not matter");
    let (other, others) = table.hold(&tenant("b"), &mine, now).unwrap();
    assert_ne!(first, other, "tenants do");
    assert_eq!(settle_all(&mut table, &Ok(at(5))), 2, "each is asked once");
    assert_eq!(state(&live), State::Live(at(5)));
    table.release(first, now);
    table.release(first, now);
    table.sweep(now + LINGER);
    assert!(table.next().is_none());
    assert_eq!(table.hold(&tenant("a"), &mine, now).unwrap().0, first);
    assert!(table.next().is_none(), "who comes back in time finds it");
    table.release(first, now + LINGER);
    table.sweep(now + 3 * LINGER);
    assert!(matches!(table.next(), Some(Errand::Unregister { is_eviction: false, .. })));
    assert!(table.next().is_none() && !table.covers(first, &at(9)));
    assert_eq!(state(&others), State::Live(at(5)));
}

#[test]
fn what_the_router_forgot_is_registered_again_and_its_holders_hear_of_it() {
    let mut table = table(ROOM);
    let now = Instant::now();
    let request = SubscriptionRequest::collection("w", "c");
    let (number, live) = table.hold(&tenant("a"), &request, now).unwrap();
    settle_all(&mut table, &Ok(at(1)));
    table.renew();
    let away = EdgeError::new(Code::Unavailable, "away");
    let Some(Errand::Register { asked, .. }) = table.next() else { panic!("it is asked again") };
    assert!(!table.settle(number, asked - 1, Ok(at(2))), "an answer to an earlier question");
    assert!(!table.settle(number, asked, Err(away.clone())), "nothing can be said yet");
    assert_eq!(state(&live), State::Refused(away));
    table.retry();
    let Some(Errand::Register { asked, .. }) = table.next() else { panic!("it is tried again") };
    assert!(table.settle(number, asked, Ok(at(9))), "now they must start anew");
    table.release(number, now);
    table.renew();
    assert!(table.next().is_none(), "it has no holder: it is not asked for again");
}

#[test]
fn r12_a_churning_client_evicts_its_own_registrations_and_takes_no_room_of_others() {
    let mut table = table(Room { total: 10, per_tenant: 6 });
    let now = Instant::now();
    let request = |n: usize| SubscriptionRequest::collection("w", format!("c{n}"));
    let kept = table.hold(&tenant("kept"), &request(0), now).unwrap();
    let (lingers, _) = table.hold(&tenant("lingers"), &request(0), now).unwrap();
    settle_all(&mut table, &Ok(at(1)));
    table.release(lingers, now);
    let mut unregistered = 0;
    for n in 0..1_000 {
        let (number, _) = table.hold(&tenant("churns"), &request(n), now).unwrap();
        while let Some(errand) = table.next() {
            match errand {
                Errand::Register { number, asked, .. } => drop(table.settle(number, asked, Ok(at(1)))),
                Errand::Unregister { tenant, is_eviction, .. } => {
                    assert_eq!((tenant.as_str(), is_eviction), ("churns", true));
                    table.evicted();
                    unregistered += 1;
                }
            }
        }
        table.release(number, now);
    }
    assert_eq!((table.entries.len(), unregistered), (8, 994));
    assert!(table.covers(lingers, &at(1)) && table.covers(kept.0, &at(1)), "the others' stay");
    for n in 0..6 {
        table.hold(&tenant("holds"), &request(n), now).unwrap();
    }
    let refused = table.hold(&tenant("holds"), &request(7), now).unwrap_err();
    assert_eq!((refused.code, refused.limit), (Code::Limit, Some(6)), "a tenant has a limit");
    settle_all(&mut table, &Ok(at(1)));
    assert!(table.hold(&tenant("late"), &request(0), now).is_ok(), "and there is room for the next tenant");
    assert_eq!(table.entries.len(), 10);
}

#[test]
fn r12_a_router_without_room_gets_it_from_registrations_without_holders() {
    let mut table = table(ROOM);
    let now = Instant::now();
    let full = EdgeError::new(Code::Limit, "full");
    let (old, _) = table.hold(&tenant("a"), &SubscriptionRequest::collection("w", "old"), now).unwrap();
    settle_all(&mut table, &Ok(at(1)));
    table.release(old, now);
    let (_, wanted) = table.hold(&tenant("b"), &SubscriptionRequest::collection("w", "new"), now).unwrap();
    let Some(Errand::Register { number, asked, .. }) = table.next() else { panic!() };
    table.settle(number, asked, Err(full.clone()));
    assert!(matches!(table.next(), Some(Errand::Unregister { is_eviction: true, .. })));
    assert!(table.next().is_none(), "the room is not free yet");
    table.evicted();
    let Some(Errand::Register { number, asked, .. }) = table.next() else { panic!() };
    table.settle(number, asked, Err(full.clone()));
    assert_eq!(state(&wanted), State::Refused(full), "nothing more can go");
}

#[test]
fn r13_tenants_and_renewals_take_turns() {
    let mut table = table(ROOM);
    let now = Instant::now();
    for n in 0..20 {
        table.hold(&tenant("many"), &SubscriptionRequest::collection("w", format!("c{n}")), now).unwrap();
    }
    settle_all(&mut table, &Ok(at(1)));
    table.renew();
    for n in 20..40 {
        table.hold(&tenant("many"), &SubscriptionRequest::collection("w", format!("c{n}")), now).unwrap();
    }
    table.hold(&tenant("one"), &SubscriptionRequest::collection("w", "c"), now).unwrap();
    let turn = (1..)
        .find(|_| matches!(table.next(), Some(Errand::Register { tenant, .. }) if tenant.as_str() == "one"));
    assert!(turn <= Some(5), "{turn:?}");
}

#[test]
fn r15_a_gap_moves_the_positions_of_its_own_registrations_only() {
    let mut table = table(ROOM);
    let now = Instant::now();
    let hold = |table: &mut Table, name: &str| {
        table.hold(&tenant("a"), &SubscriptionRequest::collection("w", name), now).unwrap().0
    };
    let one = hold(&mut table, "one");
    let two = hold(&mut table, "two");
    settle_all(&mut table, &Ok(at(1)));
    let [ours, theirs] =
        [format!("g:i:{one}"), format!("g:j:{one}")].map(|id| SubscriptionId::new(id).unwrap());
    assert_eq!(
        table.gap(&[ours.clone(), theirs], |_| at(7)),
        None,
        "another process's: all may be concerned"
    );
    assert_eq!(table.gap(&[ours], |_| at(7)), Some(HashSet::from([one])));
    assert!(!table.covers(one, &at(6)) && table.covers(one, &at(7)) && table.covers(two, &at(1)));
}
