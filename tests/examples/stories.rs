//! The results of the example programs.

use std::time::Duration;

use crate::login_throttle::LogIn;
use crate::{
    allowances, bans, cooldown, in_transaction, llm_tokens, login_throttle, migrate_by_hand, per_user_and_per_org,
};
use crate::{outcome_of, signup_global, third_party_api, usage_alerts};

#[tokio::test]
async fn in_transaction_a_message_and_its_tokens_commit_or_roll_back_together() {
    let story = outcome_of(in_transaction::run).await;
    assert_eq!((story.sent, story.denied), (3, 2));
    assert_eq!(story.left, [0.0, 3.0, 97.0]);
}

#[tokio::test]
async fn login_throttle_counts_failures_and_resets_after_success() {
    use LogIn::{ComeBackIn, Welcome, WrongPassword};
    let story = outcome_of(login_throttle::run).await;
    assert_eq!(story.ann, [WrongPassword, WrongPassword, Welcome]);
    assert_eq!(story.ann_left, [3.0, 5.0]);
    // The sixth guess was right.
    let (last, guesses) = story.guesser.split_last().expect("guesses");
    assert_eq!(guesses, [WrongPassword; 5]);
    assert!(matches!(last, ComeBackIn(wait) if *wait <= Duration::from_secs(180)), "{last:?}");
    // Simultaneous attempts all pass the check, and leave a debt.
    let (looks, left) = story.at_once;
    assert!(looks > 5, "{looks}");
    assert_eq!(left, 5.0 - looks as f64);
    assert_eq!(story.at_once_strictly, (5, 0.0));
    assert_eq!(story.after_success, [50.0, 5.0]);
    assert_eq!(story.sessions, 2);
}

#[tokio::test]
async fn llm_tokens_are_estimated_and_then_settled() {
    let story = outcome_of(llm_tokens::run).await;
    assert_eq!(story.left, [[59.0, 9_000.0], [58.0, 5_000.0], [58.0, 5_000.0]]);
    assert_eq!(story.settled, [true, false]);
    assert_eq!(story.too_few, (false, [57.0, 2_000.0]));
    assert_eq!(story.wait, Duration::from_millis(600));
    assert!(story.never.contains("50000") && story.never.contains("10000"), "{}", story.never);
    // Denied requests write no row.
    assert_eq!(story.used, (1_000 + 4_000 + 3_000 + 10_100, 5));
}

#[tokio::test]
async fn signup_global_admits_exactly_the_limit_under_concurrency() {
    let story = outcome_of(signup_global::run).await;
    assert_eq!(story.shards, 10);
    let counts = |counts: &std::collections::BTreeMap<String, usize>| {
        counts.iter().map(|(what, count)| (what.clone(), *count)).collect::<Vec<_>>()
    };
    assert_eq!(counts(&story.bot), [("accepted".into(), 5), ("denied by sign_ups_per_address".into(), 25)]);
    assert_eq!(counts(&story.people), [("accepted".into(), 95), ("denied by sign_ups".into(), 55)]);
    assert!(!story.twice);
    assert_eq!((story.accounts, story.left), (100, 0.0));
}

#[tokio::test]
async fn third_party_api_makes_the_requests_of_all_jobs() {
    let seen = outcome_of(async |pool: &sqlx::PgPool| third_party_api::run(pool, 3, 12).await).await;
    let admitted: Vec<usize> = seen.values().map(|seen| seen.admitted.len()).collect();
    assert_eq!(admitted, [4; 3]);
}

#[tokio::test]
async fn usage_alerts_are_written_once_each() {
    let story = outcome_of(usage_alerts::run).await;
    assert_eq!(story.sent, 20);
    let alerts: Vec<(&str, i64)> = story.alerts.iter().map(|(alert, count)| (&**alert, *count)).collect();
    assert_eq!(alerts, [("emails: 80 % used", 1), ("emails: all used", 1)]);
}

#[tokio::test]
async fn per_user_and_per_org_charges_both_or_none() {
    let story = outcome_of(per_user_and_per_org::run).await;
    assert_eq!(story.ann, (10, vec!["messages_per_user".to_owned()]));
    assert_eq!(story.bob, (2, vec!["messages_per_org".to_owned()]));
    assert_eq!(story.bob_left, 8.0);
    assert_eq!(story.upgraded, (88.0, 8));
    assert_eq!(story.messages, 20);
}

#[tokio::test]
async fn cooldown_spaces_mails_and_limits_them_per_day() {
    let story = outcome_of(cooldown::run).await;
    assert_eq!(story.at_once.denied_by(), ["password_mail_pause"]);
    let wait = story.at_once.retry_after().expect("a time");
    assert!(wait <= Duration::from_secs(30), "{wait:?}");
    let (sent, denial) = story.patient;
    assert_eq!(sent, 5);
    assert!(denial.denied_by().contains(&"password_mails_a_day"), "{denial:?}");
    assert_eq!(story.outbox, 6);
}

#[tokio::test]
async fn migrate_by_hand_grants_the_application_only_the_rights_it_needs() {
    let story = outcome_of(migrate_by_hand::run).await;
    assert_eq!(story.files.len(), 3, "{:?}", story.files);
    assert_eq!(story.applied, [3, 3]);
    assert_eq!(story.drift, [""; 0], "a later migrate() has nothing to do");
    assert_eq!(story.allowed, [true, true, false]);
    assert_eq!(story.orders, 2);
    assert_eq!(story.by_hand.len(), 5);
    for (sql, code) in story.by_hand {
        assert_eq!(code, "42501", "{sql}");
    }
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn axum_api_limits_addresses_in_a_layer_and_accounts_in_the_transaction() {
    let story = outcome_of(crate::axum_api::run).await;
    assert_eq!(story.ann, [201, 201, 201, 429]);
    assert_eq!(story.policies, ["\"per_account\";q=3;w=60", "\"per_address\";q=10;w=10"]);
    assert!((1..=20).contains(&story.retry_after), "{}", story.retry_after);
    assert!(story.problem.contains(r#""violated-policies":["per_account"]"#), "{}", story.problem);
    assert_eq!(story.messages, "message 1\nmessage 2\nmessage 3");
    // The limit of the peer address applies: 10 at once, then 1 per second. The forged addresses gain nothing.
    let (last, served) = story.spoofer.split_last().expect("statuses");
    assert!(*last == 429 && served.len() >= 10 && served.iter().all(|status| *status == 200), "{:?}", story.spoofer);
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn axum_plans_are_settled_and_a_limit_follows_its_file() {
    let story = outcome_of(crate::axum_plans::run).await;
    assert_eq!(story.ann, [(200, 850.0), (429, 850.0), (200, 9_700.0)]);
    assert_eq!(story.addresses, [vec![200, 200, 200, 200, 429], vec![429; 5], vec![200; 5]]);
    assert!(story.mistake.contains("limits.toml: limit \"per_address\""), "{}", story.mistake);
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn websockets_hold_their_slots_over_two_processes() {
    let story = outcome_of(crate::websockets::run).await;
    assert_eq!(story.denied, [Some(429), None]);
    assert_eq!(story.free, [0.0, 2.0]);
    assert_eq!(story.messages, [800.0, 897.0]);
}

#[cfg(feature = "tonic")]
#[tokio::test]
async fn grpc_limits_addresses_failed_log_ins_and_messages_in_the_transaction() {
    use tonic::Code::{InvalidArgument, Ok, ResourceExhausted, Unauthenticated};
    let story = outcome_of(crate::grpc::run).await;
    assert_eq!(story.messages, [Ok, Ok, Ok, ResourceExhausted]);
    assert_eq!(story.violations, ["messages"]);
    assert!(
        story.retry_delay > Duration::ZERO && story.retry_delay <= Duration::from_secs(1200),
        "{:?}",
        story.retry_delay
    );
    assert!(story.ratelimit.iter().any(|field| field.starts_with("\"messages\";r=0;t=")), "{:?}", story.ratelimit);
    assert_eq!(story.stored, 3);
    assert_eq!(story.log_ins, [Ok, Unauthenticated, Ok, Unauthenticated]);
    assert_eq!(story.failed_log_ins_left, 8.0);
    let (last, before) = story.flood.split_last().expect("calls");
    assert!(*last == ResourceExhausted && before.iter().all(|code| *code == InvalidArgument), "{:?}", story.flood);
    assert!(before.len() >= 12, "{:?}", story.flood);
}

#[tokio::test]
async fn bans_grow_and_a_banned_address_is_charged_nothing() {
    use bans::Answer;
    let story = outcome_of(bans::run).await;
    assert_eq!((story.served, story.denied), (5, 3));
    assert_eq!(story.bans, [60, 240, 960].map(Duration::from_secs));
    assert_eq!((story.neighbour, story.pardoned), (Answer::Served, Answer::Served));
}

#[cfg(feature = "reqwest")]
#[tokio::test]
async fn outgoing_requests_of_two_processes_pause_after_one_429() {
    let story = outcome_of(crate::outgoing::run).await;
    // Every request was served in the end, and the third party refused one of them, once.
    assert_eq!(story.statuses, [vec![200; 6], vec![200; 2]]);
    let (served, sixth_on) = story.third_party.served.split_at(5);
    assert_eq!(
        (served, sixth_on.len()),
        (&["one".to_owned(), "one".into(), "one".into(), "one".into(), "one".into()][..], 3)
    );
    assert_eq!((story.third_party.refused, story.third_party.too_early), (vec!["one".to_owned()], 0));
}

#[tokio::test]
async fn allowances_of_two_processes_never_exceed_the_limit() {
    let story = outcome_of(allowances::run).await;
    assert_eq!(story.accepted, [6_000, 8_000]);
    assert_eq!((story.left, story.again), (6_000.0, 6_000));
    assert!(story.statements < 200, "{} statements", story.statements);
}
