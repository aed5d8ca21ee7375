"""The facts study's pool: errors are errors, and what is judged is counted."""

import dataclasses
import json
import types

import pytest

from experiments.configs import facts as config
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.experiments.studies import facts
from kaiju_jax.synthesis import settings as settings_lib
from kaiju_jax.synthesis import variations as variations_lib
from kaiju_jax.tasks import facts as world_lib

WORLD, NUMBERS = 3, range(12)
SETTINGS = settings_lib.Settings(variations=5)


class Author:
  """Writes the truth in seen phrasings; weighs it as a good reader would."""

  calls = 0

  def __init__(self, generator, tokenizer, settings):
    self._settings = settings

  def write(self, passages):
    Author.calls += len(passages)
    return [
      [
        variations_lib.Variation(
          index, 0, *world_lib.variation(WORLD, int(one.name), index)
        )
        for index in range(self._settings.variations)
      ]
      for one in passages
    ]

  def weigh(self, passages, variations):
    return [
      [self._weighed(one, own) for own in of_one]
      for one, of_one in zip(passages, variations)
    ]

  def _weighed(self, passage, one):
    person = world_lib.person(WORLD, int(passage.name))
    again = next(
      (
        person.values[attribute]
        for attribute in range(world_lib.ATTRIBUTES)
        for phrasing in range(world_lib.PHRASINGS)
        if person.question(attribute, phrasing) == one.question
      ),
      'nobody',
    )
    return dataclasses.replace(one, again=again, informed=0.0, uninformed=-5.0)


@pytest.fixture
def pooled(monkeypatch):
  monkeypatch.setattr(variations_lib, 'Author', Author)
  monkeypatch.setattr(
    facts, 'generator_of', lambda *_: (None, tokenizer_lib.Bytes())
  )
  loaded = types.SimpleNamespace(
    tokenizer='', config=types.SimpleNamespace(vocab_size=256), origin='x'
  )

  def pool(path, planted, numbers=NUMBERS):
    return facts.pool(loaded, WORLD, numbers, SETTINGS, planted, path)

  return pool


def test_planted_variations_are_wrong_and_all_others_right(pooled, tmp_path):
  candidates = pooled(tmp_path / 'journal', 0.5)
  assert len(candidates) == len(NUMBERS) * SETTINGS.variations
  kinds = {one.planted for one in candidates}
  assert kinds == {'', *facts.ERRORS}
  for one in candidates:
    assert one.is_right(WORLD) == (one.planted == '')
  found = facts.detection(candidates, WORLD)
  assert found.precision == 1 and found.recall == 1
  assert found.wrong == sum(
    bool(one.planted) for one in candidates if one.verdict != 'repeated'
  )


def test_filters_that_keep_all_find_nothing(pooled, tmp_path):
  candidates = [
    one._replace(verdict='kept') for one in pooled(tmp_path / 'journal', 0.5)
  ]
  assert facts.detection(candidates, WORLD).recall == 0
  candidates = [one._replace(verdict='gain') for one in candidates]
  found = facts.detection(candidates, WORLD)
  assert found.recall == 1 and 0.3 < found.precision < 0.7


def test_a_stopped_pool_goes_on_and_ends_the_same(pooled, tmp_path):
  whole = pooled(tmp_path / 'whole', 0.3)
  pooled(tmp_path / 'stopped', 0.3, range(5))
  before = Author.calls
  assert pooled(tmp_path / 'stopped', 0.3) == whole
  assert Author.calls - before == len(NUMBERS) - 5
  with pytest.raises(ValueError, match='planted'):
    pooled(tmp_path / 'whole', 0.4)


def test_students_texts_differ_in_their_variations_alone(pooled, tmp_path):
  candidates = pooled(tmp_path / 'journal', 0.3)
  kept = [one for one in candidates if one.verdict == 'kept']
  children = {}
  for name, own in (('none', None), ('kept', kept), ('all', candidates)):
    facts.texts(tmp_path / name, WORLD, range(50, 53), NUMBERS, 2, own)
    text = (tmp_path / name / 'targets.jsonl').read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    roots = [
      line['segments'][0]['text'] if 'segments' in line else line['text']
      for line in lines
    ]
    assert roots == [world_lib.passage(WORLD, number) for number in NUMBERS]
    children[name] = sum(len(line.get('segments', [0])) - 1 for line in lines)
  seeded = (tmp_path / 'none' / 'seeded.jsonl').read_bytes()
  assert seeded == (tmp_path / 'all' / 'seeded.jsonl').read_bytes()
  assert children == {'none': 0, 'kept': len(kept), 'all': len(candidates)}


def test_students_are_compared_over_their_seeds(capsys):
  right = {'originals': 2, 'unfiltered': 5, 'filtered': 8}
  assert set(right) == set(config.STUDENTS)
  score = world_lib.Score
  facts._show(
    {
      (arm, seed): {'seen': score(9, 10), 'unseen': score(count, 10)}
      for arm, count in right.items()
      for seed in (0, 1)
    }
  )
  said = ' '.join(capsys.readouterr().out.split())
  assert 'filtered │ 90.0 % (70 … 97) │ 80.0 % (58 … 92)' in said
  # Newcombe's interval of 16 and 4 of 20.
  assert (
    'filtered − originals, unseen phrasings: +60.0 points (+29.5 … +76.9)'
    in said
  )
