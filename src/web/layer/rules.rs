//! The limits that apply to a request, and the decision on it.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::Response;
use http::request::Parts;

use crate::call::{Decision, Item, LimitRef};
use crate::error::Error;
use crate::limit::{Kind, Limit, Tokens};
use crate::limiter::{Acquired, Lease, Limiter, OnFailure};
use crate::web::address::{ClientAddress, Networks, Unreadable};
use crate::web::answer::{
    Context, Fields, Refusal, Standing, Windows, add_denied, denied_standings, own_denial, set_retry_after, standings,
};
use crate::web::keys::{KeyExtractor, NoKey, storable};
use crate::web::layer::settlement::{Settle, UnderWay};
use crate::web::layer::trial::Trial;
use crate::web::log;

pub(super) type BoxError = Box<dyn StdError + Send + Sync>;
pub(super) type Cost = Arc<dyn Fn(&Parts) -> Tokens + Send + Sync>;
pub(super) type Predicate = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
pub(super) type Choose = Arc<dyn Fn(&Parts) -> Vec<Item> + Send + Sync>;
pub(super) type Chosen = Pin<Box<dyn Future<Output = Result<Vec<Item>, BoxError>> + Send>>;
pub(super) type ChooseAsync = Arc<dyn Fn(&Parts) -> Chosen + Send + Sync>;

/// How the layer finds items of a request.
#[derive(Clone)]
pub(super) enum Rule {
    Keyed(Keyed),
    Chosen(Choose),
    ChosenAsync(ChooseAsync),
}

/// A limit of the layer, with its key extractor and cost.
#[derive(Clone)]
pub(super) struct Keyed {
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
    pub(super) denied_networks: Vec<(ClientAddress, Networks)>,
    pub(super) allowed_networks: Vec<(ClientAddress, Networks)>,
    pub(super) on_failure: OnFailure,
    pub(in crate::web) shadow: bool,
    /// The limits that are in shadow mode while others are enforced, with their numbers of denials.
    pub(super) shadow_limits: BTreeMap<Arc<str>, Arc<AtomicU64>>,
    pub(super) settles: Vec<Settle>,
    pub(super) refund_incomplete: bool,
    pub(super) in_handler: bool,
    pub(super) fields: Fields,
    pub(in crate::web) shadow_denials: Arc<AtomicU64>,
    pub(super) settle_failures: Arc<AtomicU64>,
    pub(super) settling: UnderWay,
    windows: Arc<Windows>,
}

/// The decision on a request.
pub(super) enum Verdict {
    Pass(Passed),
    /// With the fields of the response.
    Refuse(Refusal, Vec<Standing>),
}

/// The tokens and slots of a request that passes.
#[derive(Default)]
pub(super) struct Passed {
    /// For the fields of the response.
    pub(super) standings: Vec<Standing>,
    /// The items of which tokens were taken.
    pub(super) taken: Vec<Item>,
    /// Holds the request's slots.
    pub(super) lease: Option<Lease>,
    /// The limits in shadow mode.
    pub(super) trial: Option<Trial>,
}

/// Why a request has no items.
enum NoItems {
    NoKey(NoKey),
    /// Its address is in a denied network.
    DeniedNetwork,
    /// A closure that chooses limits failed. The error is already logged.
    NotChosen,
}

impl From<NoKey> for NoItems {
    fn from(no_key: NoKey) -> Self {
        Self::NoKey(no_key)
    }
}

impl Rules {
    pub(super) fn new(limiter: Limiter) -> Self {
        Self {
            limiter,
            rules: Vec::new(),
            cost: None,
            skip: None,
            denied_networks: Vec::new(),
            allowed_networks: Vec::new(),
            on_failure: OnFailure::default(),
            shadow: false,
            shadow_limits: BTreeMap::new(),
            settles: Vec::new(),
            refund_incomplete: false,
            in_handler: false,
            fields: Fields { draft: true, x_ratelimit: false },
            shadow_denials: Arc::default(),
            settle_failures: Arc::default(),
            settling: UnderWay::default(),
            windows: Arc::default(),
        }
    }

    /// The items that a request is charged: none if it is skipped, its network is allowed, or no limit applies. In shadow mode,
    /// a request that would be refused is charged nothing.
    pub(super) async fn items(&self, request: &Parts) -> Result<Vec<Item>, Refusal> {
        if self.skip.as_ref().is_some_and(|skip| skip(request)) {
            return Ok(Vec::new());
        }
        match self.find_items(request).await {
            Ok(items) => Ok(items),
            Err(NoItems::NoKey(no_key)) if self.shadow => {
                log::let_through_without_key(&no_key);
                Ok(Vec::new())
            }
            Err(NoItems::DeniedNetwork) if self.shadow => {
                self.count_shadow_denial();
                log::denied_network("in shadow mode: let through");
                Ok(Vec::new())
            }
            Err(NoItems::NoKey(no_key)) => Err(Refusal::without_key(&no_key)),
            Err(NoItems::DeniedNetwork) => {
                log::denied_network("refused");
                Err(Refusal::DeniedNetwork)
            }
            Err(NoItems::NotChosen) => Err(Refusal::NoDecision),
        }
    }

    async fn find_items(&self, request: &Parts) -> Result<Vec<Item>, NoItems> {
        if is_in(&self.denied_networks, request, Unreadable::Reject)? {
            return Err(NoItems::DeniedNetwork);
        }
        if is_in(&self.allowed_networks, request, Unreadable::SharedKey)? {
            return Ok(Vec::new());
        }
        let mut items = Vec::new();
        for rule in &self.rules {
            match rule {
                Rule::Keyed(keyed) => match self.item(keyed, request) {
                    Ok(item) => items.extend(item),
                    Err(no_key) if self.shadow_limits.contains_key(&keyed.limit.name) => {
                        log::let_through_without_key(&no_key);
                    }
                    Err(no_key) => return Err(no_key.into()),
                },
                Rule::Chosen(choose) => items.extend(choose(request)),
                Rule::ChosenAsync(choose) => match choose(request).await {
                    Ok(chosen) => items.extend(chosen),
                    Err(error) => match self.passes_failures() {
                        Some(why) => log::let_through_unchosen(&*error, why),
                        None => {
                            log::not_chosen(&*error);
                            return Err(NoItems::NotChosen);
                        }
                    },
                },
            }
        }
        Ok(items)
    }

    fn item(&self, rule: &Keyed, request: &Parts) -> Result<Option<Item>, NoKey> {
        let Some(key) = rule.key.key(request)? else { return Ok(None) };
        let item = Item::new(rule.limit.clone(), key);
        let limit = rule.limit.inline.or_else(|| self.limiter.limits().get(&rule.limit.name).copied());
        // The cost of a request in tokens is no number of slots.
        let common = self.cost.as_ref().filter(|_| limit.is_none_or(|limit| limit.kind() != Kind::Concurrency));
        Ok(Some(match rule.cost.as_ref().or(common) {
            Some(cost) => item.count(cost(request)),
            None => item,
        }))
    }

    /// The items that are enforced, and those in shadow mode, without those that take no slot. The limits are passed inline, so that
    /// the whole request uses the same limits, even if they are replaced meanwhile.
    pub(in crate::web) fn divide(&self, items: &[Item]) -> (Vec<Item>, Vec<Item>) {
        let limits = self.limiter.limits();
        let takes_no_slot = |item: &Item| is_of_slots(item) && item.tokens() == 0.0;
        let items = items.iter().map(|item| Item { key: storable(item.key.clone()), ..item.clone().pinned(&limits) });
        let items = items.filter(|item| !takes_no_slot(item));
        items.partition(|item| !self.shadow_limits.contains_key(&item.limit.name))
    }

    /// Decides in a transaction of the limiter's own.
    pub(super) async fn verdict_of(self: &Arc<Self>, items: &[Item]) -> Verdict {
        let (enforced, tried) = self.divide(items);
        if enforced.is_empty() {
            return Verdict::Pass(Passed { trial: Trial::start(self, tried), ..Passed::default() });
        }
        match self.take(enforced.clone()).await {
            Ok((decision, lease)) => {
                self.learn_windows(&limits(&enforced)).await;
                self.verdict(enforced, tried, decision, lease)
            }
            Err(error) if self.lets_through(&error) => Verdict::Pass(Passed::default()),
            Err(error) => Verdict::Refuse(Refusal::of(&error), Vec::new()),
        }
    }

    /// Takes the tokens, and slots if there are any.
    pub(in crate::web) async fn take(&self, items: Vec<Item>) -> Result<(Decision, Option<Lease>), Error> {
        if items.iter().any(is_of_slots) {
            let (decision, lease) = self.limiter.acquire(items).await.map(Acquired::into_parts)?;
            Ok((decision, lease.map(Lease::keep_renewed)))
        } else {
            Ok((self.limiter.limit(items).await?, None))
        }
    }

    fn verdict(
        self: &Arc<Self>,
        enforced: Vec<Item>,
        tried: Vec<Item>,
        decision: Decision,
        lease: Option<Lease>,
    ) -> Verdict {
        let standings = self.note(&enforced, &decision);
        let taken = if decision.is_denied() { Vec::new() } else { enforced };
        if !self.shadow
            && let Err(denied) = decision.enforce()
        {
            return Verdict::Refuse(Refusal::of(&denied), standings);
        }
        Verdict::Pass(Passed { standings, taken, lease, trial: Trial::start(self, tried) })
    }

    /// Why requests without a decision pass, if they do.
    fn passes_failures(&self) -> Option<&'static str> {
        match (self.shadow, self.on_failure) {
            (true, _) => Some("shadow mode"),
            (false, OnFailure::Open) => Some("on_failure is Open"),
            (false, OnFailure::Closed) => None,
        }
    }

    /// Whether a request without a decision passes. If it does, this logs the error.
    pub(in crate::web) fn lets_through(&self, error: &Error) -> bool {
        // An invalid call or limit is not a failure of the database: the request or the program is wrong.
        let is_failure = !matches!(error, Error::Invalid(_) | Error::InvalidLimit(_));
        let why = self.passes_failures().filter(|_| self.shadow || is_failure);
        if let Some(why) = why {
            log::let_through(error, why);
        }
        why.is_some()
    }

    /// Counts and logs a denial. Returns the limits for the fields of the response: none in shadow mode.
    pub(in crate::web) fn note(&self, items: &[Item], decision: &Decision) -> Vec<Standing> {
        match (self.shadow, decision.is_denied()) {
            (true, true) => {
                self.count_shadow_denial();
                log::shadow_denied(decision);
            }
            (false, true) => log::denied(decision),
            (_, false) => {}
        }
        if self.shadow { Vec::new() } else { standings(items, decision, self.context()) }
    }

    /// Learns when the windows of these limits end, unless that is known or not shown.
    pub(in crate::web) async fn learn_windows(&self, limits: &[Limit]) {
        if !self.shadow && (self.fields.draft || self.fields.x_ratelimit) {
            self.windows.learn(&self.limiter, limits).await;
        }
    }

    /// Counts a request that would have been denied without shadow mode.
    pub(in crate::web) fn count_shadow_denial(&self) {
        self.shadow_denials.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts and logs a decision on a limit in shadow mode.
    pub(in crate::web) fn note_tried(&self, limit: &str, decision: &Decision) {
        if decision.is_denied() {
            if let Some(denials) = self.shadow_limits.get(limit) {
                denials.fetch_add(1, Ordering::Relaxed);
            }
            log::shadow_denied(decision);
        }
    }

    /// Adds the fields for a decision, and for a denial of the handler's own.
    pub(in crate::web) fn add_fields<B>(&self, response: &mut Response<B>, standings: &[Standing]) {
        if self.shadow {
            return;
        }
        let context = self.context();
        match own_denial(response) {
            None => self.fields.add(response, standings, context.now),
            Some(denied) => {
                let mut standings = standings.to_vec();
                add_denied(&mut standings, denied_standings(&denied, |name| self.limit_of(name), context));
                set_retry_after(response.headers_mut(), denied.retry_after);
                self.fields.add(response, &standings, context.now);
            }
        }
    }

    fn context(&self) -> Context<'_> {
        let secret = self.limiter.transaction_limiter().key_secret();
        Context { now: self.limiter.clock().now(), windows: &self.windows, secret }
    }

    /// The limit of this name, if the layer or its limiter defines it.
    fn limit_of(&self, name: &str) -> Option<Limit> {
        let inline = self.rules.iter().find_map(|rule| match rule {
            Rule::Keyed(keyed) if *keyed.limit.name == *name => keyed.limit.inline,
            _ => None,
        });
        inline.or_else(|| self.limiter.limits().get(name).copied())
    }
}

/// Whether the item takes slots. Its limit is passed inline.
pub(in crate::web) fn is_of_slots(item: &Item) -> bool {
    item.limit.inline.is_some_and(|limit| limit.kind() == Kind::Concurrency)
}

/// The limits of these items, which are passed inline, in their order.
pub(in crate::web) fn limits(items: &[Item]) -> Vec<Limit> {
    items.iter().filter_map(|item| item.limit.inline).collect()
}

fn is_in(networks: &[(ClientAddress, Networks)], request: &Parts, unreadable: Unreadable) -> Result<bool, NoKey> {
    for (client, networks) in networks {
        if client.is_in(networks, request, unreadable)? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |rule: &Rule| match rule {
            Rule::Keyed(keyed) => keyed.limit.name.to_string(),
            Rule::Chosen(_) | Rule::ChosenAsync(_) => "(chosen per request)".to_owned(),
        };
        f.debug_struct("Rules")
            .field("limits", &self.rules.iter().map(name).collect::<Vec<_>>())
            .field("on_failure", &self.on_failure)
            .field("shadow", &self.shadow)
            .field("shadow_limits", &self.shadow_limits.keys().collect::<Vec<_>>())
            .field("in_handler", &self.in_handler)
            .field("fields", &self.fields)
            .finish_non_exhaustive()
    }
}
