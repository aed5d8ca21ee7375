"""Thresholds: taken only where what was counted supports what is claimed."""

import dataclasses
import json
import math

import pytest

from kaiju_jax.reporting import statistics
from kaiju_jax.serving.safety import thresholds
from kaiju_jax.storage import strict
from tests.serving import planted

NAMES = ('zorb', 'quam')


@pytest.fixture
def policy():
  return planted.policy(
    planted.stage('gate 1', NAMES), planted.stage('head 1', NAMES, low=0.1)
  )


@pytest.fixture
def refused(policy, tmp_path):
  """Returns a function: changes the file's data and expects a refusal."""

  def check(message, change):
    data = json.loads(json.dumps(strict.dump(policy)))
    change(data)
    path = tmp_path / 'thresholds.json'
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=message) as caught:
      thresholds.load(path)
    assert str(path) in str(caught.value)

  return check


def limit(data, tier='minor', stage='gate', number=0):
  return data[stage][tier]['limits'][number]


def proportion(hits, rows, is_least, claim):
  bound = statistics.at_least if is_least else statistics.at_most
  return {
    'rows': rows,
    'hits': hits,
    'bound': bound(hits, rows, 0.975),
    'claim': claim,
  }


def test_a_policy_comes_back(policy, tmp_path):
  thresholds.write(tmp_path / 'file', policy)
  assert thresholds.load(tmp_path / 'file') == policy
  alone = dataclasses.replace(policy, head=None)
  thresholds.write(tmp_path / 'file', alone)
  assert thresholds.load(tmp_path / 'file') == alone


def test_one_of_600_supports_one_percent(policy):
  """As the sources' sets of 600 have it, for both tiers together."""
  one = thresholds.bound_count(1, 600, 0.01, 0.95, False)
  assert one.bound == pytest.approx(0.00925, abs=1e-5)
  minor = policy.gate.minor
  first = dataclasses.replace(minor.limits[0], refused=one)
  minor = thresholds.Tier((first, minor.limits[1]), one)
  gate = dataclasses.replace(policy.gate, minor=minor)
  thresholds.check(dataclasses.replace(policy, gate=gate))


def test_one_stage_may_block_less_where_the_other_does_not(policy):
  adult = policy.gate.adult
  weak = thresholds.bound_count(300, 600, 0.4, 0.95, True)
  limits = tuple(dataclasses.replace(x, blocked=weak) for x in adult.limits)
  gate = dataclasses.replace(
    policy.gate, adult=dataclasses.replace(adult, limits=limits)
  )
  thresholds.check(dataclasses.replace(policy, gate=gate))
  with pytest.raises(ValueError, match='adult: zorb: the best claim'):
    thresholds.check(dataclasses.replace(policy, gate=gate, head=None))


def weaken(data):
  """One dimension's claims in both stages."""
  for stage in 'gate', 'head':
    limit(data, 'minor', stage, 1)['blocked']['claim'] = 0.9


def refuse_two(data):
  """Two of 600 benign texts, for a claim of a percent."""
  two = proportion(2, 600, False, 0.01)
  limit(data, 'adult', 'head', 1)['refused'] = two
  data['head']['adult']['refused'] = two


BAD = {
  # Bounds that counts do not give, and claims that bounds do not support.
  r'gate\.minor: zorb\.blocked\.bound=0\.99387.*594 of 600': (
    lambda d: limit(d)['blocked'].update(hits=594)
  ),
  r'gate\.minor: zorb\.blocked\.claim=0\.99: 598 of 600 show': (
    lambda d: limit(d).update(blocked=proportion(598, 600, True, 0.99))
  ),
  r'head\.adult: quam\.refused\.claim=0\.01: 2 of 600': refuse_two,
  # Claims that are too weak to serve.
  r'minor: quam: the best claim of a stage is that it blocks 0\.9': weaken,
  r'gate\.minor\.refused\.claim=0\.02: of benign': (
    lambda d: d['gate']['minor']['refused'].update(claim=0.02)
  ),
  r'confidence=0\.9: must be at least 0\.95': (
    lambda d: d.update(confidence=0.9)
  ),
  # Thresholds of minors that are looser.
  r'head\.minor: quam\.low=.* is looser': (
    lambda d: limit(d, 'minor', 'head', 1).update(low=0.12)
  ),
  r'head\.minor: quam\.high=.* is looser': (
    lambda d: limit(d, 'minor', 'head', 1).update(high=0.81)
  ),
  r'high=nan': lambda d: limit(d).update(high=math.nan),
  r'bound=inf': lambda d: limit(d)['blocked'].update(bound=math.inf),
  r'format=None': lambda d: d.pop('format'),
  r"format='1'": lambda d: d.update(format='1'),
  r'hold=65': lambda d: d.update(hold=65),
  r'hold=-1': lambda d: d.update(hold=-1),
  r'hold=8\.5: must be int': lambda d: d.update(hold=8.5),
  r'gate=None': lambda d: d.update(gate=None),
  r'gate\.minr: no such field': lambda d: d['gate'].update(minr=1),
  r'gate\.version: must name': lambda d: d['gate'].update(version=''),
  r'certified_on: the texts that the thresholds were chosen on': (
    lambda d: d['gate'].update(certified_on='some texts')
  ),
  r'gate\.minor: zorb: low=None, high=1\.0': (
    lambda d: limit(d).update(high=1.0)
  ),
  r'gate\.minor: zorb: low=None, high=0': lambda d: limit(d).update(high=0),
  r'gate\.minor: zorb\.low=0\.1: must be null': (
    lambda d: limit(d).update(low=0.1)
  ),
  r'head\.adult: zorb\.low: missing': (
    lambda d: limit(d, 'adult', 'head').update(low=None)
  ),
  r'head\.adult: zorb: low=0\.9, high=0\.8': (
    lambda d: limit(d, 'adult', 'head').update(low=0.9)
  ),
  r'head\.adult: zorb: low=-1': (
    lambda d: limit(d, 'adult', 'head').update(low=-1)
  ),
  r"gate\.adult\.limits: dimensions \['quam', 'zorb'\]": (
    lambda d: d['gate']['adult']['limits'].reverse()
  ),
  r"gate\.minor\.limits holds 'quam'": (lambda d: limit(d).update(name='quam')),
  r'gate\.minor\.limits: there must be at least one': (
    lambda d: d['gate']['minor'].update(limits=[])
  ),
  r'0 of 0: needs at least one trial': (
    lambda d: limit(d)['blocked'].update(rows=0, hits=0)
  ),
  r'601 of 600': lambda d: limit(d)['blocked'].update(hits=601),
  r'gate\.minor: zorb\.refused\.rows=700': (
    lambda d: limit(d).update(refused=proportion(0, 700, False, 0.01))
  ),
  r'gate\.minor\.refused\.hits=1: dimensions refuse \[0, 0\]': (
    lambda d: d['gate']['minor'].update(refused=proportion(1, 600, False, 0.01))
  ),
}


@pytest.mark.parametrize('message', BAD)
def test_bad_files_are_refused_by_name(refused, message):
  refused(message, BAD[message])


def test_no_json_and_no_file(tmp_path):
  (tmp_path / 'a').write_text('{')
  with pytest.raises(ValueError, match='not valid JSON'):
    thresholds.load(tmp_path / 'a')
  (tmp_path / 'a').write_text('[]')
  with pytest.raises(ValueError, match='format=None'):
    thresholds.load(tmp_path / 'a')
  with pytest.raises(FileNotFoundError):
    thresholds.load(tmp_path / 'b')


def test_what_load_refuses_is_not_written(policy, tmp_path):
  with pytest.raises(ValueError, match='hold=100'):
    thresholds.write(tmp_path / 'a', dataclasses.replace(policy, hold=100))
  assert not list(tmp_path.iterdir())


def test_another_classifier_is_refused(policy):
  thresholds.check_classifier(policy.gate, 'gate', 'gate 1', NAMES)
  with pytest.raises(ValueError, match=r"gate\.version='gate 1'.*'gate 2'"):
    thresholds.check_classifier(policy.gate, 'gate', 'gate 2', NAMES)
  for names in NAMES[::-1], NAMES[:1], (*NAMES, 'more'):
    with pytest.raises(ValueError, match='gate: has thresholds for'):
      thresholds.check_classifier(policy.gate, 'gate', 'gate 1', names)


def test_what_is_reached_is_what_is_most_above(policy):
  limits = policy.gate.minor.limits
  assert thresholds.find_reached(limits, [0.59, 0.5]) is None
  assert thresholds.find_reached(limits, [0.6, 0.5]) == ('zorb', 0.6)
  assert thresholds.find_reached(limits, [0.7, 0.9]) == ('quam', 0.9)
  assert thresholds.find_reached(limits, [math.nan, 0.9])[0] == 'zorb'
  with pytest.raises(ValueError):
    thresholds.find_reached(limits, [0.1])
