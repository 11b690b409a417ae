//! How long a session lasts: its token runs out, is renewed, is taken away.

use super::*;
use crate::auth::{Collections, Keys, Origins};
use crate::{Config, Edge};
use firth_router::Tenant;

fn grant(tenant: &str, left: Option<Duration>) -> Grant {
    let tenant = Tenant::new(tenant).unwrap();
    let expires = left.map(|left| SystemTime::now() + left);
    Grant { tenant, user: None, collections: Collections::ALL, expires, root: [0; 32] }
}

/// With what it was closed, if it was.
fn closed(session: &mut Session) -> Option<(u16, &'static str)> {
    loop {
        let step = session.take();
        session.written();
        if step.close.is_some() || step.messages.is_empty() {
            return step.close;
        }
    }
}

/// What a carrier does when its timer fires.
async fn wait_for_deadline(session: &mut Session) {
    tokio::time::sleep_until(session.deadline(false)).await;
    session.on_time(false);
}

#[tokio::test(start_paused = true)]
async fn r18_a_session_ends_when_its_token_runs_out_and_not_before() {
    let hub = Hub::start(Config::default()).unwrap();
    let mut session = hub.join(grant("t0", Some(Duration::from_secs(5))), None).unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    session.on_time(false);
    assert_eq!(closed(&mut session), None);
    wait_for_deadline(&mut session).await;
    assert_eq!(closed(&mut session), Some((4401, "the token has run out")));
}

#[tokio::test(start_paused = true)]
async fn r18_a_renewed_token_prolongs_the_session_and_never_changes_its_tenant() {
    let hub = Hub::start(Config::default()).unwrap();
    let mut session = hub.join(grant("t0", Some(Duration::from_secs(5))), None).unwrap();
    let deadline = session.deadline(true);
    assert!(session.regrant(grant("t1", None)).is_err());
    assert_eq!(session.deadline(true), deadline);
    session.regrant(grant("t0", None)).unwrap();
    wait_for_deadline(&mut session).await;
    assert_eq!(closed(&mut session), None);
    hub.end_unless(|grant| grant.tenant.as_str() != "t0");
    assert_eq!(closed(&mut session), Some((4401, "the token is not valid any more")));
}

/// Keys are replaced before a renewal or behind it, and then end the session: never between the
/// check of the token and its effect.
#[tokio::test(flavor = "multi_thread")]
async fn r18_keys_cannot_be_replaced_while_a_token_is_renewed() {
    let keys = Keys::default().with_token("t", Tenant::new("t").unwrap(), None, Collections::ALL);
    let edge = Edge::new(Hub::start(Config::default()).unwrap(), keys, Origins::same_host());
    let mut session = edge.admit(Some("t"), None).unwrap();
    let hub = edge.hub().clone();
    std::thread::scope(|scope| {
        // A renewal has checked the token by now, and waits for this lock.
        let core = hub.core();
        let renews = scope.spawn(|| edge.renew(&mut session, Some("t")));
        let is_in_use = || {
            std::thread::sleep(Duration::from_millis(1));
            edge.keys_are_in_use()
        };
        let until = Instant::now() + Duration::from_secs(20);
        while !(0..20).all(|_| is_in_use()) {
            assert!(Instant::now() < until, "the keys can be replaced between the check and its effect");
        }
        drop(core);
        renews.join().unwrap().unwrap();
    });
    edge.set_keys(Keys::default());
    assert_eq!(closed(&mut session).map(|(code, _)| code), Some(4401));
}
