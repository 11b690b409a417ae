//! The tests of the tests: for every planted bug some law, or the model, must cry out.

use firth_engine::{Engine, Hooks, Mutation};
use firth_laws::model::{agree, operations};
use firth_laws::{LAWS, Law};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngSeed, TestRunner};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn is_caught(
    test: impl FnOnce(Engine) -> std::pin::Pin<Box<dyn Future<Output = ()>>>,
    mutation: Mutation,
) -> bool {
    let engine = Engine::memory_with(Hooks { mutation: Some(mutation), crash: None });
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    catch_unwind(AssertUnwindSafe(|| runtime.block_on(test(engine)))).is_err()
}

#[test]
fn every_planted_bug_is_caught_by_a_law() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for mutation in Mutation::ALL {
        let catchers =
            LAWS.iter().filter(|(_, law): &&(&str, Law)| is_caught(|engine| law(engine), *mutation));
        let names: Vec<_> = catchers.map(|(name, _)| *name).collect();
        println!("{mutation:?}: {names:?}");
        if names.is_empty() {
            missed.push(mutation);
        }
    }
    drop(std::panic::take_hook());
    assert!(missed.is_empty(), "no law catches {missed:?}");
}

#[test]
fn the_model_catches_what_it_models() {
    std::panic::set_hook(Box::new(|_| {}));
    let config = Config { rng_seed: RngSeed::Fixed(3), failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let sequences: Vec<_> =
        (0..200).map(|_| operations(120).new_tree(&mut runner).unwrap().current()).collect();
    let modelled = [
        Mutation::SkipFenceOnCommit,
        Mutation::SkipFenceOnOpen,
        Mutation::RenewAnything,
        Mutation::LoseDeadLetter,
        Mutation::LoseRetry,
        Mutation::KeepDoneDue,
        Mutation::ForgetAttempts,
        Mutation::LoseTaken,
        Mutation::TrimToHighestFrontier,
        Mutation::TrimDue,
        Mutation::ForgetProducer,
        Mutation::HalfBatch,
        Mutation::NoDelay,
        Mutation::KeepChangedDelayed,
        Mutation::ReplayToAll,
        Mutation::ReplayKeepsDead,
        Mutation::ShareDue,
        Mutation::ResetWithoutFence,
        Mutation::ForgetCrashes,
    ];
    let is_missed = |mutation: &&Mutation| {
        !sequences.iter().any(|ops| is_caught(|engine| Box::pin(agree(engine, ops.clone())), **mutation))
    };
    let missed: Vec<_> = modelled.iter().filter(is_missed).collect();
    drop(std::panic::take_hook());
    assert!(missed.is_empty(), "the model misses {missed:?}");
}
