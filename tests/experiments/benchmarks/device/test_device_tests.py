"""A test of numerics becomes a record, a failure, or a lost device."""

import pytest

from experiments.benchmarks.device import numerics
from experiments.benchmarks.device import setting as setting_lib
from kaiju_jax.kernels import timing

_TESTS = """
import pytest
from kaiju_jax.kernels import timing

@pytest.mark.device
@pytest.mark.parametrize('error', [None, AssertionError, OSError,
                                   timing.DeviceLost], ids=str)
def test_one(error, record_property):
  if error not in (OSError, timing.DeviceLost):
    record_property('record', {'holds': error is None})
  if error:
    raise error('planted')

def test_of_a_cpu():
  raise OSError('never runs')
"""


def test_records_and_what_has_none(tmp_path, monkeypatch):
  monkeypatch.setattr(numerics, '_TESTS', tmp_path)
  file = tmp_path / 'test_planted.py'
  file.write_text(_TESTS)
  names = [x.name for x in numerics._run(str(tmp_path), '--collect-only').items]
  assert len(names) == 4
  setting = setting_lib.Setting('unused')
  holds, not_, fails, loses = (f'{file}::{name}' for name in names)
  assert numerics.measure(setting, holds) == {'holds': True}
  assert numerics.measure(setting, not_) == {'holds': False}
  with pytest.raises(OSError, match='planted'):
    numerics.measure(setting, fails)
  with pytest.raises(timing.DeviceLost, match='planted'):
    numerics.measure(setting, loses)
  file.unlink()
  with pytest.raises(ImportError, match='NO_TESTS_COLLECTED'):
    numerics._run(str(tmp_path))
