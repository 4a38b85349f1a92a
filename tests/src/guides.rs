//! The examples of the guides, compiled and run as documentation tests. They are here because the
//! guides are not part of the published library.

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
