"""experiments.refusal from its flags to a decision and its exit status."""

import json

import pytest

from kaiju_jax.classifiers import planted as planted_texts
from kaiju_jax.classifiers import two_sets
from kaiju_jax.reporting import decision
from kaiju_jax.serving.safety import blocked
from tests.experiments import forked
from tests.serving import planted

MARKERS = 'zorbifex', 'zorbifexes', 'quamlith', 'torm'


@pytest.fixture
def place(tmp_path):
  """Two gates: one knows all markers (and a harmless word), one knows half."""
  names = ('a', 'b', 'c', 'd')
  planted.write(tmp_path / 'new', planted.gate(MARKERS, names))
  planted.write(tmp_path / 'old', planted.gate(MARKERS[:2], names[:2]))
  sets = planted_texts.draw_two_sets(3)
  fiction = [one for one in sets.benign if 'torm' not in one.text.split()]
  two_sets.write(tmp_path / 'adversarial.jsonl', sets.adversarial)
  two_sets.write(tmp_path / 'benign.jsonl', fiction)
  log = blocked.Blocked(tmp_path / 'log', b'a secret of the server')
  for text in 'a zorbifex', 'a quamlith', 'a secret quamlith of Ada':
    log.add('gate', 'minor', 'a', 0.9, 'v1', 'ada', text)
  return tmp_path


@pytest.mark.slow
def test_what_is_held_counted_compared_and_replayed(place):
  sets = [f'--{x}={place / x}.jsonl' for x in ('adversarial', 'benign')]
  new, old = f'--safety={place / "new"}', f'--safety={place / "old"}'
  against = [f'--against={place / "old"}', f'--blocked={place / "log"}']
  commands = {
    'passed': [new, *sets, *against, '--raise'],
    'refused': [old, *sets, f'--against={place / "new"}'],
    'few': [new, '--planted', '--served'],
    'shown': [new, *sets, *against, '--show=1'],
    'unlogged': [new, '--planted', f'--blocked={place / "no"}'],
  }
  commands = {
    name: ['experiments.refusal', f'--out={place / "out" / name}', *words]
    for name, words in commands.items()
  }
  added = place / 'more.jsonl'
  two_sets.write(added, [two_sets.Example('a new brunch')])
  commands['added'] = [
    'experiments.refusal',
    f'--benign={place / "benign.jsonl"}',
    f'--add={added}',
    f'--out={place / "out.jsonl"}',
  ]
  done = dict(zip(commands, forked.run(list(commands.values()))))

  one = done['passed']
  assert one.returncode == 0, one
  found = decision.load(place / 'out' / 'passed' / decision.FILE)
  assert found.status == 'passed' and not found.reasons
  assert found.inputs['safety'] == decision.digest(place / 'new')
  figures = found.figures
  assert figures['replay']['rows'] == 3 and figures['replay']['passed'] == 2
  counts = figures['tiers']['minor']['adversarial']
  assert counts['hits'] == counts['rows'] >= 368
  assert {one['category'] for one in figures['slices']} == {
    'fiction',
    'real instruction',
  }
  assert [one['by'] for one in figures['raised']] == [0, 0]
  assert all(one['lost'] == 0 for one in figures['changes'])
  # Counts are told, and no logged text.
  report = (place / 'out' / 'passed' / 'report.md').read_text()
  assert 'lets 2 pass' in report and report in one.stdout
  assert 'Ada' not in one.stdout + json.dumps(figures)
  assert 'a quamlith' in done['shown'].stdout
  assert 'Ada' not in done['shown'].stdout  # One was asked for.

  one = done['refused']
  assert one.returncode == 3, one
  assert 'adversarial texts are no longer refused' in one.stderr
  assert '560 of 560 benign texts are refused, which shows 100' in one.stderr
  one = done['few']
  assert one.returncode == 3 and 'benign texts are refused' in one.stderr
  one = done['unlogged']
  assert one.returncode == 1 and 'No such file' in one.stderr
  assert not (place / 'out' / 'unlogged').exists()
  assert done['added'].returncode == 0
  assert '1 of them new' in done['added'].stdout
  assert two_sets.read(place / 'out.jsonl')[-1].text == 'a new brunch'
