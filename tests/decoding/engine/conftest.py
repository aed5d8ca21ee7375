"""Engines that must end empty, and phases that follow by the table."""

import pytest

from kaiju_jax.data import tokenizer
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from tests.decoding import fake_engine
from tests.decoding import phase_table
from tests.decoding import toys
from tests.serving import world


def _make_all(kind):
  made = []

  def make(**options):
    made.append(kind(**options))
    return made[-1]

  yield make
  for engine in made:
    engine.drain(0.0)
    assert not len(engine.state.shares)
    assert fake_engine.nothing_is_left(engine)


@pytest.fixture
def engines():
  """Returns a function that makes engines, which must all end empty."""
  yield from _make_all(world.Engine)


@pytest.fixture
def make():
  """Returns a function that makes engines of 3 rows and few pages."""
  yield from _make_all(fake_engine.Engine)


@pytest.fixture(autouse=True)
def moves(monkeypatch):
  """Has each sequence's phases checked; returns how often they followed."""
  return phase_table.watched(monkeypatch)


@pytest.fixture(scope='session')
def judged():
  """A generator in reference mode, with a head: rows of 40 tokens."""
  config = toys.small()
  decoder = decoder_lib.Decoder(
    toys.drawn(config), config, rows=3, length=40, page=4, mode='reference'
  )
  head = toys.head_of()
  return generator_lib.Generator(decoder, tokenizer.Bytes(), chunk=8, head=head)


@pytest.fixture
def generator(judged):
  """The same, and nothing is in its cache."""
  judged._decoder.account.tree.clear()
  yield judged
  assert judged.engine.is_idle
