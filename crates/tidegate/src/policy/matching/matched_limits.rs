//! The limits that apply to a request, each with its key and its operation.

use std::num::NonZeroU32;
use std::ops::Range;

use tidegate_core::shed::Class;
use tidegate_core::{Decision, Limit, Op, Rate, Span, Timestamp};

use crate::key::{Key, Scope};
use crate::policy::decide::control::Controls;
use crate::policy::decide::token::leases::MAX_KEY_BYTES;
use crate::policy::decide::token::reservations::MAX_RESERVED_BYTES;
use crate::policy::matching::intent::Intent;
use crate::policy::matching::level::RuleId;
use crate::policy::matching::resolve::{Match, escape, whole_text};
use crate::policy::model::descriptor::{Entry, Hits, Request, RequestLimit};
use crate::policy::model::limit::{Form, Mode, PolicyLimit};
use crate::policy::model::rule::{Charging, Domain};
use crate::policy::model::settling::Settling;
use crate::scaling::share_of_node;
use crate::store::{Charge, LimitOptions, MAX_TOGETHER, ReservationId, Reserving, Tier};
use crate::verdict::{Details, LimitSource, Record, Standing, rank};

/// All limits to decide for one request.
#[derive(Debug)]
pub(in crate::policy) struct MatchedLimits {
    /// The texts of all keys, concatenated.
    text: Vec<u8>,
    matched_limits: Vec<MatchedLimit>,
}

/// One limit to decide.
#[derive(Clone, Debug)]
pub(in crate::policy) struct MatchedLimit {
    /// Number of its record in the verdict.
    pub(in crate::policy) record: usize,
    pub(in crate::policy) numbers: Limit,
    pub(in crate::policy) op: Op,
    options: LimitOptions,
    scope: Scope,
    text: Range<usize>,
    tag: (usize, usize),
    together: bool,
    is_quota: bool,
    /// The reservation that the charge opens, if the limit is settled after the response.
    pub(in crate::policy) reservation: Option<ReservationId>,
    /// Whether this is the local pre-limit of the limit with the same record.
    pub(in crate::policy) in_front: bool,
    /// Whether this is the part of the previous record's limit that classes other than the first
    /// share.
    pub(in crate::policy) is_for_others: bool,
}

/// A request to a domain, and the state that its limits are resolved with.
pub(in crate::policy) struct MatchInput<'r> {
    pub(in crate::policy) domain: &'r Domain,
    pub(in crate::policy) controls: &'r Controls,
    pub(in crate::policy) request: &'r Request<'r>,
    pub(in crate::policy) intent: Intent,
    pub(in crate::policy) now: Timestamp,
    pub(in crate::policy) records: &'r mut Vec<Record>,
}

/// One descriptor of the request, resolved.
struct DescriptorInput<'r> {
    controls: &'r Controls,
    descriptor: usize,
    text: Range<usize>,
    hits: Option<Hits>,
    class: Option<Class>,
    intent: Intent,
    tag: (usize, usize),
    now: Timestamp,
    /// Number of nodes, if this node decides the descriptor alone.
    local_nodes: Option<NonZeroU32>,
}

impl DescriptorInput<'_> {
    /// The numbers and options of a limit. If this node decides alone, they are the node's share
    /// and have a key of their own, because the numbers differ.
    fn settle(
        &self,
        name: &str,
        numbers: (Limit, Scope),
        options: LimitOptions,
    ) -> ((Limit, Scope), LimitOptions) {
        let Some(nodes) = self.local_nodes else { return (numbers, options) };
        let share = share_of_node(&numbers.0, nodes);
        let scope = Scope::new(&format!("{name}#override"), &share);
        ((share, scope), LimitOptions::default().tier(Tier::Local).calendar(options.is_calendar))
    }

    /// The operation on a limit. A request holds one place of an in-flight limit, however many units
    /// it costs under other limits.
    fn op(&self, limit: &PolicyLimit) -> Op {
        let hits = self.hits.filter(|hits| !limit.is_in_flight() || hits.takes_nothing());
        self.intent.op(hits, limit.cost())
    }

    /// The part of a limit beside its reserve, if the request belongs to any class but the most
    /// important one.
    fn left_for_others(
        &self,
        domain: &Domain,
        found: &Match<'_, '_>,
        limit: &PolicyLimit,
        numbers: (Limit, Scope),
    ) -> Option<(Limit, Scope)> {
        let reserve = limit.reserve.as_ref()?;
        let classes = domain.classes();
        let of_plan = || found.plan.and_then(|plan| classes.of_plan(plan));
        let class = self.class.or_else(of_plan).unwrap_or(classes.default_class());
        if class == Class::CRITICAL { None } else { reserve.for_others(numbers) }
    }

    fn matched(
        &self,
        numbers: (Limit, Scope),
        op: Op,
        record: usize,
        together: bool,
    ) -> MatchedLimit {
        let (numbers, scope) = numbers;
        // Only operations that can be denied are decided together.
        let together = together && matches!(op, Op::Take(1..));
        let (text, tag, options) = (self.text.clone(), self.tag, LimitOptions::default());
        let (is_quota, in_front, is_for_others) = (false, false, false);
        MatchedLimit {
            record,
            numbers,
            op,
            options,
            scope,
            text,
            tag,
            together,
            is_quota,
            in_front,
            is_for_others,
            reservation: None,
        }
    }

    /// The reservation that a charge opens, if the limit is settled after the response. A key that
    /// this node decides alone has no reservations.
    fn reservation(
        &self,
        limit: &PolicyLimit,
        op: Op,
        options: LimitOptions,
    ) -> Option<ReservationId> {
        let is_settled = self.intent.reserves() && limit.settling().is_some();
        let takes = matches!(op, Op::Take(1..)) && options.tier != Tier::Local;
        (is_settled && takes).then(ReservationId::random)
    }
}

impl MatchedLimit {
    /// Records a decision. A local pre-limit is recorded only if it denies, and for longer than its limit.
    pub(in crate::policy) fn record_in(&self, record: &mut Record, decision: Decision) {
        let is_stricter = |own: Decision| rank(&decision) > rank(&own);
        let binds = !decision.is_allowed() && record.decision.is_none_or(is_stricter);
        if !self.in_front || binds {
            (record.decision, record.numbers) = (Some(decision), Some(self.numbers));
        }
    }
}

impl MatchedLimits {
    /// Reserves room for one limit per descriptor, which most requests need.
    pub(in crate::policy) fn with_room(descriptors: usize) -> Self {
        Self {
            text: Vec::with_capacity(64 * descriptors),
            matched_limits: Vec::with_capacity(descriptors),
        }
    }

    /// Finds every limit that applies to the request, and adds one record for each.
    pub(in crate::policy) fn resolve(&mut self, input: MatchInput<'_>) {
        let MatchInput { domain, controls, request, intent, now, records } = input;
        for (number, descriptor) in request.descriptors.iter().enumerate() {
            let hits = descriptor.hits.or(request.hits.map(Hits::Take));
            let start = self.text.len();
            let mut side = DescriptorInput {
                controls,
                descriptor: number,
                text: start..start,
                hits,
                class: descriptor.class,
                intent,
                tag: (start, start),
                now,
                local_nodes: controls.local_overrides().nodes(
                    domain.name(),
                    descriptor.entries,
                    now,
                ),
            };
            if let Some(limit) = descriptor.limit {
                whole_text(&[Entry { key: "domain", value: domain.name() }], &mut self.text);
                whole_text(descriptor.entries, &mut self.text);
                side.text.end = self.text.len();
                if let Some(first) = descriptor.entries.first() {
                    escape(first.value, &mut self.text);
                }
                side.tag = (side.text.end, self.text.len());
                self.request_limit(domain, limit, &side, records);
                continue;
            }
            let found = domain.resolve(descriptor.entries, &mut self.text);
            side.text.end = self.text.len();
            if let Some(found) = found {
                side.tag = found.tag;
                self.rule_limits(domain, &found, &side, records);
            }
        }
        self.drop_replaced(domain, records);
        for matched in self.matched_limits.iter().filter(|matched| !matched.in_front) {
            records[matched.record].key_number = self.charge(matched).key_number();
        }
    }

    /// Sorts limits that are decided together to the front, then quotas.
    pub(in crate::policy) fn order(&mut self, records: &[Record]) {
        for matched in &mut self.matched_limits {
            matched.is_quota = records[matched.record].standing == Standing::Quota;
        }
        self.matched_limits.sort_by_key(|matched| (!matched.together, !matched.is_quota));
    }

    /// Splits the limits into those decided together, quotas, and others that are decided alone.
    pub(in crate::policy) fn split(&self) -> (&[MatchedLimit], &[MatchedLimit], &[MatchedLimit]) {
        let (together, alone) = self
            .matched_limits
            .split_at(self.matched_limits.partition_point(|matched| matched.together));
        let (quotas, others) = alone.split_at(alone.partition_point(|matched| matched.is_quota));
        (together, quotas, others)
    }

    pub(in crate::policy) fn iter(&self) -> std::slice::Iter<'_, MatchedLimit> {
        self.matched_limits.iter()
    }

    pub(in crate::policy) fn len(&self) -> usize {
        self.matched_limits.len()
    }

    pub(in crate::policy) fn key(&self, matched: &MatchedLimit) -> Key<'_> {
        let (text, tag) =
            (&self.text[matched.text.clone()], &self.text[matched.tag.0..matched.tag.1]);
        Key::new(matched.scope, text).tagged(tag)
    }

    /// Whether the leases of a request can be written as a text that every transport takes.
    pub(in crate::policy) fn fits_leases(&self) -> bool {
        let is_in_flight = |it: &&MatchedLimit| matches!(it.numbers, Limit::InFlight(_));
        let in_flight = self.matched_limits.iter().filter(is_in_flight);
        let bytes = |it: &MatchedLimit| it.text.len() + (it.tag.1 - it.tag.0);
        let (count, bytes) = in_flight.fold((0, 0), |sum, it| (sum.0 + 1, sum.1 + bytes(it)));
        count <= MAX_TOGETHER && bytes <= MAX_KEY_BYTES
    }

    /// Whether the reservations of a request can be written as a text that every transport takes.
    pub(in crate::policy) fn fits_reservations(&self, details: &Details) -> bool {
        let reserving = self.matched_limits.iter().filter(|it| it.reservation.is_some());
        let bytes = |it: &MatchedLimit| {
            let names = details.rule(&details.records[it.record]).map_or(0, |(rule, limit)| {
                limit.name().unwrap_or_else(|| rule.path()).len()
                    + limit.settling().map_or(0, Settling::name_bytes)
            });
            it.text.len() + (it.tag.1 - it.tag.0) + names
        };
        let (count, bytes) = reserving.fold((0, 0), |sum, it| (sum.0 + 1, sum.1 + bytes(it)));
        count <= MAX_TOGETHER && bytes <= MAX_RESERVED_BYTES
    }

    /// Whether two limits use the same state.
    pub(in crate::policy) fn share_a_state(
        &self,
        one: &MatchedLimit,
        other: &MatchedLimit,
    ) -> bool {
        let text = |matched: &MatchedLimit| &self.text[matched.text.clone()];
        one.scope == other.scope && text(one) == text(other)
    }

    pub(in crate::policy) fn charge<'s>(&'s self, matched: &'s MatchedLimit) -> Charge<'s> {
        let charge = Charge::new(self.key(matched), &matched.numbers, matched.op);
        let charge = charge.on(matched.options);
        matched.reservation.map_or(charge, |id| charge.reserving(Reserving::Open(id)))
    }

    /// The charge as a read, which takes no units.
    pub(in crate::policy) fn read<'s>(&'s self, matched: &'s MatchedLimit) -> Charge<'s> {
        let charge = self.charge(matched);
        match charge.op {
            Op::Take(cost) => Charge { op: Op::Read(cost), reserving: None, ..charge },
            _ => charge,
        }
    }

    /// Adds a limit that came with the request. It replaces those of the policy and is in shadow
    /// mode only if the domain is.
    fn request_limit(
        &mut self,
        domain: &Domain,
        limit: RequestLimit,
        side: &DescriptorInput<'_>,
        records: &mut Vec<Record>,
    ) {
        let rate = Rate::new(limit.requests_per_unit.into(), Span::from_secs(limit.unit.seconds()));
        let Ok(numbers) = Limit::fixed_window(rate).count_denied().build() else { return };
        if !side.intent.decides(&numbers) {
            return;
        }
        let scope = Scope::new("request", &numbers);
        let ((numbers, scope), options) =
            side.settle("request", (numbers, scope), LimitOptions::default());
        let source = LimitSource::Descriptor(limit);
        let standing = match domain.mode() {
            Some(Mode::Off) => Standing::Off,
            Some(Mode::Shadow) => Standing::Shadow,
            Some(Mode::Enforce) | None if side.controls.spares(domain) => Standing::Shadow,
            Some(Mode::Enforce) | None => Standing::Live,
        };
        let together = domain.charging() == Charging::Together && standing == Standing::Live;
        records.push(Record { standing, ..Record::live(side.descriptor, source, Some(numbers)) });
        if standing == Standing::Off {
            return;
        }
        let op = side.intent.op(side.hits, 1);
        let matched = side.matched((numbers, scope), op, records.len() - 1, together);
        let options = match standing {
            Standing::Shadow => options.refund_staleness(Span::ZERO),
            _ => options,
        };
        self.matched_limits.push(MatchedLimit { options, ..matched });
    }

    fn rule_limits(
        &mut self,
        domain: &Domain,
        found: &Match<'_, '_>,
        side: &DescriptorInput<'_>,
        records: &mut Vec<Record>,
    ) {
        let spares_all = side.controls.spares(domain);
        for (number, limit) in found.rule.limits().iter().enumerate() {
            let source = |is_for_others| source(found.id, number, is_for_others);
            let allowance = limit.allowance_for(found.value, found.plan, side.now);
            let plain = allowance.at(side.now);
            let numbers = side.controls.numbers(limit, plain, side.now);
            // Numbers from a runtime override apply at once, so no node may lease units from them.
            let scope = |numbers: Option<(Limit, Scope)>| numbers.map(|(_, scope)| scope);
            let options = match scope(plain) == scope(numbers) {
                true => limit.options().calendar(allowance.is_calendar()),
                false => limit.options().tier(Tier::Exact),
            };
            let settled = numbers.map(|it| side.settle(limit.id(), it, options));
            let (numbers, own_terms) = settled.unzip();
            let is_spared = spares_all || side.controls.spares_limit(limit);
            // A domain's mode can only relax the mode of a limit.
            let mode = domain.mode().unwrap_or_default().max(limit.mode());
            let standing = match (mode, numbers) {
                (Mode::Off, _) => Standing::Off,
                (_, None) => Standing::Unlimited,
                (_, Some((numbers, _))) if !side.intent.decides(&numbers) => Standing::Skipped,
                (Mode::Shadow, _) => Standing::Shadow,
                (Mode::Enforce, _) if is_spared || !self.is_enforced(limit, side) => {
                    Standing::Shadow
                }
                (Mode::Enforce, _) if found.rule.is_quota() => Standing::Quota,
                (Mode::Enforce, _) => Standing::Live,
            };
            let live = Record::live(side.descriptor, source(false), numbers.map(|it| it.0));
            let record = Record { standing, ..live };
            records.push(record);
            let is_decided = !matches!(standing, Standing::Off | Standing::Skipped);
            let Some(numbers) = numbers.filter(|_| is_decided) else { continue };
            let op = side.op(limit);
            // An exhausted quota may still be allowed, so it must not keep other limits from
            // being charged.
            let together = is_together(domain, limit) && standing == Standing::Live;
            // A limit that never denies is counted in the store each time.
            let own_terms = own_terms.unwrap_or_default();
            let unrepeated = own_terms.refund_staleness(Span::ZERO);
            let options = if standing == Standing::Shadow { unrepeated } else { own_terms };
            self.matched_limits.push(MatchedLimit {
                options,
                reservation: side.reservation(limit, op, options),
                ..side.matched(numbers, op, records.len() - 1, together)
            });
            if let Some(numbers) = side.left_for_others(domain, found, limit, numbers) {
                records.push(Record { source: source(true), numbers: Some(numbers.0), ..record });
                let matched = side.matched(numbers, op, records.len() - 1, together);
                self.matched_limits.push(MatchedLimit { options, is_for_others: true, ..matched });
            }
            // A limit that is not enforced needs no local pre-limit.
            if let Some(local) = limit.local.filter(|_| together) {
                let options = LimitOptions::default().tier(Tier::Local);
                let matched = side.matched(local, op, records.len() - 1, together);
                self.matched_limits.push(MatchedLimit { options, in_front: true, ..matched });
            }
            // The shadow limit was written for the default numbers, so it is not compared for
            // values with other numbers.
            let shadow = limit.shadow().filter(|_| std::ptr::eq(allowance, limit.allowance()));
            let beside = shadow.and_then(|shadow| shadow.allowance().at(side.now));
            if let Some(numbers) = beside {
                let name = format!("{}~shadow", limit.id());
                let is_calendar = shadow.is_some_and(|it| it.allowance().is_calendar());
                let options = unrepeated.calendar(is_calendar);
                let (numbers, options) = side.settle(&name, numbers, options);
                records.push(Record {
                    standing: Standing::Beside,
                    numbers: Some(numbers.0),
                    ..record
                });
                self.matched_limits.push(MatchedLimit {
                    options,
                    reservation: side.reservation(limit, op, options),
                    ..side.matched(numbers, op, records.len() - 1, false)
                });
            }
        }
    }

    fn is_enforced(&self, limit: &PolicyLimit, side: &DescriptorInput<'_>) -> bool {
        let (secret, text) = (side.controls.enforce_secret.as_ref(), &self.text[side.text.clone()]);
        limit.enforce().holds(secret, limit.id(), text)
    }

    /// Removes the limits that others replace, at any position in the request.
    fn drop_replaced(&mut self, domain: &Domain, records: &mut [Record]) {
        let limit_of = |record: &Record| match record.source {
            LimitSource::Policy { rule, limit, .. } => domain.rule(rule).limits().get(limit),
            _ => None,
        };
        let is_replaced = |record: &Record, records: &[Record]| {
            let name = limit_of(record).and_then(PolicyLimit::name).filter(|name| !name.is_empty());
            name.is_some_and(|name| {
                let mut others = records.iter().filter(|other| other.standing != Standing::Off);
                others.any(|other| {
                    limit_of(other).is_some_and(|other| other.replaces().any(|it| it == name))
                })
            })
        };
        if !records.iter().any(|record| limit_of(record).is_some_and(|it| it.replaces().len() > 0))
        {
            return;
        }
        let replaced: Vec<bool> =
            records.iter().map(|record| is_replaced(record, records)).collect();
        for (record, replaced) in records.iter_mut().zip(&replaced) {
            // An unlimited limit stays unlimited if it is replaced.
            if *replaced && record.standing != Standing::Unlimited {
                record.standing = Standing::Replaced;
            }
        }
        self.matched_limits.retain(|matched| !replaced[matched.record]);
    }
}

const fn source(rule: RuleId, limit: usize, is_for_others: bool) -> LimitSource {
    LimitSource::Policy { rule, limit, is_for_others }
}

/// Whether a limit is charged together with others.
fn is_together(domain: &Domain, limit: &PolicyLimit) -> bool {
    match domain.charging() {
        Charging::Together => true,
        Charging::Each => false,
        Charging::AsWritten => limit.form() == Form::Native,
    }
}
