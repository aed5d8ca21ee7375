"""Prometheus's text, read."""

from prometheus_client import parser


def samples(measured):
  """Returns {(name, labels): value}, as Prometheus itself would read it."""
  families = parser.text_string_to_metric_families(measured.text().decode())
  return {
    (one.name, tuple(sorted(one.labels.items()))): one.value
    for family in families
    for one in family.samples
    if not one.name.endswith('_created')
  }
