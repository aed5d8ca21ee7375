"""Calibrations and their texts, compared from files."""

import json

import pytest
from scipy import special

from kaiju_jax.data.curation import similarity
from kaiju_jax.gates import calibration_diff


def write(path, played, plain):
  """Writes so many conversations with a character, and without one."""
  lines = [
    [('system', 'You are a pirate.'), ('user', 'Hi!'), ('assistant', 'Ahoy!')]
  ] * played
  lines += [[('user', 'What is iron?'), ('assistant', 'A metal.')]] * plain
  text = '\n'.join(
    json.dumps({'messages': [{'role': r, 'content': c} for r, c in one]})
    for one in lines
  )
  path.write_text(text + '\n')
  return str(path)


def test_texts_with_less_roleplay_are_named(tmp_path):
  before = write(tmp_path / 'a.jsonl', 8, 2)
  after = write(tmp_path / 'b.jsonl', 4, 6)
  found = calibration_diff.measure(before, after)
  assert found.figures['roleplay'] == [0.8, 0.4]
  text = found.parts[1]
  assert '80.0% → 40.0% of the replies' in text and 'become rarer' in text
  classes = found.figures['classes']
  # 8·(4 + 1 + 1) + 2·(3 + 2) words, of which 8·4 are the prefix's.
  assert classes['prefix']['before'] == pytest.approx(32 / 58)
  assert classes['without a character']['after'] == pytest.approx(12 / 54)
  assert sum(one['after'] for one in classes.values()) == pytest.approx(1)

  def smooth(texts):
    counts = similarity.ngram_counts(texts).toarray().sum(0, float) + 0.5
    return counts / counts.sum()

  ours, theirs = (
    smooth(['Hi!'] * n + ['What is iron?'] * m) for n, m in ((8, 2), (4, 6))
  )
  wanted = special.rel_entr(theirs, ours).sum()
  assert classes['user']['kl'] == pytest.approx(wanted) and wanted > 0


def test_equal_texts_have_no_difference(tmp_path):
  one = write(tmp_path / 'a.jsonl', 3, 3)
  found = calibration_diff.measure(one, one)
  assert all(x['kl'] == 0 for x in found.figures['classes'].values())
  assert 'rarer' not in found.parts[1]
  # More roleplay is no fall, and a class that one lacks has no KL.
  more = calibration_diff.measure(one, write(tmp_path / 'b.jsonl', 3, 0))
  assert 'rarer' not in more.parts[1]
  assert more.figures['classes']['without a character']['kl'] is None


def test_a_file_and_a_model_are_not_compared(tmp_path):
  file = write(tmp_path / 'a.jsonl', 1, 0)
  with pytest.raises(ValueError, match='must be two models, or two files'):
    calibration_diff.measure(file, str(tmp_path))
  (tmp_path / 'b.jsonl').write_text('{"text": "prose"}\n')
  with pytest.raises(ValueError, match=r'b\.jsonl'):
    calibration_diff.measure(file, str(tmp_path / 'b.jsonl'))
