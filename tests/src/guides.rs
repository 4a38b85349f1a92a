//! The examples of the guides, compiled and run as documentation tests. They are in this crate
//! because the published library does not contain the guides.

#[doc = include_str!("../../docs/guide/embed.md")]
struct Embed;

#[doc = include_str!("../../docs/guide/from-governor.md")]
struct FromGovernor;

#[doc = include_str!("../../docs/guide/from-tower-governor.md")]
struct FromTowerGovernor;

#[doc = include_str!("../../docs/guide/protect-from-overload.md")]
struct ProtectFromOverload;

#[doc = include_str!("../../docs/guide/share-limits.md")]
struct ShareLimits;

#[doc = include_str!("../../docs/guide/spend-locally.md")]
struct SpendLocally;

#[doc = include_str!("../../docs/guide/tower.md")]
struct Tower;

#[doc = include_str!("../../docs/guide/when-redis-is-down.md")]
struct WhenRedisIsDown;

#[doc = include_str!("../../docs/guide/write-a-policy.md")]
struct WriteAPolicy;
