"""Rounds end at the same bytes wherever they are killed; guards stop them."""

import json
import pathlib

import pytest

from kaiju_jax.alignment import guards
from kaiju_jax.alignment import replies as replies_lib
from kaiju_jax.alignment import rounds
from kaiju_jax.alignment import users
from kaiju_jax.classifiers import settings as settings_lib
from kaiju_jax.classifiers import span_head
from kaiju_jax.data import choices
from kaiju_jax.decoding.engine import generator
from kaiju_jax.experiments.benchmarks.parts import compilations
from kaiju_jax.runs import load
from kaiju_jax.runs import reference
from kaiju_jax.runs import train
from kaiju_jax.storage import files
from kaiju_jax.training.records import journal
from tests.alignment import worlds


@pytest.fixture(scope='module')
def first(tmp_path_factory):
  folder = tmp_path_factory.mktemp('first')
  return worlds.make_first(folder), worlds.write_prompts(
    folder / 'prompts.jsonl'
  )


def play(first, out, say=print, **fields):
  model, prompts = first
  settings = worlds.settings(model, prompts, **fields)
  return rounds.run(settings, worlds.training(model), out, say)


@pytest.fixture(scope='module')
def whole(first, tmp_path_factory):
  """Rounds that nobody stopped; and the compilations up to each one's end.

  A draw begins without points, whatever the decoder has drawn before.
  """
  out = tmp_path_factory.mktemp('whole') / 'rounds'
  counts, points = [], []
  generate = generator.Generator.generate

  def counted(self, requests):
    tree = self.engine.decoder.account.tree
    points.append(len(tree))
    found = generate(self, requests)
    assert len(tree)
    return found

  with pytest.MonkeyPatch.context() as patch, compilations.record() as seen:
    patch.setattr(generator.Generator, 'generate', counted)
    play(first, out, lambda _: counts.append(len(seen)))
  assert points == [0] * 6
  return out, counts


def test_a_later_round_compiles_no_more_than_its_optimizer_state(whole):
  _, counts = whole
  assert counts[1] - counts[0] <= 1


def test_a_round_is_told_whole(whole, first):
  out, _ = whole
  report = json.loads((out / 'report.json').read_text())
  assert [one['round'] for one in report['rounds']] == [1, 2]
  assert (report['stop'], report['good']) == ('', 2)
  win = report['win']
  assert win['wins'] + win['ties'] + win['losses'] == 8
  held = {one['prompt'] for one in worlds.read_lines(out / 'held_out.jsonl')}
  frozen, seeds = load.digest(load.from_export(out / 'reference')), set()
  for number, record in enumerate(report['rounds'], 1):
    folder = out / 'rounds' / f'{number:02d}'
    lines = worlds.read_lines(folder / 'swipes.jsonl')
    assert len(lines) == record['groups'] == 6 - record['ties']
    assert held.isdisjoint(line['prompt'] for line in lines)
    # The same model in each round, whatever was trained since.
    read = choices.read_reference(folder / 'reference.npz')
    assert read.model == frozen and len(read.log_p) == len(lines)
    # Of three steps, as many as there are choices for.
    trained = load.from_workdir(folder / 'run').experiment
    assert trained.optimizer.z_reg.logits > 0
    assert trained.loop.steps == -(-3 * record['groups'] // 6)
    drawn = {
      one['seed'] for line in lines for one in line['messages'][-1]['replies']
    }
    assert seeds.isdisjoint(drawn)
    seeds |= drawn
    for line in lines:
      replies = line['messages'][-1]['replies']
      assert sum(one['kept'] for one in replies) == 1
      assert len({one['value'] for one in replies}) == 2
      assert all(one['value'] == ('?' in one['content']) for one in replies)
      assert len({one['seed'] for one in replies}) == len(replies)
  assert (out / 'model').resolve() == folder / 'run'
  second = load.from_workdir(folder / 'run').experiment
  assert second.begin_with == str(out / 'rounds' / '01' / 'run')
  before = load.from_workdir(out / 'rounds' / '01' / 'run')
  assert load.digest(before) == report['rounds'][0]['model']
  assert before.experiment.begin_with == first[0]
  # The first model has not moved from itself.
  assert report['rounds'][0]['kl'] < 1


KILLS = {
  'before anything is drawn': (
    replies_lib.ReplySampler, 'sample', lambda *_: True,
  ),
  'with swipes, without counts': (
    files, 'write_json', lambda path, _: path.name == 'counts.json',
  ),
  'before the reference is written': (
    reference, 'write', lambda *_, **__: True,
  ),
  'within a training': (
    journal.Journal, 'step', lambda _, number, *__: number == 2,
  ),
  'with a model, without its readings': (
    files, 'write_json', lambda path, _: path.name == 'round.json',
  ),
  'at the end': (
    files, 'write_json', lambda path, _: path.name == 'report.json',
  ),
}  # fmt: skip


@pytest.mark.slow
def test_rounds_killed_anywhere_end_at_the_same_bytes(
  first, whole, tmp_path, monkeypatch
):
  out = tmp_path / 'rounds'
  for owner, name, is_there in KILLS.values():
    with monkeypatch.context() as patch:
      patch.setattr(owner, name, worlds.kill(getattr(owner, name), is_there))
      with pytest.raises(worlds.Killed):
        play(first, out)
  play(first, out)
  found = worlds.contents(out)
  assert found == worlds.contents(whole[0])
  assert {'held_out.jsonl', 'report.json'} <= set(found)
  names = 'swipes.jsonl', 'reference.npz', 'last.jsonl'
  assert {f'rounds/02/{x}' for x in names} <= set(found)
  # And once more: nothing is left to do.
  monkeypatch.setattr(
    replies_lib.ReplySampler, 'sample', worlds.kill(None, lambda *_: True)
  )
  assert play(first, out)['good'] == 2


@pytest.mark.slow
def test_runs_in_one_process_share_programs_and_no_bytes(
  first, whole, tmp_path
):
  model, prompts = first
  cache, coin, same = {}, tmp_path / 'coin', tmp_path / 'same'

  def go(out, **fields):
    settings = worlds.settings(model, prompts, **fields)
    rounds.run(settings, worlds.training(model), out, cache=cache)

  go(coin, user='planted:question:coin', rounds=1, seed=1)
  with compilations.record() as seen:
    go(same, rounds=1)
    # A second command goes on with more rounds.
    go(same, rounds=2)
  # The start of each round's optimizer.
  assert len(seen) <= 2
  (same / 'rounds/01/last.jsonl').unlink()
  assert worlds.contents(same) == worlds.contents(whole[0])


@pytest.mark.slow
def test_a_head_that_was_trained_on_spans_chooses(first, tmp_path):
  said = (
    {
      'messages': [
        worlds.asked(n),
        {
          'role': 'assistant',
          'content': text,
          'spans': [
            {'start': i, 'end': i + 1, 'dimension': 'asks'}
            for i, x in enumerate(text)
            if x == '?'
          ],
        },
      ]
    }
    for n, text in enumerate(worlds.REPLIES * 8)
  )
  path = worlds.write_lines(tmp_path / 'spans.jsonl', said)
  settings = settings_lib.Spans(steps=60, rate=3e-2, label_weights='balanced')
  experiment = span_head.make(first[0], path, ['asks'], settings)
  experiment.data.held_out = 0.0
  train.train(experiment, tmp_path / 'head')
  user = f'head:{tmp_path / "head"}'
  report = play(
    first, tmp_path / 'rounds', user=user, rounds=1, choice_temperature=0.0
  )
  kept = []
  for line in worlds.read_lines(tmp_path / 'rounds/rounds/01/swipes.jsonl'):
    replies = line['messages'][-1]['replies']
    value = {one['kept']: one['value'] for one in replies}
    assert value[True] == max(one['value'] for one in replies)
    if len({'?' in one['content'] for one in replies}) == 2:
      kept += [one['content'] for one in replies if one['kept']]
  assert kept and all('?' in one for one in kept)
  assert report['win']['wins'] + report['win']['losses'] > 0
  (tmp_path / 'other').mkdir()
  other = worlds.make_first(tmp_path / 'other', steps=1)
  with pytest.raises(ValueError, match='is the head of another model than'):
    play((other, first[1]), tmp_path / 'new', user=user)


def test_a_guard_stops_at_the_last_good_round(first, tmp_path):
  limits = guards.Limits(kl=1e-9)
  report = play(first, tmp_path / 'rounds', rounds=1, limits=limits)
  assert report['good'] == 0
  assert report['stop'].startswith('kl: ')
  assert 'more than 1e-09' in report['stop']
  model = (tmp_path / 'rounds' / 'model').resolve()
  assert model == pathlib.Path(first[0]).resolve()


def test_a_round_with_too_few_choices_stops_and_says_so_again(
  first, tmp_path, monkeypatch
):
  out = tmp_path / 'rounds'
  # Values are all equal, so that no reply is kept.
  monkeypatch.setitem(users.UTILITIES, 'question', lambda *_: 0.0)
  report = play(first, out)
  assert report['good'] == 0 and report['stop'].startswith('choices: 0 in')
  (record,) = report['rounds']
  assert record['stop'] == report['stop'] and record['ties'] == 6
  (out / 'report.json').unlink()
  monkeypatch.setattr(
    replies_lib.ReplySampler, 'sample', worlds.kill(None, lambda *_: True)
  )
  assert play(first, out) == report


def test_another_command_and_another_folder_are_refused(first, whole, tmp_path):
  out, _ = whole
  with pytest.raises(ValueError, match=r'another command: swipes was 3, is 2'):
    play(first, out, swipes=2)
  with pytest.raises(ValueError, match='holds something else than rounds'):
    play(first, pathlib.Path(first[0]))
  with pytest.raises(ValueError, match='must be less than the 16 prompts'):
    play(first, tmp_path / 'new', held_out=16)
  with pytest.raises(ValueError, match='a row has 96'):
    play(first, tmp_path / 'new', tokens=60)
  with pytest.raises(ValueError, match='has no "facts", which'):
    play(first, tmp_path / 'new', user='planted:fact')
  with pytest.raises(FileNotFoundError, match='nothing'):
    play((str(tmp_path / 'nothing'), first[1]), tmp_path / 'new')
  assert not (tmp_path / 'new').exists()


@pytest.mark.slow
def test_a_round_that_diverges_is_the_last_and_keeps_the_model_before(
  first, tmp_path, capfd
):
  model, prompts = first
  made = worlds.training(model)
  made.optimizer.learning_rate, made.optimizer.warmup = 1e38, 0.0
  out = tmp_path / 'rounds'
  found = rounds.run(worlds.settings(model, prompts), made, out)
  (record,) = found['rounds']
  assert record['stop'].startswith('divergence at step ')
  assert found['stop'] == record['stop'] and found['good'] == 0
  assert (out / 'model').resolve() == pathlib.Path(model)
  assert 'optimizer.learning_rate' in capfd.readouterr().err
  # The same command tells the same, and trains nothing again.
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(train, 'train', None)
    assert rounds.run(worlds.settings(model, prompts), made, out) == found
