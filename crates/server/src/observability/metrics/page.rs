//! Passes metrics to the encoder.

use std::fmt;

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, GaugeValueEncoder, NoLabelSet,
};

use super::table::{METRICS, Metric};
use crate::observability::status::{BOUNDS, Times};

/// Hands metrics to the encoder, with the type and the help text of the table.
///
/// `prometheus-client` appends `_total` to the names of counters, as OpenMetrics requires. The
/// counters of envoyproxy/ratelimit have no such suffix, so all counters are passed as plain
/// numbers under the names of the table. The result is the text format of Prometheus.
#[derive(Debug)]
pub(super) struct Page<'p, 'w> {
    encoder: &'p mut DescriptorEncoder<'w>,
}

/// The value of a sample.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Whole(u64),
    Float(f64),
}

/// Names and values of the labels of one sample.
pub(super) type Labels<'l> = [(&'static str, &'l str)];

impl<'p, 'w> Page<'p, 'w> {
    pub(super) const fn new(encoder: &'p mut DescriptorEncoder<'w>) -> Self {
        Self { encoder }
    }

    /// A metric without labels.
    pub(super) fn value(&mut self, name: &str, value: impl Into<Value>) -> fmt::Result {
        self.family(name, [([], value)])
    }

    /// All samples of a metric. A metric without samples is left out.
    pub(super) fn family<'l, L: AsRef<Labels<'l>>, V: Into<Value>>(
        &mut self,
        name: &str,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut samples = samples.into_iter().peekable();
        let Some(metric) = metric(name).filter(|_| samples.peek().is_some()) else {
            return Ok(());
        };
        let Metric { name, kind, about, .. } = metric;
        let mut encoder = self.encoder.encode_descriptor(name, about, None, *kind)?;
        for (labels, value) in samples {
            match labels.as_ref() {
                [] => encoder.encode_gauge(&value.into())?,
                labels => encoder.encode_family(&labels)?.encode_gauge(&value.into())?,
            }
        }
        Ok(())
    }

    /// All histograms of a metric.
    pub(super) fn histograms<'l, L: AsRef<Labels<'l>>>(
        &mut self,
        name: &str,
        samples: impl IntoIterator<Item = (L, Times)>,
    ) -> fmt::Result {
        let Some(Metric { name, kind, about, .. }) = metric(name) else { return Ok(()) };
        let mut encoder = self.encoder.encode_descriptor(name, about, None, *kind)?;
        for (labels, times) in samples {
            let bounds = BOUNDS.into_iter().map(seconds).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(times.counts).collect();
            let (sum, count) = (seconds(times.micros), times.counts.iter().sum());
            match labels.as_ref() {
                [] => encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?,
                labels => encoder
                    .encode_family(&labels)?
                    .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?,
            }
        }
        Ok(())
    }
}

fn metric(name: &str) -> Option<&'static Metric> {
    let metric = METRICS.iter().find(|metric| metric.name == name);
    debug_assert!(metric.is_some(), "{name} is not in the table");
    metric
}

/// Microseconds as seconds.
pub(super) fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

impl EncodeGaugeValue for Value {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> fmt::Result {
        match self {
            // The encoder fails on larger numbers, and the whole page with it.
            Self::Whole(value) => i64::try_from(*value).unwrap_or(i64::MAX).encode(encoder),
            Self::Float(value) => value.encode(encoder),
        }
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Whole(value as u64)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::text::encode_registry;
    use prometheus_client::registry::Registry;

    use super::*;

    /// One of each kind.
    #[derive(Debug)]
    struct Samples;

    impl Collector for Samples {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let mut page = Page::new(&mut encoder);
            page.family("tidegate_policy_info", [([("revision", "a\"\\\nb")], 1_u64)])?;
            page.value("tidegate_deny_cache_hits_total", u64::MAX)?;
            page.value("tidegate_uptime_seconds", seconds(1_500_000))?;
            page.family("tidegate_nodes", [] as [(&Labels<'_>, u64); 0])?;
            let mut times = Times { micros: 2_000_300, ..Times::default() };
            (times.counts[0], times.counts[BOUNDS.len()]) = (3, 1);
            page.histograms("tidegate_request_seconds", [([("listener", "RESP")], times)])
        }
    }

    #[test]
    fn the_page_is_in_the_text_format() {
        let (mut registry, mut page) = (Registry::default(), String::new());
        registry.register_collector(Box::new(Samples));
        encode_registry(&mut page, &registry).unwrap();
        for line in [
            "tidegate_policy_info{revision=\"a\\\"\\\\\\nb\"} 1",
            "# TYPE tidegate_deny_cache_hits_total counter",
            "tidegate_deny_cache_hits_total 9223372036854775807",
            "tidegate_uptime_seconds 1.5",
            "# TYPE tidegate_request_seconds histogram",
            "tidegate_request_seconds_sum{listener=\"RESP\"} 2.0003",
            "tidegate_request_seconds_count{listener=\"RESP\"} 4",
            "tidegate_request_seconds_bucket{le=\"0.0001\",listener=\"RESP\"} 3",
            "tidegate_request_seconds_bucket{le=\"1.0\",listener=\"RESP\"} 3",
            "tidegate_request_seconds_bucket{le=\"+Inf\",listener=\"RESP\"} 4",
        ] {
            assert!(page.lines().any(|it| it == line), "{line}\n{page}");
        }
        assert!(!page.contains("tidegate_nodes"), "a metric without samples has no head");
    }
}
