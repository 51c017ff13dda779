//! The limits that apply to a request, and the decision on it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use http::request::Parts;
use http::{HeaderMap, Response};

use crate::call::{Decision, Item, LimitRef};
use crate::error::Error;
use crate::limit::{Kind, Limit, Tokens};
use crate::limiter::{Acquired, Lease, Limiter};
use crate::web::answer::{Calendars, Fields, Standing, error_response, standings};
use crate::web::keys::{KeyExtractor, NoKey};
use crate::web::layer::OnFailure;
use crate::web::log;

pub(super) type Cost = Arc<dyn Fn(&Parts) -> Tokens + Send + Sync>;
pub(super) type Predicate = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;

/// A limit of the layer, with its key extractor and cost.
#[derive(Clone)]
pub(super) struct Rule {
    pub(super) limit: LimitRef,
    pub(super) key: Arc<dyn KeyExtractor>,
    pub(super) cost: Option<Cost>,
}

#[derive(Clone)]
pub(in crate::web) struct Rules {
    pub(in crate::web) limiter: Limiter,
    pub(super) rules: Vec<Rule>,
    pub(super) cost: Option<Cost>,
    pub(super) skip: Option<Predicate>,
    pub(super) on_failure: OnFailure,
    pub(in crate::web) shadow: bool,
    pub(super) in_handler: bool,
    pub(super) fields: Fields,
    pub(in crate::web) shadow_denials: Arc<AtomicU64>,
    calendars: Arc<Calendars>,
}

/// The decision on a request.
pub(super) enum Verdict {
    /// Call the inner service, and add these limits to the fields of its response. The lease holds the request's slots until
    /// the response has been sent.
    Pass(Vec<Standing>, Option<Lease>),
    Refuse(Response<String>),
}

impl Rules {
    pub(super) fn new(limiter: Limiter) -> Self {
        Self {
            limiter,
            rules: Vec::new(),
            cost: None,
            skip: None,
            on_failure: OnFailure::default(),
            shadow: false,
            in_handler: false,
            fields: Fields { draft: true, x_ratelimit: false },
            shadow_denials: Arc::default(),
            calendars: Arc::default(),
        }
    }

    /// The items that a request is charged: none if it is skipped or no limit applies. In shadow mode, a request without a
    /// key is charged nothing.
    pub(super) fn items(&self, request: &Parts) -> Result<Vec<Item>, NoKey> {
        if self.skip.as_ref().is_some_and(|skip| skip(request)) {
            return Ok(Vec::new());
        }
        match self.rules.iter().filter_map(|rule| self.item(rule, request).transpose()).collect() {
            Err(no_key) if self.shadow => {
                log::let_through_without_key(&no_key);
                Ok(Vec::new())
            }
            items => items,
        }
    }

    fn item(&self, rule: &Rule, request: &Parts) -> Result<Option<Item>, NoKey> {
        let Some(key) = rule.key.key(request)? else { return Ok(None) };
        let item = Item::new(rule.limit.clone(), key);
        let limit = rule.limit.inline.as_ref().or_else(|| self.limiter.limits().get(&rule.limit.name));
        // The cost of a request in tokens is no number of slots.
        let common = self.cost.as_ref().filter(|_| limit.is_none_or(|limit| limit.kind() != Kind::Concurrency));
        Ok(Some(match rule.cost.as_ref().or(common) {
            Some(cost) => item.count(cost(request)),
            None => item,
        }))
    }

    /// Decides in a transaction of the limiter's own.
    pub(super) async fn decide(&self, items: Vec<Item>) -> Verdict {
        if items.is_empty() {
            return Verdict::Pass(Vec::new(), None);
        }
        let limits = self.limits(&items);
        let decided = if limits.iter().any(|limit| limit.kind() == Kind::Concurrency) {
            self.limiter.acquire(items).await.map(Acquired::into_parts)
        } else {
            self.limiter.limit(items).await.map(|decision| (decision, None))
        };
        match decided {
            Ok((decision, lease)) => {
                let lease = lease.map(Lease::keep_renewed);
                self.learn_windows(&limits).await;
                self.verdict(&limits, decision, lease)
            }
            Err(error) if self.lets_through(&error) => Verdict::Pass(Vec::new(), None),
            Err(error) => Verdict::Refuse(error_response(&error)),
        }
    }

    fn verdict(&self, limits: &[Limit], decision: Decision, lease: Option<Lease>) -> Verdict {
        let standings = self.note(limits, &decision);
        if self.shadow {
            return Verdict::Pass(standings, lease);
        }
        match decision.enforce() {
            Ok(_) => Verdict::Pass(standings, lease),
            Err(denied) => {
                let mut response = error_response(&denied);
                self.add_fields(response.headers_mut(), &standings);
                Verdict::Refuse(response)
            }
        }
    }

    /// Whether a request without a decision passes. If it does, this logs the error.
    pub(in crate::web) fn lets_through(&self, error: &Error) -> bool {
        let why = match (self.shadow, self.on_failure) {
            (true, _) => "shadow mode",
            // An invalid call is not a failure of the database: the request or the program is wrong.
            (false, OnFailure::Open) if !matches!(error, Error::Invalid(_)) => "on_failure is Open",
            (false, _) => return false,
        };
        log::let_through(error, why);
        true
    }

    /// The limits of these items, in their order. All are defined: the layer has looked them up, or the call was decided.
    pub(in crate::web) fn limits(&self, items: &[Item]) -> Vec<Limit> {
        let by_name = self.limiter.limits();
        items.iter().filter_map(|item| item.limit.inline.or_else(|| by_name.get(&item.limit.name).copied())).collect()
    }

    /// Counts and logs a denial. Returns the limits for the fields of the response: none in shadow mode.
    pub(in crate::web) fn note(&self, limits: &[Limit], decision: &Decision) -> Vec<Standing> {
        match (self.shadow, decision.is_denied()) {
            (true, true) => log::shadow_denied(&self.shadow_denials, decision),
            (false, true) => log::denied(decision),
            (_, false) => {}
        }
        if self.shadow { Vec::new() } else { standings(limits, decision, &self.calendars) }
    }

    /// Asks for the present windows of calendar windows, unless they are known or not shown.
    pub(in crate::web) async fn learn_windows(&self, limits: &[Limit]) {
        if !self.shadow && (self.fields.draft || self.fields.x_ratelimit) {
            self.calendars.learn(&self.limiter, limits).await;
        }
    }

    pub(in crate::web) fn add_fields(&self, headers: &mut HeaderMap, standings: &[Standing]) {
        self.fields.add(headers, standings);
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits: Vec<&str> = self.rules.iter().map(|rule| &*rule.limit.name).collect();
        f.debug_struct("Rules")
            .field("limits", &limits)
            .field("on_failure", &self.on_failure)
            .field("shadow", &self.shadow)
            .field("in_handler", &self.in_handler)
            .field("fields", &self.fields)
            .finish_non_exhaustive()
    }
}
