//! `--once-every`: a slot, and a token of a window that a run which fails returns.

use std::time::Duration;

use crate::error::CliError;
use crate::exec::args::{Every, ExecArgs};
use pg_limiter::{Call, Error, InvalidLimit, Item, LeaseId, Limit, Limiter, Limits};

/// The name of the limit whose token a run keeps unless it fails.
pub(super) fn run_name(args: &ExecArgs) -> String {
    format!("{}.run", args.name)
}

/// The name of the limit that counts the attempts.
pub(super) fn attempts_name(args: &ExecArgs) -> String {
    format!("{}.attempts", args.name)
}

pub(super) fn limits(args: &ExecArgs, every: Every) -> Result<Limits, CliError> {
    if let Every::Length(length) = every
        && (args.zone.is_some() || args.anchor.is_some())
    {
        return Err(CliError::usage(format!(
            "--zone and --anchor do not apply to the length {}: use a whole number of hours, days, weeks, months or years, \
             such as --once-every \"1 day\"",
            pg_limiter::Length::from(length)
        )));
    }
    let define = || {
        Limits::new()
            .define(&args.name, Limit::concurrency(1).lease(args.lease))?
            .define(&run_name(args), window(args, every, 1)?)?
            .define(&attempts_name(args), window(args, every, args.attempts)?)
    };
    define().map_err(CliError::usage)
}

fn window(args: &ExecArgs, every: Every, tokens: u32) -> Result<Limit, InvalidLimit> {
    match every {
        Every::Length(length) => Limit::fixed_window(tokens, length).start(Duration::ZERO).build(),
        Every::Calendar(span) => {
            let mut limit = Limit::calendar(tokens, span);
            if let Some(zone) = &args.zone {
                limit = limit.zone(zone);
            }
            if let Some(anchor) = &args.anchor {
                limit = limit.anchor(anchor);
            }
            limit.build()
        }
    }
}

/// The slots of a run and, if it runs once in a window, its tokens. They are taken together or not at all.
pub(super) fn call(args: &ExecArgs, id: LeaseId) -> Call {
    let mut items = vec![slots(args)];
    if args.once_every.is_some() {
        items.extend([run_name(args), attempts_name(args)].map(|name| Item::new(name, args.key.as_str())));
    }
    Call::from(items).lease(id)
}

fn slots(args: &ExecArgs) -> Item {
    Item::new(args.name.as_str(), args.key.as_str()).count(args.count)
}

/// Releases the slot and returns these tokens, in one transaction. Returns whether the slot was held. If it was not, another run
/// may have begun, and the tokens stay spent.
pub(super) async fn give_back(
    limiter: &Limiter,
    args: &ExecArgs,
    id: LeaseId,
    names: &[String],
) -> Result<bool, Error> {
    let within = limiter.clone();
    let slots = Call::from(slots(args)).lease(id);
    let tokens: Vec<Item> = names.iter().map(|name| Item::new(name.as_str(), args.key.as_str())).collect();
    let work = async move |tx: &mut sqlx::PgConnection| {
        let was_held = within.within(tx).release(slots.clone()).await?;
        if was_held {
            within.within(tx).credit(tokens.clone()).await?;
        }
        Ok::<_, Error>(was_held)
    };
    limiter.transaction(work).await
}
