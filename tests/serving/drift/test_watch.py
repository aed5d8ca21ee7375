"""The thread that watches: what it samples, writes, shows and survives."""

import stat
import types

import numpy as np
import pytest

from kaiju_jax.serving.drift import monitor as monitor_lib
from kaiju_jax.serving.drift import watch as watch_lib
from kaiju_jax.storage import sealed
from tests.serving import trivial
from tests.serving.drift import drawn_pages

SECRET = b's' * 32


class Sampler:
  """Gives out pages, and remembers how many were wanted."""

  def __init__(self, foreign=0):
    self.limits, self.wanted = drawn_pages.LIMITS, []
    self.foreign, self.error = foreign, None

  def take(self, most):
    if self.error is not None:
      raise self.error
    self.wanted.append(most)
    found = drawn_pages.pages(len(self.wanted), most, b'mira ann')
    loud = drawn_pages.pages(len(self.wanted), most, foreign=self.foreign)
    return types.SimpleNamespace(read=lambda: loud if self.foreign else found)


@pytest.fixture
def make(tmp_path):
  """Returns a function that makes a watch, and what it shows."""

  def make(clock, sampler=None, weights='w', secret=SECRET, late=False):
    worker = types.SimpleNamespace(
      ask=lambda function: None if late else function()
    )
    shown = []
    made = watch_lib.DriftWatch(
      worker,
      sampler or Sampler(),
      watch_lib.Folder(tmp_path / 'drift', secret),
      weights,
      lambda *state: shown.append(state),
      clock,
    )
    made.shown = shown
    return made

  return make


def run(made, clock, seconds):
  for _ in range(int(seconds / watch_lib.INTERVAL_S)):
    clock.now += watch_lib.INTERVAL_S
    made.sample()


def checkpoints(tmp_path):
  return sorted(x.name for x in (tmp_path / 'drift').iterdir())


def test_windows_are_shown_and_few_pages_are_taken_at_a_time(make):
  clock, sampler = trivial.Clock(), Sampler()
  made = make(clock, sampler)
  assert made.shown == [(None, None, False)]
  hours = 5
  run(made, clock, hours * 3600)
  assert max(sampler.wanted) <= watch_lib.BATCH
  windows = len(made.shown) - 1
  assert windows == made.monitor.windows
  assert 0.9 < windows * monitor_lib.SECONDS / 3600 / hours <= 1
  assert sum(sampler.wanted) == pytest.approx(
    windows * monitor_lib.PAGES, rel=0.02
  )
  assert made.shown[monitor_lib.BASELINE] == (None, None, False)
  tokens, codes, is_frozen = made.shown[monitor_lib.BASELINE + 1]
  assert tokens > 0 and codes > 0 and not is_frozen


def test_after_a_pause_no_more_pages_are_taken_than_ever(make):
  clock, sampler = trivial.Clock(), Sampler()
  made = make(clock, sampler)
  made.sample()
  clock.now += 3600
  made.sample()
  assert sampler.wanted == [watch_lib.BATCH]


def test_a_checkpoint_each_four_hours_that_only_its_user_reads(
  make, tmp_path, monkeypatch
):
  monkeypatch.setattr(watch_lib, 'KEPT', 3)
  clock = trivial.Clock()
  made = make(clock)
  run(made, clock, 13 * 3600)
  begun = 1_000_000
  assert checkpoints(tmp_path) == [
    f'calibration-{begun + n * 4 * 3600}.drift' for n in (1, 2, 3)
  ]
  for path in (tmp_path / 'drift').iterdir():
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for name in b'ann', b'mira ann'.hex().encode():  # Nobody's name.
      assert name not in path.read_bytes()
  run(made, clock, 8 * 3600)
  assert checkpoints(tmp_path) == [
    f'calibration-{begun + n * 4 * 3600}.drift' for n in (3, 4, 5)
  ]


def test_a_checkpoint_that_failed_is_tried_again_at_once(
  make, tmp_path, monkeypatch
):
  clock = trivial.Clock()
  made = make(clock)

  def fail(*_):
    raise OSError(28, 'No space left on device')

  with monkeypatch.context() as patch:
    patch.setattr(made._folder, 'write', fail)
    with pytest.raises(OSError, match='No space'):
      run(made, clock, 5 * 3600)
  assert not checkpoints(tmp_path)
  run(made, clock, watch_lib.INTERVAL_S)
  assert len(checkpoints(tmp_path)) == 1


def test_while_it_is_frozen_no_checkpoint_is_written(make, tmp_path):
  clock, sampler = trivial.Clock(), Sampler()
  made = make(clock, sampler)
  run(made, clock, 9 * 3600)
  before = checkpoints(tmp_path)
  assert len(before) == 2
  sampler.foreign = watch_lib.BATCH
  run(made, clock, 9 * 3600)
  assert made.shown[-1][2] and checkpoints(tmp_path) == before


def test_a_new_process_goes_on_from_the_checkpoint(make, tmp_path):
  clock = trivial.Clock()
  run(make(clock), clock, 14 * 3600)
  again = make(clock)
  assert 12 * 3600 // 180 - again.monitor.windows in (0, 1)
  assert again.monitor.guard.tokens.threshold < np.inf
  # Its next one is due four hours after the last, not after its start.
  run(again, clock, 2 * 3600 + 60)
  assert len(checkpoints(tmp_path)) == 4


@pytest.mark.parametrize('other', ['weights', 'key', 'damaged', 'renamed'])
def test_other_checkpoints_are_left_alone(make, tmp_path, other, caplog):
  clock = trivial.Clock()
  run(make(clock), clock, 5 * 3600)
  (path,) = (tmp_path / 'drift').iterdir()
  options = {}
  if other == 'weights':
    options = {'weights': 'other'}
  elif other == 'key':
    options = {'secret': b'o' * 32}
  elif other == 'damaged':
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
  else:
    path.rename(path.with_name('calibration-9999999.drift'))
  assert make(clock, **options).monitor.windows == 0
  assert len(checkpoints(tmp_path)) == 1
  assert ('is refused' in caplog.text) == (other != 'weights')


def test_an_engine_that_is_late_or_replaced_ends_nothing(make, caplog):
  clock = trivial.Clock()
  made = make(clock, late=True)
  run(made, clock, 3600)
  assert made.monitor.windows == 0
  sampler = Sampler()
  sampler.error = ValueError("the decoder's model was replaced")
  made = make(clock, sampler)
  with pytest.raises(ValueError, match='was replaced'):
    run(made, clock, 3600)


def test_the_thread_goes_on_after_a_failure(make, monkeypatch, caplog):
  monkeypatch.setattr(watch_lib, 'INTERVAL_S', 0.001)
  clock, sampler = trivial.Clock(), Sampler()
  made, looks = make(clock, sampler), []

  def look():
    looks.append(1)
    raise OSError('the disk is full')

  made.sample = look
  made.start()
  assert trivial.until(lambda: len(looks) > 3)
  made.stop()
  assert 'traffic could not be watched' in caplog.text
  assert not made._thread.is_alive()


def test_pseudonyms_are_of_the_key(tmp_path):
  names = [
    watch_lib.Folder(tmp_path, secret).rename(character)
    for secret, character in ((SECRET, b'a'), (SECRET, b'b'), (b'o' * 32, b'a'))
  ]
  assert len(set(names)) == 3
  assert names[0] == watch_lib.Folder(tmp_path, SECRET).rename(b'a')
  assert issubclass(sealed.SealError, ValueError)
