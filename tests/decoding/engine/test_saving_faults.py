"""Points that are saved and taken back while something fails or goes."""

import types

import numpy as np
import pytest

from kaiju_jax.decoding.engine import saving
from kaiju_jax.decoding.pages import groups
from tests.decoding import saved_device
from tests.decoding.engine import talks

OWNERS = 'ann', 'ben', 'cid'


def state(engine):
  """Returns an engine's points, and the pages that anything holds."""
  account = engine.decoder.account
  pages = account.pages
  return (
    set(account.tree.points()),
    {kind: pages.count_held(kind) for kind in pages.kinds},
  )


class Failing:
  """A function that fails at one of its calls."""

  def __init__(self, function, at, error):
    self.function, self.left, self.error = function, at, error

  def __call__(self, *arguments, **options):
    self.left -= 1
    if self.left < 0:
      raise self.error
    return self.function(*arguments, **options)


@pytest.mark.parametrize('what', ['put', 'record', 'take'])
@pytest.mark.parametrize(
  'error', [RuntimeError('planted'), KeyboardInterrupt()]
)
def test_an_error_at_any_call_leaves_no_point_and_no_page(
  engines, what, error, monkeypatch
):
  one, other = engines(), engines()
  for owner in OWNERS[:2]:
    talks.talk(one, owner)
  talks.talk(other, 'cid', prefix=7, salt='c' * 64)
  saved = saved_device.save(saved_device.saving_of(one))
  found = [groups.parse(x, 'root') for x in saved]
  taken, before = saved_device.saving_of(other), state(other)
  account = other.decoder.account
  place, name = {
    'put': (taken._copies, 'put'),
    'record': (account.tree, 'record'),
    'take': (account.pages, 'take'),
  }[what]
  for at in range(100):
    with monkeypatch.context() as patch:
      failing = Failing(getattr(place, name), at, error)
      patch.setattr(place, name, failing)
      try:
        taken.adopt(found)
      except type(error):
        assert state(other) == before, at
        continue
    break
  assert at > (0 if what == 'put' else 2) and failing.left >= 0
  # What failed before comes back now, and is what it was.
  assert len(account.tree) == len(before[0]) + len(one.decoder.account.tree)
  saved_device.check(account, taken._copies.written)


@pytest.mark.parametrize('seed', range(6))
def test_what_goes_between_the_look_and_the_copy_is_not_copied(engines, seed):
  """The pages of what has gone may be another owner's."""
  rng = np.random.default_rng(seed)
  one = engines(pages=64)
  for owner in OWNERS:
    talks.talk(one, owner)
  found = saved_device.saving_of(one)
  selected = found.select(10**9, lambda name: True)
  tree = one.decoder.account.tree
  for point in list(tree.points()):
    if rng.random() < 0.2:
      tree.drop(point)
  for number in range(int(rng.integers(4))):
    talks.run(one, talks.text(number, 30), owner='dan')
  kept = 0
  for group in selected:
    copied = found.copy(group)
    is_there = all(point in tree for point in group.points)
    assert (copied is not None) == is_there
    if is_there:
      kept += len(group.points)
      other = engines()
      taken = saved_device.saving_of(other)
      taken.adopt([groups.parse(copied.to_bytes(), 'root')])
      saved_device.check(other.decoder.account, taken._copies.written)
  assert kept < sum(len(group.points) for group in selected)


@pytest.mark.parametrize('seed', range(4))
def test_what_fits_a_budget_comes_back_whole(engines, seed):
  rng = np.random.default_rng(seed)
  one = engines()
  for owner in OWNERS:
    talks.talk(one, owner, turns=int(rng.integers(1, 4)))
  found = saved_device.saving_of(one)
  for most in (0, *rng.integers(16, 1200, 6).tolist(), 10**9):
    selected = found.select(most, lambda name: True)
    points = {point for group in selected for point in group.points}
    other = engines()
    taken = saved_device.saving_of(other)
    taken.adopt(
      groups.parse(found.copy(x).to_bytes(), 'root') for x in selected
    )
    assert len(other.decoder.account.tree) == len(points), most
  assert len(points) == len(one.decoder.account.tree)


def test_the_root_depends_on_all_that_keys_and_values_depend_on(monkeypatch):
  def root(
    weights='w', tokenizer='t', reference=4096, page=16, layout=(1,), backend=''
  ):
    decoder = types.SimpleNamespace(
      network=types.SimpleNamespace(reference_length=reference),
      account=types.SimpleNamespace(page=page),
    )
    monkeypatch.setattr(saving.jax, 'default_backend', lambda: backend)
    return saving.digest_root(
      types.SimpleNamespace(decoder=decoder),
      types.SimpleNamespace(layout={'local': list(layout)}),
      weights,
      tokenizer,
    )

  found = [
    root(),
    root(weights='t', tokenizer='w'),
    root(weights='x'),
    root(tokenizer='x'),
    root(reference=8192),
    root(reference=None),
    root(page=32),
    root(layout=(2,)),
    root(layout=(1, 1)),
    root(backend='tpu'),
  ]
  assert len(set(found)) == len(found) and root() == found[0]
