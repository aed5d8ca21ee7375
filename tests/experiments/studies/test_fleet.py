"""The fleet's study: plans, drills, tables and JSON, in plain Python."""

import dataclasses
import json

import pytest

from kaiju_jax.experiments.studies import fleet
from kaiju_jax.experiments.studies import fleet_settings
from kaiju_jax.fleet import events
from kaiju_jax.fleet import simulator

PLAN = fleet_settings.Plan(
  replicas=3,
  rows=8,
  rate=2.0,
  sessions=40,
  messages=4.0,
  characters=50,
  warm_up=0.0,
)


def simulate(plan=PLAN, policy='sticky', **changes):
  changed = dataclasses.replace(plan, **changes)
  return fleet.simulate(changed, policy, 1.0, 0).outcome


@pytest.fixture(autouse=True)
def plain(monkeypatch):
  monkeypatch.setenv('NUMBA_DISABLE_JIT', '1')
  simulator.compile_loop.cache_clear()
  yield
  simulator.compile_loop.cache_clear()


def test_a_study_has_a_table_per_exponent_and_a_row_per_policy():
  said = []
  study = fleet.Study(
    PLAN, ('random', 'sticky'), (0.8, 1.2), (0, 1), note=said.append
  )
  runs = study.run()
  tables = list(study.show_times(runs))
  assert [one.title[:8] for one in tables] == ['Zipf 0.8', 'Zipf 1.2']
  for one in tables:
    assert [row[0] for row in one.rows] == ['random', 'sticky']
    assert {len(row) for row in one.rows} == {len(one.columns)}
    assert all(row[-1] in ('kept', 'missed') for row in one.rows)
  assert len(said) == len(runs) == 8 and 's of processor' in said[0]
  written = fleet.as_json(PLAN, runs)
  assert json.loads(json.dumps(written)) == written
  assert written['runs'][0]['p99'] == runs[0].outcome.p99
  # Sessions stick where their texts are.
  random, sticky = (
    [run.outcome.token_hits for run in runs if run.policy == name]
    for name in ('random', 'sticky')
  )
  assert sum(sticky) > sum(random)


@pytest.mark.parametrize('drill', fleet_settings.DRILLS)
def test_a_drill_changes_its_replica_half_way(drill):
  faults = fleet.make_faults(dataclasses.replace(PLAN, drill=drill))
  begins = [fault for fault in faults if fault[0] >= 10.0]
  assert bool(begins) == (drill != 'none')
  assert all(fault[0] in (0.0, 9.0) for fault in faults if fault[0] < 10.0)
  shares = [fault[3] for fault in faults if fault[1] == events.SHARE]
  # A replica that was closed ends at its full share.
  assert not shares or shares[-1] == 1.0
  outcome = simulate(drill=drill, rate=4.0)
  assert outcome.lost == 0 and outcome.requests > 80


@pytest.mark.parametrize(
  'change, message',
  [
    ({'drill': 'fire'}, "drill='fire': must be one of none, lost"),
    ({'drill': 'lost', 'replicas': 1}, "replicas=1: the drill 'lost' needs"),
    ({'rate': 0.0}, 'rate=0.0: must be above 0'),
    ({'peak': 3.0}, 'peak=3.0: must be 1 to 2'),
    ({'gate': 2.5}, 'gate=2.5: must be 0 or more, and below the SLO, 2.5'),
    ({'rows': 1000}, 'sizes.rows=1000: must be at most 256'),
  ],
)
def test_a_plan_that_cannot_be_is_refused(change, message):
  with pytest.raises(ValueError, match=message):
    simulate(**change)


def test_an_slo_costs_the_fewest_replicas_that_keep_it():
  plan, said = dataclasses.replace(PLAN, rate=8.0, sessions=60), []
  slos = [0.05, 0.65, 1.5]
  study = fleet.Study(plan, note=said.append)
  found = study.find_replicas(slos, 'sticky', 1.0, 0)
  assert len(said) == len(set(said))
  p99s = [
    simulate(plan, replicas=n).p99
    for n in range(1, max(filter(None, found)) + 1)
  ]
  for slo, count in zip(slos, found):
    if count is not None:
      assert p99s[count - 1] <= slo
      assert count == 1 or p99s[count - 2] > slo
  assert found[0] is None and found[1] > found[2] > 1


def test_an_slo_that_no_fleet_keeps_has_no_price():
  asked = []

  def p99(replicas):
    asked.append(replicas)
    return 3.0 / replicas

  assert fleet._bisect(p99, 1.0, 1) == 3
  assert fleet._bisect(p99, 0.3, 2) == 10
  assert fleet._bisect(p99, 3.0, 5) == 1
  assert fleet._bisect(p99, 0.01, 3) is None and max(asked) <= 48
  plan = dataclasses.replace(PLAN, sessions=20)
  study = fleet.Study(plan, ['sticky'], [1.0], [0, 1])
  (table,) = study.show_replicas([1e-6, 60.0])
  assert table.columns == ('policy', 'p99 1e-06 s', 'p99 60 s')
  assert table.rows == [['sticky', 'none', '1']] and 'Zipf 1' in table.title


def test_gates_delay_each_first_token_and_make_more_requests_late():
  alone = simulate(slo=0.7)
  gated = simulate(slo=0.7, gate=0.3)
  for name in 'p50', 'p99', 'worst_p99', 'mean_ttft', 'mean_stay':
    assert getattr(gated, name) == getattr(alone, name) + 0.3
  # As late as with an SLO that is shorter by the gates.
  shorter = simulate(slo=0.4)
  assert gated.late == shorter.late > alone.late
  assert gated.requests > gated.late


def test_late_requests_are_those_above_the_quantile_of_their_share():
  plan = dataclasses.replace(PLAN, sessions=200)
  found = simulate(plan, 'random')
  late = simulate(plan, 'random', slo=found.p99)
  assert 0 < late.late <= 0.01 * late.requests
  late = simulate(plan, 'random', slo=found.p50)
  assert late.late == pytest.approx(late.requests / 2, rel=0.05)


def test_a_drill_spends_the_requests_that_it_makes_bad():
  plan = dataclasses.replace(PLAN, replicas=2, rate=4.0, sessions=300, slo=0.6)
  study = fleet.Study(plan, ['sticky'], [1.0], [0, 1])
  bad, lost, none = study.find_minutes(['lost', 'none'], 'sticky', 1.0, 0)
  assert none == 0 and 0 <= bad < 100
  found = simulate(plan, drill='lost')
  quiet = simulate(plan)
  added = (found.late - quiet.late) / quiet.requests
  assert lost == pytest.approx(added * 1.25) and added > 0
  plan = dataclasses.replace(plan, sessions=40)
  (table,) = dataclasses.replace(study, plan=plan).show_minutes(['lost'])
  assert table.columns == ('policy', 'bad without, %', 'lost')
  assert [len(row) for row in table.rows] == [3] and '43.2' in table.title
