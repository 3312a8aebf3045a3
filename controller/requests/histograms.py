"""Histogram buckets in seconds. Controller and gateway share them, so that their metrics can be
compared."""

from prometheus_client import disable_created_metrics

FIRST_TOKEN_BUCKETS_S = (0.05, 0.1, 0.2, 0.35, 0.5, 1, 2, 3.5, 5, 10, 20, 35, 60, 120)
REQUEST_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 40, 60, 120, 300)

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second, unused series per metric
