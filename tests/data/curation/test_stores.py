"""Commands find in a token store what they find in its text."""

import json
import tracemalloc

import numpy as np
import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.data.curation import collections
from kaiju_jax.data.curation import duplicates
from kaiju_jax.data.curation import leaks
from kaiju_jax.data.curation import mixes
from kaiju_jax.data.curation import selection
from kaiju_jax.data.curation import settings as settings_lib
from kaiju_jax.data.curation import similarity
from kaiju_jax.data.store import write
from tests.data import planted


@pytest.fixture
def paths(tmp_path):
  """A .jsonl file of 60 documents, trees among them, and its store."""
  rng = np.random.default_rng(0)
  share = planted.distributions(1)[0]
  texts = planted.texts(share, 60, 80, rng)
  texts[30], texts[45] = texts[3], planted.changed(texts[4], [40])
  lines = [{'text': one} for one in texts]
  lines[7] = {
    'segments': [{'text': x, 'parent': p} for x, p in zip('abc', (-1, 0, 0))]
  }
  lines = '\n'.join(map(json.dumps, lines))
  (tmp_path / 'text').mkdir()
  (tmp_path / 'text/a.jsonl').write_text(lines)
  exam = [*texts[10:12], *planted.texts(share, 5, 80, rng)]
  exam = '\n'.join(json.dumps({'text': one}) for one in exam)
  (tmp_path / 'exam.jsonl').write_text(exam)
  path = str(tmp_path / 'text/a.jsonl')
  config = data_config.DataConfig(path=path, held_out=0.1)
  write.write(config, str(tmp_path / 'store'), shard=4000)
  assert len(list((tmp_path / 'store').glob('0*'))) > 5
  return path, str(tmp_path / 'store')


def _files(folder, paths):
  """What a command wrote, without the paths it was given."""
  found = {}
  for path in folder.iterdir():
    if path.suffix != '.png':
      text = path.read_text()
      for one in paths:
        text = text.replace(one, 'PATH')
      found[path.name] = text
  return found


def _select(path, out, exam, method):
  embedder = 'ngrams' if method == 'importance' else 'lsa'
  settings = settings_lib.SelectionSettings(
    target=exam, source=path, count=9, method=method, embedder=embedder
  )
  selection.check(settings)
  tool = similarity.Ngrams() if embedder == 'ngrams' else similarity.Lsa()
  selection.write(settings, selection.find(settings, tool), out)


def _mix(path, out, exam):
  settings = settings_lib.MixSettings(
    target=exam, sources=[('one', path), ('exam', exam + 'l')]
  )
  with open(exam) as given, open(exam + 'l', 'w') as copy:
    copy.write(given.read().upper())
  result = mixes.find(settings, similarity.Ngrams())
  mixes.write(settings, result, out)


COMMANDS = {
  'duplicates': lambda path, out, _: duplicates.write(
    duplicates.find_in_files([path]), out
  ),
  'leaks': lambda path, out, exam: leaks.write(
    leaks.find_in_files(exam, [path]), out
  ),
  'importance': lambda *given: _select(*given, 'importance'),
  'cosine': lambda *given: _select(*given, 'cosine'),
  'mix': _mix,
}


@pytest.mark.parametrize('command', COMMANDS)
def test_a_store_gives_what_its_text_gives(paths, tmp_path, command):
  exam, found = str(tmp_path / 'exam.jsonl'), []
  for number, path in enumerate(paths):
    out = tmp_path / f'out{number}'
    COMMANDS[command](path, str(out), exam)
    found.append(_files(out, paths))
  assert found[0] == found[1] and found[0]


def test_documents_of_a_store_take_the_memory_of_a_shard(paths):
  given = collections.collection('one', paths[1], '--source')
  texts = collections.Texts(given)
  tracemalloc.start()
  size = sum(map(len, texts))
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert size > 20_000 and peak < 80_000
  assert texts[-1] == texts[59] and texts[2:4] == [texts[2], texts[3]]
  with pytest.raises(ValueError, match=r'store is also in --training='):
    collections.refuse_shared(
      paths[1], [('--training', paths[1])], '--evaluation'
    )


def test_importance_in_blocks_is_that_of_all_texts(monkeypatch):
  rng = np.random.default_rng(1)
  target, source = (
    planted.texts(planted.distributions(2)[n], 40, 60, rng) for n in (0, 1)
  )
  counts = similarity.ngram_counts([*target, *source])
  monkeypatch.setattr(similarity, '_TEXTS', 7)
  np.testing.assert_allclose(
    selection.importance_of_texts(target, source),
    selection.importance(counts[:40], counts[40:]),
    rtol=1e-12,
  )
