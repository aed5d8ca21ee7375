"""What the tests of runs share: texts, and what their runs compile."""

import pytest

from tests import toys


@pytest.fixture(scope='module')
def texts(tmp_path_factory):
  return toys.write_texts(tmp_path_factory.mktemp('texts'))


@pytest.fixture(scope='module')
def programs():
  """What all runs of a module compile together."""
  return {}
