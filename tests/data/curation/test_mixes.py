"""From paths to a mix.json that training reads, and its report."""

import json

import numpy as np
import pytest

from kaiju_jax.data import mix_file
from kaiju_jax.data.curation import mixes
from kaiju_jax.data.curation import settings as settings_lib
from kaiju_jax.runs import embedders
from tests.data import planted

TRUTH = {'plain': 0.6, 'rare/deep': 0.0, 'long': 0.4}
# Phrases in a document of each source, and in all its documents.
SIZES, TOTAL = (200, 200, 2000), 20_000


@pytest.fixture(scope='module')
def texts(tmp_path_factory):
  folder = tmp_path_factory.mktemp('texts')
  rng = np.random.default_rng(0)
  shares = planted.distributions(3, items=planted.PHRASES)
  target = []
  for (name, weight), share, size in zip(TRUTH.items(), shares, SIZES):
    (folder / name).mkdir(parents=True)
    for number, text in enumerate(
      planted.texts(share, TOTAL // size, size, rng)
    ):
      (folder / name / f'{number}.txt').write_text(text)
    target += planted.texts(share, round(TOTAL * weight / size), size, rng)
  lines = [json.dumps({'text': text}) for text in target]
  (folder / 'target.jsonl').write_text('\n'.join(lines))
  (folder / 'empty.txt').write_text('')
  return folder


def settings(texts, **changes):
  sources = [(name.split('/')[0], str(texts / name)) for name in TRUTH]
  given = {'target': str(texts / 'target.jsonl'), 'sources': sources}
  return settings_lib.MixSettings(**given | {'resamples': 10} | changes)


def find(plan):
  mixes.check(plan)
  return mixes.find(plan, embedders.parse(plan.embedder))


def test_the_weights_are_found_and_written_for_training(texts):
  plan = settings(texts)
  result = find(plan)
  np.testing.assert_allclose(result.mix.weights, [0.6, 0, 0.4], atol=0.05)
  assert result.method == 'em'
  out = texts / 'out'
  mixes.write(plan, result, str(out))
  assert sorted(path.name for path in out.iterdir()) == [
    'distances.png',
    'mix.json',
    'report.html',
    'report.json',
    'report.md',
    'weights.png',
  ]
  sources = mix_file.read(out / 'mix.json')
  assert [(one.name, one.path) for one in sources] == plan.sources
  assert [one.weight for one in sources] == result.mix.weights.tolist()
  told = json.loads((out / 'mix.json').read_text())
  assert (told['embedder'], told['method']) == ('ngrams', 'em')
  plain = told['found']['plain']
  assert plain['low'] <= result.mix.weights[0] <= plain['high']
  report = (out / 'report.md').read_text()
  assert f'--sources=plain={texts}/plain,rare=' in report
  assert '| plain | 0.' in report and '| all text as it is |' in report


def test_other_vectors_are_mixed_by_least_squares(texts, tmp_path):
  result = find(settings(texts, embedder='lsa'))
  assert result.method == 'least_squares'
  np.testing.assert_allclose(result.mix.weights, [0.6, 0, 0.4], atol=0.05)
  count = 100 + 100 + 10 + len((texts / 'target.jsonl').read_text().split('\n'))
  np.save(tmp_path / 'v.npy', np.zeros((count - 1, 3)))
  with pytest.raises(ValueError, match=f'rows for {count} texts'):
    find(settings(texts, embedder=f'npy:{tmp_path / "v.npy"}'))


def test_a_source_is_read_as_often_as_allowed(texts):
  """Its share then goes to the others, and the report says so."""
  sizes = find(settings(texts)).sizes
  tokens = round(2 * sizes[0] / 0.45)
  plan = settings(texts, tokens=tokens, epochs=2.0)
  result = find(plan)
  np.testing.assert_allclose(result.bounds[0], 0.45, atol=1e-4)
  np.testing.assert_allclose(result.mix.weights[0], 0.45, atol=1e-4)
  assert np.all(result.mix.weights <= result.bounds)
  assert '2.00 times' in mixes.page(plan, result).markdown()


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'sources': [('a', 'x'), ('a', 'y')]}, "'a' is the name of two"),
    ({'sources': [('a/b', 'x')]}, '--sources: a/b=x must'),
    ({'sources': [('a', 'nowhere')]}, "--sources=a='nowhere': no such file"),
    ({'sources': [('none', '{}/empty.txt')]}, '--sources=none=.*hold no text'),
    ({'sources': [('all', '{}/*.jsonl')]}, 'target.jsonl is also in --sources'),
    ({'target': 'nowhere'}, "--target='nowhere': no such file"),
    ({'method': 'x'}, '--method=x: must'),
    ({'method': 'em', 'embedder': 'lsa'}, '--method=em: needs'),
    ({'embedder': 'x'}, '--embedder=x: must'),
    ({'tokens': -1}, '--tokens=-1: must'),
    ({'tokens': 9_999_999}, '--tokens=9,999,999: all'),
    ({'resamples': 1}, '--resamples=1: must'),
    ({'epochs': 0.0}, '--epochs=0.0: must'),
    ({'tokenizer': 'nowhere'}, "data.tokenizer='nowhere': no such file"),
    ({'measured': [('goal', '{}/plain/0.txt')]}, '--measured=goal=.* also in'),
    ({'anneal': 'nowhere'}, '--anneal: nowhere: no such'),
  ],
)
def test_what_cannot_be_mixed_is_refused(texts, changes, message):
  changes = {
    name: [(one, path.format(texts)) for one, path in value]
    if isinstance(value, list)
    else value
    for name, value in changes.items()
  }
  with pytest.raises((OSError, ValueError), match=message):
    find(settings(texts, **changes))


def test_text_that_is_only_measured_has_weight_0(texts, tmp_path):
  """It is no part of the mix, and training reports its held-out loss."""
  own = str(texts / 'target.jsonl')
  plan = settings(texts, method='proportional', measured=[('goal', own)])
  result = find(plan)
  sizes = result.sizes
  np.testing.assert_allclose(result.mix.weights, sizes / sizes.sum())
  assert result.mix.distance == result.mix.pooled
  mixes.write(plan, result, str(tmp_path / 'out'))
  *mixed, goal = mix_file.read(tmp_path / 'out/mix.json')
  assert [one.name for one in mixed] == ['plain', 'rare', 'long']
  assert (goal.name, goal.path, goal.weight) == ('goal', own, 0)


def test_another_mix_is_annealed_into(texts, tmp_path):
  """A run may be like one target, and near its end like another."""
  first = settings(texts, method='proportional', measured=[])
  mixes.write(first, find(first), str(tmp_path / 'first'))
  late = str(tmp_path / 'first/mix.json')
  plan = settings(texts, anneal=late)
  result = find(plan)
  mixes.write(plan, result, str(tmp_path / 'second'))
  sources = mix_file.read(tmp_path / 'second/mix.json')
  assert [one.weight for one in sources] == result.mix.weights.tolist()
  sizes = result.sizes
  np.testing.assert_allclose(
    [one.anneal for one in sources], sizes / sizes.sum()
  )
  with pytest.raises(ValueError, match=r'--anneal=.* gives weight to long'):
    find(settings(texts, anneal=late, sources=plan.sources[:2]))
