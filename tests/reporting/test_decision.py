"""Decisions: the worst check decides, and absence never passes."""

import itertools
import json

import pytest

from kaiju_jax.reporting import decision

PASSED = decision.Check(decision.PASSED)
REFUSED = decision.Check(decision.REFUSED, 'Too low.')
UNKNOWN = decision.Check(decision.NOT_EVALUATED, 'Too few.')


@pytest.mark.parametrize(
  'checks, status, exit_status',
  [
    ([PASSED], 'passed', 0),
    ([PASSED, PASSED], 'passed', 0),
    ([PASSED, UNKNOWN], 'not evaluated', 4),
    ([PASSED, UNKNOWN, REFUSED], 'refused', 3),
    ([], 'not evaluated', 4),
  ],
)
def test_the_worst_check_decides_in_any_order(checks, status, exit_status):
  for order in itertools.permutations(checks):
    found = decision.decide('gate', order, {}, {})
    assert (found.status, found.exit_status) == (status, exit_status)
    assert bool(found.reasons) == (exit_status > 0)


def test_a_command_ends_with_the_decision_and_its_reasons(capsys):
  decision.finish(decision.decide('gate', [PASSED], {}, {}))
  with pytest.raises(SystemExit) as ended:
    decision.finish(decision.decide('gate', [UNKNOWN, REFUSED], {}, {}))
  assert ended.value.code == 3
  assert capsys.readouterr().err == 'gate: refused. Too few. Too low.\n'


def test_a_file_is_read_back_and_a_changed_one_is_refused(tmp_path):
  path = tmp_path / decision.FILE
  made = decision.decide('gate', [REFUSED], {'rate': [1, 0.5]}, {'data': 'ab'})
  decision.write(path, made)
  assert decision.load(path) == made
  whole = json.loads(path.read_text())
  for field, value in (
    ('format', 'kaiju_jax decision 0'),
    ('status', 'fine'),
    ('reasons', 'none'),
    ('figures', None),
    ('inputs', []),
    ('more', 1),
  ):
    path.write_text(json.dumps({**whole, field: value}))
    with pytest.raises(ValueError, match=f'{path}: {field}'):
      decision.load(path)
  del whole['inputs']
  path.write_text(json.dumps(whole))
  with pytest.raises(ValueError, match='inputs'):
    decision.load(path)
  path.write_text('[]')
  with pytest.raises(ValueError, match=r'format=\[\]'):
    decision.load(path)


def test_a_check_needs_a_reason_exactly_where_it_did_not_pass():
  with pytest.raises(ValueError, match="reason='': "):
    decision.Check(decision.REFUSED)
  with pytest.raises(ValueError, match=r"reason='Fine\.'"):
    decision.Check(decision.PASSED, 'Fine.')
  with pytest.raises(ValueError, match="status='good'"):
    decision.Check('good')


def test_a_digest_changes_with_a_byte_a_name_and_a_file(tmp_path):
  folder = tmp_path / 'export'
  (folder / 'in').mkdir(parents=True)
  (folder / 'a').write_bytes(b'1')
  (folder / 'in' / 'b').write_bytes(b'2')
  found = [decision.digest(folder)]
  (folder / 'a').write_bytes(b'3')
  found.append(decision.digest(folder))
  (folder / 'a').rename(folder / 'c')
  found.append(decision.digest(folder))
  (folder / 'd').write_bytes(b'')
  found.append(decision.digest(folder))
  assert len(set(found)) == 4
  (folder / 'd').unlink()
  (folder / 'c').rename(folder / 'a')
  (folder / 'a').write_bytes(b'1')
  assert decision.digest(folder) == found[0]
  assert decision.digest(folder / 'a') != decision.digest(folder / 'in' / 'b')
  with pytest.raises(OSError):
    decision.digest(tmp_path / 'none')
