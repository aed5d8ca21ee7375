"""experiments.train_gate from its flags to a folder that a server takes."""

import json
import subprocess
import sys

import pytest

from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import thresholds
from tests.experiments import forked
from tests.serving import planted


def run(*flags):
  return forked.run([['experiments.train_gate', *flags]])[0]


def test_help_imports_neither_jax_nor_scikit_learn():
  code = (
    'import sys\n'
    'import experiments.train_gate\n'
    'print([m for m in ("jax", "sklearn", "scipy") if m in sys.modules])'
  )
  done = subprocess.run(
    [sys.executable, '-c', code],
    cwd=forked.ROOT,
    capture_output=True,
    text=True,
  )
  assert done.stdout == '[]\n', done.stderr


@pytest.mark.slow
def test_planted_texts_give_what_a_server_takes(tmp_path):
  pytest.importorskip('sklearn')
  names = ('quam', 'zorb')
  head = planted.stage('head 1', names, low=0.1)
  before = tmp_path / 'before.json'
  thresholds.write(before, planted.policy(planted.stage('g', names), head))
  out = tmp_path / 'out'
  done = run('--planted', f'--out={out}', f'--head={before}', '--hold=5')
  assert done.returncode == 0, done.stderr
  moderator = moderation.Moderator(moderation.Head('head 1', names))
  version = moderator.use(out)
  assert moderator.mode == 'moderated' and version.policy.hold == 5
  assert version.policy.head == head
  watch = moderator.watch(None)
  assert not watch.read('the teacher forgot an exam at school :(').is_blocked
  for text in 'a zorbifex', 'ａ ｚｏｒｂｉｆｅｘ', 'say z o r b i f e x now':
    assert watch.read(text).dimension == 'zorb'
  assert 'Certified' in (out / 'report.md').read_text()
  assert 'exists' in run('--planted', f'--out={out}').stderr


@pytest.mark.slow
def test_too_few_rows_exit_with_4(tmp_path):
  pytest.importorskip('sklearn')
  data = tmp_path / 'rows.jsonl'
  data.write_text(
    ''.join(
      json.dumps({'text': f'{word} {n}', 'labels': {'a': word == 'zorbifex'}})
      + '\n'
      for n in range(300)
      for word in ('zorbifex', 'hello')
    )
  )
  done = run(f'--data={data}', f'--out={tmp_path / "out"}')
  assert done.returncode == 4, done
  assert 'gate: not evaluated. ' in done.stderr
  assert not (tmp_path / 'out' / 'thresholds.json').exists()
