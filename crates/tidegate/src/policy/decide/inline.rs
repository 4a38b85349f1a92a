//! Limits that come with a request instead of the policy file: a policy of these limits, for one
//! request.
//!
//! The numbers of a bucket are not part of its key, so a request with other numbers continues from
//! the same state.

use std::cell::Cell;
use std::sync::LazyLock;

use tidegate_core::{AlgorithmName, Decision, Limit, Op, Rate, Timestamp};

use crate::key::{Key, Scope};
use crate::policy::decide::limiter::PolicyLimiter;
use crate::policy::in_words;
use crate::store::{Batch, Charge, Store, StoreError};
use crate::verdict::{Details, LimitSource, Record, Verdict};

/// The id of limits that come with a request. No limit of a policy has this id, because domain
/// names do not start with a zero byte.
const LIMIT_ID: &str = "\0given";

/// The keys of all buckets that come with requests.
static BUCKETS: LazyLock<Scope> = LazyLock::new(|| {
    let bucket = Limit::token_bucket(Rate::per_second(1)).build();
    Scope::new(LIMIT_ID, &bucket.expect("one unit per second is a valid rate"))
});

thread_local! {
    /// The list of the last request, kept so that a decision in memory does not allocate.
    static DECISIONS: Cell<Vec<Decision>> = const { Cell::new(Vec::new()) };
}

/// A limit that comes with a request, the key it applies to, and the operation.
#[derive(Clone, Copy, Debug)]
pub struct InlineLimit<'a> {
    /// Whose limit.
    pub key: &'a [u8],
    /// The algorithm that the request names.
    pub algorithm: AlgorithmName,
    /// Its numbers.
    pub limit: &'a Limit,
    /// The operation.
    pub op: Op,
}

impl<'a> InlineLimit<'a> {
    /// The operation as a charge on a store.
    #[doc(hidden)]
    pub fn charge(&self) -> Charge<'a> {
        let scope = match self.limit {
            Limit::Bucket(_) => *BUCKETS,
            other => Scope::new(LIMIT_ID, other),
        };
        Charge::new(Key::new(scope, self.key), self.limit, self.op)
    }
}

#[doc(hidden)]
impl<S: Store> PolicyLimiter<S> {
    /// Decides one limit that came with the request. The verdict has no parts.
    pub async fn check_inline(
        &self,
        now: Timestamp,
        inline: &InlineLimit<'_>,
    ) -> Result<Verdict, StoreError> {
        let (charge, store) = (inline.charge(), self.store());
        let mut decisions = DECISIONS.take();
        let decided = store.decide(now, Batch::one(&charge), &mut decisions).await;
        let decision = decisions.pop();
        DECISIONS.set(decisions);
        let source = decided?;
        let decision = decision.ok_or(StoreError::Protocol("no decision".into()))?;
        Ok(Verdict::of_one(store.clock(now), decision).decided_by(source))
    }

    /// Decides limits that came with the request, all or nothing, with one part for each.
    pub async fn report_inline(
        &self,
        now: Timestamp,
        inline: &[InlineLimit<'_>],
    ) -> Result<Verdict, StoreError> {
        Ok(self.decide_inline(now, inline).await?.fold(self.store().clock(now)))
    }

    /// Like [`PolicyLimiter::report_inline`], with the reason and the state of each limit.
    pub async fn explain_inline(
        &self,
        now: Timestamp,
        inline: &[InlineLimit<'_>],
    ) -> Result<Verdict, StoreError> {
        let mut details = self.decide_inline(now, inline).await?;
        for limit in inline {
            let state = self.store().explain(now, &limit.charge()).await?;
            let reason = format!("it came with the request: {}", in_words(limit.limit));
            details.explained.push((Some(reason), Some(state)));
        }
        Ok(details.fold(self.store().clock(now)))
    }

    async fn decide_inline(
        &self,
        now: Timestamp,
        inline: &[InlineLimit<'_>],
    ) -> Result<Box<Details>, StoreError> {
        let charges: Vec<Charge<'_>> = inline.iter().map(InlineLimit::charge).collect();
        let mut decisions = Vec::with_capacity(charges.len());
        let source = self.store().decide(now, Batch::together(&charges), &mut decisions).await?;
        let mut details = Box::new(Details { source, ..Details::default() });
        let limits = inline.iter().zip(&charges).zip(decisions).enumerate();
        details.records.extend(limits.map(|(number, ((limit, charge), decision))| Record {
            decision: Some(decision),
            key_number: charge.key_number(),
            ..Record::live(number, LimitSource::Inline(limit.algorithm), Some(*limit.limit))
        }));
        Ok(details)
    }
}
