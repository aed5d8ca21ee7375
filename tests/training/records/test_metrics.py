"""metrics.jsonl is whole at any moment, and strict JSON throughout."""

import errno
import json
import math
import os

import pytest

from kaiju_jax.training.records import metrics


def _write(folder, steps, last_step=0, **values):
  records = metrics.Records(folder, last_step)
  for step in steps:
    records.append(step, 8 * step, {'loss': 1 / step, **values})
  records.close()


def _steps(folder):
  return [record['step'] for record in metrics.read(folder)]


def test_records_are_read_back_exactly(tmp_path):
  _write(tmp_path, [1, 2], small=1e-300)
  assert metrics.read(tmp_path)[1] == {
    'step': 2,
    'tokens': 16,
    'loss': 0.5,
    'small': 1e-300,
  }


def test_values_that_are_not_finite_are_strings_in_the_file(tmp_path):
  inf = float('inf')
  _write(tmp_path, [1], a=float('nan'), b=inf, c=-inf)

  def refuse(name):
    raise AssertionError(f'{name} is not JSON')

  line = json.loads(
    (tmp_path / metrics.FILE).read_text(), parse_constant=refuse
  )
  assert (line['a'], line['b'], line['c']) == ('NaN', 'Infinity', '-Infinity')
  (read,) = metrics.read(tmp_path)
  assert math.isnan(read['a']) and (read['b'], read['c']) == (inf, -inf)


@pytest.mark.parametrize('tail', [b'', b'{"step": 5, "tok', b'{"step": 5}'])
def test_resuming_cuts_back_to_the_step_and_drops_half_a_line(tmp_path, tail):
  _write(tmp_path, [1, 2, 3, 3, 4])
  whole = (tmp_path / metrics.FILE).read_bytes()
  with open(tmp_path / metrics.FILE, 'ab') as file:
    file.write(tail)
  assert _steps(tmp_path) == [1, 2, 3, 3, 4]
  _write(tmp_path, [], last_step=4)
  assert (tmp_path / metrics.FILE).read_bytes() == whole
  _write(tmp_path, [4, 5], last_step=3)
  assert _steps(tmp_path) == [1, 2, 3, 3, 4, 5]
  _write(tmp_path, [], last_step=0)
  assert (tmp_path / metrics.FILE).read_bytes() == b''


def test_a_damaged_line_costs_no_other_record(tmp_path):
  _write(tmp_path, [1, 2])
  with open(tmp_path / metrics.FILE, 'ab') as file:
    file.write(b'\x00\x00 damage\n[1]\n')
  _write(tmp_path, [3], last_step=2)
  assert _steps(tmp_path) == [1, 2, 3]
  whole = (tmp_path / metrics.FILE).read_bytes()
  (tmp_path / metrics.FILE).write_bytes(b'damage\n' + whole)
  _write(tmp_path, [], last_step=3)
  assert (tmp_path / metrics.FILE).read_bytes() == b'damage\n' + whole
  with pytest.raises(ValueError, match=r'metrics\.jsonl:1: not a record'):
    metrics.read(tmp_path)


def test_a_full_disk_is_an_error_that_leaves_whole_records(
  tmp_path, monkeypatch
):
  records = metrics.Records(tmp_path, 0)
  records.append(1, 8, {'loss': 1.0})
  write = os.write

  def nearly_full(file, data):
    if len(data) < 20:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return write(file, data[:-10])

  with monkeypatch.context() as patched:
    patched.setattr(os, 'write', nearly_full)
    with pytest.raises(OSError, match='No space left') as error:
      records.append(2, 16, {'loss': 1.0})
  assert error.value.errno == errno.ENOSPC
  assert 'step 2' in str(error.value) and str(tmp_path) in str(error.value)
  records.append(2, 16, {'loss': 2.0})
  records.close()
  assert metrics.read(tmp_path)[1] == {'step': 2, 'tokens': 16, 'loss': 2.0}
  assert len((tmp_path / metrics.FILE).read_bytes().splitlines()) == 2


def test_a_metric_cannot_take_the_records_own_names(tmp_path):
  records = metrics.Records(tmp_path, 0)
  with pytest.raises(ValueError, match='tokens'):
    records.append(1, 8, {'tokens': 1.0})
  records.close()
