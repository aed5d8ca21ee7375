"""Recall of served models, and what counts among trained arms."""

import re
import types

import numpy as np
import pytest

from experiments.configs import recall as config
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.evaluation.persona import responders
from kaiju_jax.experiments.studies import arms
from kaiju_jax.experiments.studies import recall as study
from kaiju_jax.reporting import decision
from kaiju_jax.runs import grid
from kaiju_jax.storage import files
from kaiju_jax.tasks.recall import asking as recall
from kaiju_jax.tasks.recall import problems
from kaiju_jax.tasks.recall import rows

LAYOUTS = {arm: config.LAYOUTS[arm] for arm in ('full', 'global_1')}


class Reader:
  """A responder that follows the definitions of a prompt."""

  def answer(self, messages):
    replies = []
    for one in messages:
      assert one.before == () and one.conversation.turns == ()
      read = dict(re.findall(r'Let (\w+) be (\w+)\.', one.user))
      [name] = re.findall(r'number is (\w+)\?', one.user)
      while name in read:
        name = read[name]
      replies.append(f'It is {name}.')
    return replies


class Lister:
  """A responder that names every number of a prompt."""

  def answer(self, messages):
    return [' '.join(re.findall(r'\d{5}', one.user)) for one in messages]


def test_what_answers_in_words_is_counted_by_cell():
  questions = recall.draw(['hops_1', 'hops_4'], [32, 64], 5, 0)
  cells = [rows.Cell('hops_1', n, 5) for n in (32, 64)]
  cells.append(rows.Cell('hops_4', 64, 5))
  found = recall.count_right(recall.ask(Reader(), questions), 'reader', 0)
  assert [one[2:4] for one in found] == [cell[:2] for cell in cells]
  assert all((x.right, x.recalled, x.count) == (5, 1, 5) for x in found)
  listed = recall.count_right(recall.ask(Lister(), questions), 'lister', 0)
  # It is right where its first number happens to be.
  assert sum(one.right for one in listed) < 12
  with pytest.raises(ValueError, match='no row of them holds hops_4'):
    recall.draw(['hops_4'], [16], 1, 0)


class Copier:
  """A generator that continues a prompt with its last number."""

  def generate(self, requests):
    for one in requests:
      text = tokenizer_lib.Bytes().decode(one.tokens)
      assert text.endswith('\nAnswer:') and one.tokens[0] == 0
      said = re.findall(r'[0-9]{5}', text)[-1]
      yield types.SimpleNamespace(text=f' {said}. The farmer')


def test_a_model_that_only_continues_text_is_asked_as_well():
  questions = recall.draw(['hops_0'], [32], 40, 0)
  responder = responders.Continuation(Copier(), tokenizer_lib.Bytes())
  [found] = recall.count_right(recall.ask(responder, questions), 'copier', 0)
  # The last of four numbers is right one time in four.
  assert 3 <= found.right <= 20


def test_a_share_must_be_shown():
  def status(right, count, least):
    record = rows.Record('a', 0, 'hops_1', 64, right, right / count, count)
    [check] = recall.served_checks([record], least)
    return check.status, check.reason

  assert status(100, 100, 0.95) == ('passed', '')
  # 20 of 20 show 86 %, which is too few questions and no fault.
  found, reason = status(20, 20, 0.95)
  assert found == 'not evaluated' and 'show 86.1%; ask more' in reason
  found, reason = status(80, 100, 0.95)
  assert found == 'refused' and '80 of 100 right' in reason
  assert status(1, 1, None)[0] == 'not evaluated'


def records(shares, length=64):
  """Makes records of {(arm, kind): shares by seed} of 100 questions."""
  return [
    rows.Record(arm, seed, kind, length, right, right / 100, 100)
    for (arm, kind), found in shares.items()
    for seed, right in enumerate(found)
  ]


def test_hops_count_only_where_full_attention_has_them():
  found = records(
    {
      ('full', 'hops_0'): [100, 100],
      ('full', 'hops_1'): [99, 95],
      ('full', 'hops_2'): [99, 94],
      ('global_1', 'hops_1'): [97, 96],
      ('global_1', 'hops_2'): [97, 99],
    }
  )
  statuses = study.hop_statuses(found, 64)
  assert statuses == {
    ('full', 'hops_1'): 'follows',
    ('full', 'hops_2'): 'not evaluated',
    ('global_1', 'hops_1'): 'follows',
    ('global_1', 'hops_2'): 'not evaluated',
  }
  one, two = study.hop_checks(found, 64)
  assert one.status == 'passed' and two.status == 'not evaluated'
  assert 'hops_2: full attention of equal depth has 99.0%, 94.0%' in two.reason
  worse = records({('full', 'hops_1'): [99] * 2, ('local', 'hops_1'): [99, 94]})
  found = study.hop_statuses(worse, 64)
  assert found['local', 'hops_1'] == 'does not follow'


def test_without_full_attention_on_a_seed_nothing_is_evaluated():
  alone = records({('global_1', 'hops_1'): [99, 99]})
  fewer = records({('global_1', 'hops_1'): [99, 99], ('full', 'hops_1'): [99]})
  for found in alone, fewer:
    statuses = study.hop_statuses(found, 64)
    assert statuses['global_1', 'hops_1'] == decision.NOT_EVALUATED
  # Another length is another task.
  other = records({('full', 'hops_1'): [99, 99]}, length=128) + alone
  statuses = study.hop_statuses(other, 64)
  assert statuses['global_1', 'hops_1'] == decision.NOT_EVALUATED


def test_tables_and_figure_show_every_arm(tmp_path):
  found = records(
    {
      (arm, f'hops_{hops}'): [99 - 40 * (arm != 'full') * hops, 98]
      for arm in LAYOUTS
      for hops in range(3)
    }
  )
  text = study.page(found, LAYOUTS, 64).markdown()
  assert '| full | G0 G1 G2 G3 | 4 | 98.5 (95.7–99.5); 98.0: follows' in text
  assert '| global_1 | L0 L1 L2 G3 | 1 |' in text and 'does not follow' in text
  assert '| hops_0 | 64 |' in text
  figures = study.figures(found, LAYOUTS, 64)
  assert figures['arms']['global_1'] == {
    'layout': 'L0 L1 L2 G3',
    'global_layers': 1,
    'hops': {'hops_1': 'does not follow', 'hops_2': 'does not follow'},
  }
  pytest.importorskip('matplotlib')
  study.draw(found, LAYOUTS, 64, tmp_path / 'page.png')
  assert (tmp_path / 'page.png').read_bytes().startswith(b'\x89PNG')


def test_runs_are_asked_what_they_trained_on_and_one_step_more():
  experiment = config.get_config('full')
  kinds = arms.list_kinds(experiment)
  assert kinds == [f'hops_{hops}' for hops in range(5)]
  asked = []
  job = grid.Job('full', experiment, None)

  def predict(params, tokens_BL, visibility, place_BP):
    asked.append(tokens_BL.tolist())
    return np.zeros(place_BP.shape, int)

  questions = arms.RecallQuestions(4, 0)
  found = questions.answer(job, predict, None)
  assert {one.kind for one in found} == set(kinds)
  assert {one.length for one in found} == {32, 64, 128}
  assert all(one.right == 0 for one in found)
  first, asked[:] = list(asked), []
  # Another arm gets the same questions, and another seed others.
  questions.answer(job._replace(arm='local'), predict, None)
  assert asked == first
  experiment.seed, asked[:] = 1, []
  questions.answer(job, predict, None)
  assert asked != first


def test_what_full_attention_cannot_follow_is_not_evaluated(tmp_path):
  pytest.importorskip('matplotlib')
  experiment = config.get_config('full')
  run = grid.Job('full', experiment, tmp_path / 'full')
  asking = arms.RecallQuestions(2, 0)

  def predict(params, tokens_BL, visibility, place_BP):
    return np.zeros(place_BP.shape, int)

  run.folder.mkdir()
  files.write_json(run.folder / 'config.json', {})
  made = asking.answer(run, predict, None)
  answers = [record._asdict() for record in made]
  files.write_json(run.folder / asking.file, answers)
  assert grid.is_done(run, asking.finish())
  found = asking.read([run])
  assert found == made
  page = study.publish(found, [run], tmp_path)
  decided, text = page.decision, page.markdown()
  assert decided == decision.load(tmp_path / decision.FILE)
  assert decided.status == decision.NOT_EVALUATED
  assert 'hops_1: full attention of equal depth has 0.0%' in decided.reasons[0]
  assert list(decided.inputs) == ['full seed 0']
  assert '| full | G0 G1 G2 G3 | 4 |' in text
  assert text in (tmp_path / 'report.md').read_text()
  assert (tmp_path / 'recall.png').exists()


def test_layouts_are_the_arms_of_one_depth():
  assert [study.count_global(x) for x in config.LAYOUTS.values()] == [
    4, 3, 2, 1, 0
  ]  # fmt: skip
  assert all(len(x.split()) == 4 for x in config.LAYOUTS.values())
  with pytest.raises(ValueError, match="arm='x': must be one of full"):
    config.get_config('x')
  assert problems.MOST_HOPS == 4
