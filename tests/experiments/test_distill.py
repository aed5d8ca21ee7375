"""The comparison of sampling methods: what its arms share, and its verdicts."""

import dataclasses
import sys

import pytest

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.experiments.configs import distill
from kaiju_jax.experiments.studies import distill as study
from kaiju_jax.experiments.studies import settings as settings_lib


def test_arms_differ_in_their_targets_alone():
  none = distill.get_config('none')
  assert none.data.teacher == '' and none.objective.name == 'language'
  for method in distill.METHODS:
    experiment = distill.get_config(method)
    assert experiment.data.teacher == f'{distill.ROOT}/{method}'
    wanted = distill.VOCABULARY if method == 'full' else distill.ENTRIES
    assert experiment.objective.distillation.entries == wanted
    assert experiment.objective.distillation.mix == 0
    experiment.data.teacher = ''
    experiment.objective = none.objective
    assert experiment == none
  teacher = distill.get_config('teacher')
  # The two hold out the same documents, and cut text into the same tokens.
  for name in ('held_out', 'tokenizer'):
    assert getattr(teacher.data, name) == getattr(none.data, name)
  assert teacher.model.vocab_size == none.model.vocab_size
  with pytest.raises(ValueError, match="arm='half': must be one of full, "):
    distill.get_config('half')


@pytest.mark.parametrize('wanted, nearest', [(0, 2), (31, 6), (33, 7), (99, 9)])
def test_the_nearest_size_is_found(wanted, nearest):
  assert study._nearest(lambda n: 5 * n, wanted, range(2, 10)) == nearest


@pytest.mark.parametrize('dry_run', [True, False])
def test_students_start_as_the_command_says(monkeypatch, dry_run):
  flags = ['--launch=slurm', '--jobs=2', '--seeds=3']
  started = []
  monkeypatch.setattr(sys, 'argv', ['distill', *flags])
  monkeypatch.setattr(study, '_run', lambda *words: started.append(words))
  for name in ('_make_tokenizer', '_publish'):
    monkeypatch.setattr(study, name, lambda *words: started.append(words))
  monkeypatch.setattr(study, '_samplings', lambda: {'full': {'entries': 3}})
  study.run(settings_lib.Distill(dry_run=dry_run))
  students = [x for x in started if 'ablate' in x]
  assert [[*x[3:]] for x in students] == [flags]
  assert len(started) == (1 if dry_run else 5)


def test_verdicts():
  losses = {
    'full': {0: 3.0, 1: 3.2, 2: 3.1},
    'systematic': {0: 3.01, 1: 3.21, 2: 3.11},
    'top_k': {0: 3.3, 1: 3.5, 2: 3.41},
    'none': {0: 3.0, 1: 3.3, 2: 3.1},
  }
  full, top_k, none = study._verdicts(losses)
  assert '+0.32% (target within 1 %, met)' in full
  assert top_k.startswith('systematic against top_k: -0.29') and 'met' in top_k
  assert none.endswith('(target below 0, MISSED)')


def test_the_tokenizer_is_made_of_training_text_once(tmp_path, monkeypatch):
  texts = tmp_path / 'texts'
  texts.mkdir()
  for number in range(30):
    (texts / f'{number}.txt').write_text('def spam(eggs):\n  return eggs\n' * 9)
  experiment = dataclasses.replace(distill.get_config('teacher'))
  experiment.data.path = str(texts)
  monkeypatch.setattr(distill, 'get_config', lambda arm: experiment)
  path = tmp_path / 'runs/tokenizer.json'
  study._make_tokenizer(path)
  made = tokenizer_lib.load(str(path), distill.VOCABULARY)
  tokens = made.encode('  return eggs\n')
  assert made.decode(tokens) == '  return eggs\n' and len(tokens) < 8
  written = path.stat().st_mtime_ns
  study._make_tokenizer(path)
  assert path.stat().st_mtime_ns == written
