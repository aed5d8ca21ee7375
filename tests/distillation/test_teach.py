"""Windows keep their promise, and tokens get their own documents' teacher."""

import itertools
import json

import jax
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.data import config as data_config
from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import text as text_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.data.store import corpora
from kaiju_jax.data.store import write
from kaiju_jax.distillation import config as config_lib
from kaiju_jax.distillation import teach
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from tests.interchange import toys

MODEL = model_config.ModelConfig(
  vocab_size=256,
  layout='G0',
  d_model=16,
  num_heads=2,
  head_dim=8,
  d_ff=16,
  max_length=64,
  dtype='float32',
  quantization=quantization_config.none(),
)


def _corpus(sizes, seed=0):
  """Documents of so many tokens; a tuple is the segments of a tree."""
  rng = np.random.default_rng(seed)

  def text(size):
    return ''.join(map(chr, rng.integers(97, 123, size)))

  documents = []
  for number, size in enumerate(sizes):
    if isinstance(size, tuple):
      parents = (-1, *([0] * (len(size) - 1)))
      segments = tuple(map(text, size))
      documents.append(documents_lib.Document(f'{number}', segments, parents))
    else:
      documents.append(documents_lib.Document(f'{number}', (text(size - 1),)))
  return text_lib.corpus(documents, tokenizer_lib.Bytes())


def test_windows_drawn():
  rows = list(teach.windows(_corpus([3, 13, (2, 1, 1), 9]), 8, 0.25))
  assert [[tuple(window) for window in row] for row in rows] == [
    [(0, 0, 0, 3), (1, 0, 0, 5)],
    [(1, 3, 5, 11)],
    [(1, 9, 11, 13)],
    [(2, 0, 0, 5), (3, 0, 0, 3)],
    [(3, 1, 3, 9)],
  ]


@pytest.mark.parametrize('overlap', [0.02, 0.25, 0.5])
def test_every_token_has_its_part_of_a_row_before_it(overlap):
  rng = np.random.default_rng(1)
  for length in (16, 33, 64):
    sizes = [
      (2, 3, 4) if rng.random() < 0.2 else int(rng.integers(1, 200))
      for _ in range(30)
    ]
    corpus = _corpus(sizes)
    expected = itertools.count()
    for row in teach.windows(corpus, length, overlap):
      assert 0 < sum(one.end - one.low for one in row) <= length
      for document, low, first, end in row:
        begin = corpus.begins[document]
        for token in range(first, end):
          assert token - low >= min(token, overlap * length)
          assert begin + token == next(expected)
        if document in corpus.parents:
          assert (low, end) == (0, corpus.begins[document + 1] - begin)
    assert next(expected) == len(corpus.tokens)


def test_batches_number_every_token_once_and_do_not_change_with_the_start():
  corpus = _corpus([40, (3, 4, 5), 7, 90, 3])
  whole = list(teach.read_batches(corpus, 16, 3, 0.25))
  numbers = np.concatenate([one.number_BL.ravel() for one in whole])
  assert numbers[numbers >= 0].tolist() == list(range(len(corpus.tokens)))
  for one in whole:
    kept_BL = one.number_BL >= 0
    np.testing.assert_array_equal(
      one.batch.tokens_BL[kept_BL], corpus.tokens[one.number_BL[kept_BL]]
    )
  later = list(teach.read_batches(corpus, 16, 3, 0.25, begin=50))
  assert len(later) < len(whole)
  assert later[0].number_BL.max() >= 50 > whole[-len(later) - 1].number_BL.max()
  for one, other in zip(whole[-len(later) :], later):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.fixture(scope='module')
def teacher():
  model = transformer.Transformer(MODEL)
  return model, {'params': toys.params_of(MODEL)}


@pytest.fixture(scope='module')
def answer(teacher):
  sampling = config_lib.Sampling('full', entries=256)
  return teach.answering(teacher[0], sampling)


def _distributions(teacher, corpus):
  """Each token's distribution given the tokens before it, path by path."""
  model, variables = teacher
  forward = jax.jit(model.apply)
  p_NV = np.zeros((len(corpus.tokens), 256), np.float32)
  for document, (begin, end) in enumerate(itertools.pairwise(corpus.begins)):
    parents = corpus.parents.get(document, np.arange(end - begin) - 1)
    for token in range(1, end - begin):
      path = [int(parents[token])]
      while path[-1] > 0:
        path.append(int(parents[path[-1]]))
      tokens_BL = np.zeros((1, 16), np.int32)
      tokens_BL[0, : len(path)] = corpus.tokens[begin + np.array(path[::-1])]
      logits_BLV = forward(variables, tokens_BL, visibility_lib.causal(16))
      p_NV[begin + token] = jax.nn.softmax(logits_BLV[0, len(path) - 1])
  return p_NV


def test_targets_are_the_teachers_distributions_of_each_path(teacher, answer):
  """Documents that fit in a row, so that each token sees all of its own."""
  corpus = _corpus([6, (3, 4, 2), 9, 2])
  found = []
  for windows in teach.read_batches(corpus, 16, 2, 0.25):
    drawn = answer(
      teacher[1], windows.batch, windows.number_BL.astype(np.uint32)
    )
    found.append(teach.targets(windows, drawn))
  ids_NT, values_NT = (np.concatenate(x) for x in zip(*found))
  found_NV = np.zeros((len(ids_NT), 256), np.float32)
  np.add.at(found_NV, (np.arange(len(ids_NT))[:, None], ids_NT), values_NT)
  np.testing.assert_allclose(
    found_NV, _distributions(teacher, corpus), atol=2e-6
  )
  # BOS has no teacher; all others have a whole distribution.
  mass_N = np.ones(len(ids_NT))
  mass_N[corpus.begins[:-1]] = 0
  np.testing.assert_allclose(values_NT.sum(1), mass_N, atol=1e-5)


def test_a_teacher_without_finite_logits_is_refused(teacher, answer):
  corpus = _corpus([6, 9])
  (windows,) = teach.read_batches(corpus, 16, 2, 0.25)
  broken = jax.tree.map(lambda x: x * np.nan, teacher[1])
  drawn = answer(broken, windows.batch, windows.number_BL.astype(np.uint32))
  with pytest.raises(ValueError, match='corpus token 1 are not finite'):
    teach.targets(windows, drawn)


def test_what_cannot_be_read():
  corpus = _corpus([(4, 9, 9)])
  for length, overlap, message in (
    (16, 0.25, r'length=16: 0 is a tree of 23 tokens'),
    (32, 0.0, r'overlap=0.0: must be above 0'),
    (32, 0.6, r'overlap=0.6: must be above 0, and 0.5 at most'),
    (3, 0.25, r'length=3: must be at least 4'),
  ):
    with pytest.raises(ValueError, match=message):
      next(teach.read_batches(corpus, length, 2, overlap))


def test_a_teacher_reads_a_token_store_as_its_text(tmp_path):
  tree = [{'text': x, 'parent': p} for x, p in zip('abc', (-1, 0, 0))]
  lines = [{'text': 'words ' * n} for n in range(40)] + [{'segments': tree}]
  path = tmp_path / 'a.jsonl'
  path.write_text('\n'.join(map(json.dumps, lines)))
  config = data_config.DataConfig(path=str(path), held_out=0.1)
  write.write(config, str(tmp_path / 'store'), shard=500)
  read = []
  for place in (path, tmp_path / 'store'):
    config = data_config.DataConfig(path=str(place), held_out=0.1)
    corpus, _ = corpora.load(config)
    read.append([*teach.read_batches(corpus, 64, 4, 0.25, begin=900)])
  assert len(read[0]) > 5
  jax.tree.map(np.testing.assert_array_equal, *read)
