"""The commands on text, end to end on the text that Python carries."""

import json

import pytest

from tests.experiments import forked


@pytest.fixture(scope='module')
def done(tmp_path_factory):
  """Outcomes of the commands, in order, and their folder."""
  folder = tmp_path_factory.mktemp('mixes')
  texts = folder / 'texts'
  sources = ','.join(
    f'{kind}={texts}/source_{kind}.jsonl' for kind in ('code', 'docstrings')
  )
  target = f'--target={texts}/target_reference.jsonl'
  commands = [
    f'mix_texts --out={texts}',
    f'mix {target} --sources={sources} --resamples=4 --out={folder}/mix',
    f'mix {target} --sources={sources} --out={folder}/mix',
    f'select {target} --source={texts}/source_docstrings.jsonl --count=50'
    f' --out={folder}/selected',
    f'duplicates --documents={texts}/source_messages.jsonl'
    f' --out={folder}/unique',
    f'leaks --evaluation={texts}/target_sessions.jsonl'
    f' --training={texts}/source_sessions.jsonl --out={folder}/leaks',
    'mix --target=x --sources=a --out=y',
  ]
  words = [f'experiments.{command}'.split() for command in commands]
  return folder, forked.run(words)


@pytest.mark.slow
def test_the_commands_work_on_what_mix_texts_wrote(done):
  folder, (texts, mix, again, select, duplicates, leaks, bad) = done
  for one in texts, mix, select, duplicates, leaks:
    assert one.returncode == 0, one.stderr
    assert not one.jax
  weights = {
    one['name']: one['weight']
    for one in json.loads((folder / 'mix/mix.json').read_text())['sources']
  }
  assert weights['docstrings'] > 0.5 > weights['code']
  assert 'source_comments: ' in texts.stdout
  assert '50 of ' in select.stdout and 'are kept' in duplicates.stdout
  assert 'items are leaked' in leaks.stdout
  assert again.returncode == bad.returncode == 1
  assert 'exists; must be the name of a new folder' in again.stderr
  assert "error: --sources: 'a' is not NAME=PATH." in bad.stderr
