"""From paths to the documents that are chosen, and to a folder."""

import json
import re

import numpy as np
import pytest

from kaiju_jax.data import documents
from kaiju_jax.data.curation import selection
from kaiju_jax.data.curation import settings as settings_lib
from kaiju_jax.runs import embedders
from tests.data import planted


@pytest.fixture(scope='module')
def texts(tmp_path_factory):
  """A folder with a target, and a source of which a tenth is like it."""
  folder = tmp_path_factory.mktemp('texts')
  rng = np.random.default_rng(0)
  like, other = planted.distributions(2, items=planted.PHRASES)
  lines = [
    json.dumps({'text': one}) for one in planted.texts(like, 60, 100, rng)
  ]
  (folder / 'target.jsonl').write_text('\n'.join(lines))
  source = planted.texts(other, 200, 100, rng)
  source[::10] = planted.texts(like, 20, 100, rng)
  # A tree keeps its branches.
  nodes = [{'text': source[10], 'parent': -1}, {'text': 'Yes.', 'parent': 0}]
  lines = [json.dumps({'text': one}) for one in source]
  lines[10] = json.dumps({'segments': [*nodes, {'text': 'No.', 'parent': 0}]})
  (folder / 'source.jsonl').write_text('\n'.join(lines))
  return folder


def settings(texts, **changes):
  given = {'target': texts / 'target.jsonl', 'source': texts / 'source.jsonl'}
  given = {name: str(path) for name, path in given.items()} | {'count': 20}
  return settings_lib.SelectionSettings(**given | changes)


def find(plan):
  selection.check(plan)
  return selection.find(plan, embedders.parse(plan.embedder))


@pytest.mark.parametrize('embedder', ['ngrams', 'lsa'])
def test_documents_like_the_target_are_written_as_they_were(texts, embedder):
  plan = settings(texts, embedder=embedder)
  result = find(plan)
  assert np.mean(result.chosen.indices % 10 == 0) >= 0.9
  out = texts / f'out-{embedder}'
  selection.write(plan, result, str(out))
  assert sorted(path.name for path in out.iterdir()) == [
    'chosen.jsonl',
    'report.html',
    'report.json',
    'report.md',
    'scores.png',
  ]
  found = list(documents.read(str(out / 'chosen.jsonl')))
  whole = list(documents.read(plan.source))
  for one, index in zip(found, result.chosen.indices, strict=True):
    assert one[1:] == whole[index][1:]
  assert (-1, 0, 0) in {one.parents for one in found}
  line = json.loads((out / 'chosen.jsonl').read_text().splitlines()[0])
  assert line['name'] == whole[result.chosen.indices[0]].name
  assert f'{len(found)} of 200 documents' in (out / 'report.md').read_text()


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'count': 201}, '--count=201: must'),
    ({'count': 0}, '--count=0: must'),
    ({'method': 'x'}, '--method=x: must'),
    ({'method': 'importance', 'embedder': 'lsa'}, '--method=importance: '),
    ({'noise': -1.0}, '--noise=-1.0: must'),
    ({'embedder': 'word2vec'}, '--embedder=word2vec: must'),
    ({'source': 'nowhere'}, "--source='nowhere': no such file"),
    ({'target': '{}/*.jsonl'}, "source.jsonl is also in --source='"),
  ],
)
def test_what_cannot_be_selected_is_refused(texts, changes, message):
  if 'target' in changes:
    changes = {'target': changes['target'].format(texts)}
  with pytest.raises((OSError, ValueError), match=re.escape(message)):
    find(settings(texts, **changes))
