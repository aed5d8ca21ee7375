"""Engines that must end empty."""

import pytest

from tests.serving import world


@pytest.fixture
def engines():
  """Returns a function that makes engines, which must all end empty."""
  made = []

  def make(**options):
    made.append(world.Engine(**options))
    return made[-1]

  yield make
  for engine in made:
    assert world.nothing_is_left(engine)
