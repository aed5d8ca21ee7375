"""Incidents cost what the ledger says, and what a fixed fleet can lose."""

import pytest

from kaiju_jax.fleet import book as book_lib
from kaiju_jax.fleet import incident

BOOKS = {name: book_lib.load(name) for name in ('source', 'ours')}


@pytest.mark.parametrize(
  'name, minutes, dollars',
  [
    ('affinity', 15, 5_450),
    ('affinity', 30, 10_050),
    ('classifier', 12, 60_000),
    ('calibration', 30, 20_030),
  ],
)
def test_the_ledger_to_its_printed_digits(name, minutes, dollars):
  found = incident.source_cost(BOOKS['source'], minutes)
  assert found[name] == pytest.approx(dollars)


@pytest.mark.parametrize('book', BOOKS.values(), ids=BOOKS)
@pytest.mark.parametrize('name', incident.NAMES)
def test_noticing_later_costs_more(book, name):
  costs = [incident.cost(book, time)[name] for time in (6, 15, 30, 60)]
  assert costs == sorted(costs) and costs[0] < costs[-1]


def test_a_classifier_that_refuses_costs_what_its_traffic_gives():
  """902 messages/s, a tenth refused, 12 minutes: 9 users of $120."""
  found = incident.cost(BOOKS['source'], 12)['classifier']
  assert found == pytest.approx(1_083, rel=0.01)


def test_a_lost_table_costs_nothing_before_users_notice():
  assert incident.cost(BOOKS['ours'], 5)['affinity'] == 0
  assert incident.cost(BOOKS['ours'], 6)['affinity'] > 0
  slack = book_lib.load('ours', ['hit_rate=0', 'slo=0.3', 'pooled=1'])
  assert incident.lost_load(book_lib.inputs(slack)) < 1
  assert incident.cost(slack, 60)['affinity'] == 0  # Nobody waits.


@pytest.mark.parametrize(
  'text, minutes', [('15m', 15), ('90s', 1.5), ('1h', 60), ('1.5h', 90)]
)
def test_durations(text, minutes):
  assert incident.minutes(text) == minutes
