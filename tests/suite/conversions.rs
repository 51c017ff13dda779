//! In a handler, one `?` converts every error of the library.

use pg_limiter::queue::{Job, JobState, Queue};
use pg_limiter::{
    Calendar, Denied, Error, InvalidCall, InvalidJob, InvalidLimit, Item, Length, Limit, Limiter, Limits,
};

/// A value that serde cannot serialize.
struct Unserializable;

impl serde::Serialize for Unserializable {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("not for JSON"))
    }
}

fn limiter() -> Limiter {
    let pool = pg_limiter::sqlx::PgPool::connect_lazy("postgres://nobody@127.0.0.1:1/nowhere").expect("a URL");
    Limiter::new(pool, Limits::new())
}

/// Each error, as `?` in a function with the library's own error converts it.
async fn errors() -> Vec<Error> {
    let limiter = limiter();
    let plan = || -> Result<Limit, Error> { Ok(Limit::token_bucket(-1, std::time::Duration::ZERO).build()?) };
    let defined = || -> Result<Limits, Error> { Ok(Limits::new().define("", Limit::gate())?) };
    let every = || -> Result<Calendar, Error> { Ok("1 fortnight".parse::<Calendar>()?) };
    let period = || -> Result<Length, Error> { Ok("1 month".parse::<Length>()?) };
    let job = || -> Result<Job, Error> { Ok(Job::new(("a", "k"), &Unserializable)?) };
    let queue = || -> Result<Queue, Error> { Ok(Queue::new(&limiter, "")?) };
    let state = || -> Result<JobState, Error> { Ok("asleep".parse::<JobState>()?) };
    let call = async { limiter.limit(Item::new("unknown", "k")).await?.enforce() };
    vec![
        plan().map(|_| ()).expect_err("a limit"),
        defined().map(|_| ()).expect_err("a name"),
        every().map(|_| ()).expect_err("a calendar"),
        period().map(|_| ()).expect_err("a length"),
        job().map(|_| ()).expect_err("a job"),
        queue().map(|_| ()).expect_err("a queue"),
        state().map(|_| ()).expect_err("a state"),
        call.await.map(|_| ()).expect_err("a call"),
    ]
}

#[tokio::test]
async fn every_error_of_a_handler_becomes_the_error_of_the_library() {
    let errors = errors().await;
    let codes: Vec<&str> = errors.iter().map(Error::code).collect();
    let (limit, job) = ("invalid_limit", "invalid_job");
    assert_eq!(codes, [limit, limit, limit, limit, job, job, job, "invalid"]);
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    for (text, words) in
        texts.iter().zip(["-1", "name", "1 fortnight", "1 month", "not for JSON", "queue", "asleep", "unknown"])
    {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
}

fn is_into<E: std::error::Error + Send + Sync + 'static, T: From<E>>() {}

#[test]
fn errors_convert_into_each_other() {
    is_into::<InvalidCall, Error>();
    is_into::<InvalidLimit, Error>();
    is_into::<InvalidJob, Error>();
    is_into::<Denied, Error>();
    is_into::<pg_limiter::InvalidLength, InvalidLimit>();
}

/// A handler may return each of them on its own.
#[cfg(feature = "axum")]
#[tokio::test]
async fn errors_are_responses_of_axum() {
    use axum::response::{IntoResponse, Response};
    let status = |response: Response| response.status().as_u16();
    assert_eq!(status(InvalidJob::RunAtPast.into_response()), 500);
    assert_eq!(
        status(Limit::token_bucket(-1, std::time::Duration::ZERO).build().expect_err("invalid").into_response()),
        500
    );
    assert_eq!(status(InvalidCall::IdempotencyKeyReused.into_response()), 422);
    assert_eq!(status(InvalidCall::Empty.into_response()), 500);
    for error in errors().await {
        let expected = if error.code() == "invalid" { 500 } else { status(error.into_response()) };
        assert_eq!(expected, 500);
    }
}

#[cfg(feature = "tonic")]
#[test]
fn errors_are_statuses_of_tonic() {
    use tonic::{Code, Status};
    fn job() -> Result<Job, Status> {
        Ok(Job::new(("a", "k"), &Unserializable)?)
    }
    fn plan() -> Result<Limit, Status> {
        Ok(Limit::token_bucket(-1, std::time::Duration::ZERO).build()?)
    }
    fn call() -> Result<(), Status> {
        Err(InvalidCall::IdempotencyKeyReused)?
    }
    assert_eq!(job().map(|_| ()).expect_err("a job").code(), Code::Internal);
    assert_eq!(plan().map(|_| ()).expect_err("a limit").code(), Code::Internal);
    assert_eq!(call().expect_err("a call").code(), Code::InvalidArgument);
}
