"""An application for servers of a module."""

import pytest

from tests.serving import trivial


@pytest.fixture(scope='module')
def application():
  return trivial.Application()
