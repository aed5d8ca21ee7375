"""Engines that must end empty, and phases that follow by the table."""

import pytest

from tests.decoding import fake_engine
from tests.decoding import phase_table
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
