"""Both stages together: verdicts, failures, and versions that change."""

import json
import logging
import statistics
import threading
import time

import numpy as np
import pytest

from kaiju_jax.serving.safety import blocked
from kaiju_jax.serving.safety import gate as gate_lib
from kaiju_jax.serving.safety import moderation
from tests.serving import planted

HEAD = planted.HEAD
BENIGN, VIOLATING = 'a benign text', 'a zorbifex'


@pytest.fixture
def safety(tmp_path):
  return planted.write(tmp_path / 'safety', planted.gate())


@pytest.fixture
def later(tmp_path):
  """A version that knows another word, with other thresholds."""
  gate = planted.gate([planted.QUAM])
  return planted.write(tmp_path / 'later', gate, minor=0.55)


@pytest.fixture
def log(tmp_path):
  return blocked.Blocked(tmp_path / 'log', b'a secret of the server')


@pytest.fixture
def moderator(safety, log):
  moderator = moderation.Moderator(HEAD, log)
  moderator.use(safety)
  return moderator


@pytest.fixture
def records(tmp_path, log):
  """Returns what the log has by then."""
  return lambda: list(blocked.read(tmp_path / 'log'))


def said(release, pieces):
  """Returns what comes of a reply, and whether it was stopped."""
  text = ''
  for piece, scores in zip(pieces, planted.head(pieces)):
    released = release.push(piece, scores)
    text += released.text
    if released.ended:
      return text, True
  return text + release.finish().text, False


def test_both_stages_stop_what_violates(moderator, records):
  for age in 'adult', None:
    watch = moderator.watch(age, 'ada')
    assert watch.mode == moderator.mode == 'moderated'
    verdict = watch.read(BENIGN)
    assert not verdict.is_blocked and verdict.stage == 'gate'
    verdict = watch.read(VIOLATING)
    assert verdict.is_blocked and verdict.dimension == 'zorb'
    assert verdict.score > 0.99 and not verdict.has_failed
    assert verdict.version == moderator.version.gate.version
    assert verdict.tier == ('adult' if age else 'minor')
    assert not watch.prompt([0.1], BENIGN).is_blocked
    verdict = watch.prompt([0.99], VIOLATING)
    assert verdict.is_blocked and verdict.stage == 'prompt'
    assert verdict.version == 'head 1'
    assert said(watch.release(), list(BENIGN)) == (BENIGN, False)
    assert said(watch.release(), list(VIOLATING)) == ('a ', True)
  stages = [record.stage for record in records()]
  assert stages == ['gate', 'prompt', 'head'] * 2
  versions = moderator.version.gate.version, 'head 1', 'head 1'
  assert [record.version for record in records()] == [*versions] * 2
  assert [record.text for record in records()] == [VIOLATING] * 6


def test_all_of_a_long_text_is_judged(moderator, records):
  watch = moderator.watch('adult')
  long = f'{BENIGN}. ' * 400  # Several of the gate's parts.
  assert not watch.read(long * 2).is_blocked
  for text in VIOLATING + long, long + VIOLATING + long, long + VIOLATING:
    assert watch.read(text.replace('zorbifex', ' zorbifex ')).is_blocked
  assert all('zorbifex' in record.text for record in records())


def test_minors_have_thresholds_of_their_own(moderator):
  adult, minor = (moderator.watch(age) for age in ('adult', 'child'))
  assert not adult.prompt([0.7]).is_blocked
  assert minor.prompt([0.7]).is_blocked
  assert not adult.release().push('a', [0.7]).ended
  assert minor.release().push('a', [0.7]).ended


def test_without_weights_it_is_unmoderated(log, records, caplog):
  caplog.set_level(logging.DEBUG)
  moderator = moderation.Moderator(HEAD, log)
  assert moderator.mode == 'unmoderated' and moderator.version is None
  watch = moderator.watch(None)
  assert not watch.read(VIOLATING).is_blocked
  assert not watch.prompt([1.0]).is_blocked
  assert said(watch.release(), [VIOLATING]) == (VIOLATING, False)
  assert not records() and not caplog.records


@pytest.mark.parametrize('missing', ['head', 'thresholds'])
def test_without_a_head_nothing_is_served(tmp_path, safety, missing, log):
  if missing == 'head':
    moderator = moderation.Moderator(None, log)
  else:
    safety = planted.write(tmp_path / 'alone', planted.gate(), head=None)
    moderator = moderation.Moderator(HEAD, log)
  moderator.use(safety)
  assert moderator.mode == 'closed'
  for age in 'adult', None:
    watch = moderator.watch(age)
    for verdict in watch.read(BENIGN), watch.prompt([0.0], BENIGN):
      assert verdict.is_blocked and verdict.stage == 'closed'
      assert verdict.has_failed
    with pytest.raises(RuntimeError, match='without a token head'):
      watch.release()


@pytest.mark.parametrize('error', [ValueError, MemoryError, RecursionError])
def test_a_gate_that_fails_is_closed_for_minors(
  moderator, monkeypatch, caplog, error
):
  def fail(self, text):
    raise error(f'about {text}')

  monkeypatch.setattr(gate_lib.Gate, 'score', fail)
  adult, minor = (moderator.watch(age) for age in ('adult', None))
  verdict = adult.read(VIOLATING)
  assert not verdict.is_blocked and verdict.has_failed
  verdict = minor.read(BENIGN)
  assert verdict.is_blocked and verdict.has_failed
  assert error.__name__ in caplog.text and VIOLATING not in caplog.text
  # The stage behind the model stays.
  assert adult.prompt([0.99]).is_blocked
  assert said(adult.release(), list(VIOLATING)) == ('a ', True)


def test_scores_that_are_missing_block(moderator):
  watch = moderator.watch('adult')
  verdict = watch.prompt(None, BENIGN)
  assert verdict.is_blocked and verdict.has_failed
  assert watch.prompt([float('nan')], BENIGN).is_blocked
  assert watch.release().push('a', None).ended


def test_a_log_that_fails_changes_no_verdict(moderator, monkeypatch, caplog):
  def full(*args):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(blocked.Blocked, 'add', full)
  watch = moderator.watch('adult')
  assert watch.read(VIOLATING).is_blocked
  assert said(watch.release(), list(VIOLATING)) == ('a ', True)
  assert 'No space left' in caplog.text and 'zorbifex' not in caplog.text


def test_thresholds_of_another_classifier_are_refused(tmp_path, safety):
  gate = planted.gate([planted.QUAM])
  gate.save(safety / moderation.GATE)
  with pytest.raises(ValueError, match=r'thresholds\.json: gate\.version='):
    moderation.Moderator(HEAD).use(safety)
  for head in (
    moderation.Head('2', ('zorb',)),
    moderation.Head('head 1', ('a',)),
  ):
    other = planted.write(tmp_path / str(head.version + head.names[0]), gate)
    with pytest.raises(ValueError, match=r'thresholds\.json: head'):
      moderation.Moderator(head).use(other)


def test_a_version_that_is_bad_leaves_the_one_that_is_served(
  moderator, safety, tmp_path
):
  served = moderator.version
  with pytest.raises(FileNotFoundError):
    moderator.use(tmp_path / 'nowhere')
  data = json.loads((safety / moderation.THRESHOLDS).read_text())
  data['gate']['minor']['limits'][0]['blocked']['hits'] = 500
  (safety / moderation.THRESHOLDS).write_text(json.dumps(data))
  with pytest.raises(ValueError, match='500 of 600'):
    moderator.use(safety)
  assert moderator.version is served
  assert moderator.watch(None).read(VIOLATING).is_blocked


def test_requests_keep_their_version_and_a_rollback_is_back_and_forth(
  moderator, later
):
  with pytest.raises(RuntimeError, match='no version before'):
    moderator.rollback()
  first, begun = moderator.version, moderator.watch(None)
  second = moderator.use(later)
  assert moderator.version is second and begun.version is first
  assert begun.read(VIOLATING).is_blocked
  assert not moderator.watch(None).read(VIOLATING).is_blocked
  assert moderator.rollback() is first
  assert moderator.watch(None).read(VIOLATING).is_blocked
  assert moderator.rollback() is second


def test_versions_change_under_threads(moderator, safety, later):
  """Every request sees one version whole: its gate, thresholds and name."""
  first = moderator.version
  second = moderator.use(later)
  markers = {first.gate.version: 'zorb', second.gate.version: 'quam'}
  stop, faults, seen = threading.Event(), [], set()

  def ask():
    while not stop.is_set():
      watch = moderator.watch(None)
      verdicts = watch.read('zorbifex'), watch.read('quamlith')
      version = {verdict.version for verdict in verdicts}.pop()
      blocks = [verdict.is_blocked for verdict in verdicts]
      if {verdict.version for verdict in verdicts} != {version}:
        faults.append('two versions')
      if blocks != [markers[version] == 'zorb', markers[version] == 'quam']:
        faults.append((version, blocks))
      seen.add(version)

  threads = [threading.Thread(target=ask) for _ in range(4)]
  for thread in threads:
    thread.start()
  taken = []
  for n in range(60):
    begun = time.perf_counter()
    if n % 3:
      moderator.rollback()
    else:
      moderator.use(later if n % 2 else safety)
    taken.append(time.perf_counter() - begun)
    time.sleep(0.002)
  stop.set()
  for thread in threads:
    thread.join()
  assert not faults and len(seen) == 2
  assert statistics.median(taken) < 1


def test_a_heads_version_is_its_content():
  params = {'w_DC': np.ones((3, 1)), 'bias_C': np.zeros(1)}
  version = moderation.head_version(params, ('a',))
  assert version == moderation.head_version(
    dict(reversed(params.items())), ['a']
  )
  assert version != moderation.head_version(params, ('b',))
  params['w_DC'] = params['w_DC'] + 1e-6
  assert version != moderation.head_version(params, ('a',))


def test_an_unknown_age_is_a_minors():
  assert moderation.tier_of('adult') == 'adult'
  for age in (None, '', 'minor', 'Adult', 'adult ', 17, 18, True, b'adult'):
    assert moderation.tier_of(age) == 'minor'
