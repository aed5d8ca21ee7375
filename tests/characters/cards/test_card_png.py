"""A card's PNG is read within bounds of all that its chunks inflate to."""

import random
import types
import zlib

import pytest

from kaiju_jax.characters.cards import card_png
from kaiju_jax.characters.cards import cards
from tests.characters.cards import png


def text_chunk(kind, keyword, text):
  """Returns a text chunk; `kind` may be 'zipped iTXt'."""
  if kind == 'tEXt':
    return png.chunk(b'tEXt', keyword + b'\0' + text)
  if kind == 'zTXt':
    return png.chunk(b'zTXt', keyword + b'\0\0' + zlib.compress(text, 9))
  is_zipped = kind == 'zipped iTXt'
  data = zlib.compress(text, 9) if is_zipped else text
  head = b'\0' + bytes([is_zipped]) + b'\0\0\0'
  return png.chunk(b'iTXt', keyword + head + data)


KINDS = 'tEXt', 'zTXt', 'iTXt', 'zipped iTXt'


@pytest.fixture
def inflated(monkeypatch):
  """The bytes that were inflated."""
  counts = []

  class Counting:
    def __init__(self):
      self.real = zlib.decompressobj()

    def decompress(self, data, most):
      made = self.real.decompress(data, most)
      counts.append(len(made))
      return made

    def __getattr__(self, name):
      return getattr(self.real, name)

  counted = types.SimpleNamespace(**vars(zlib) | {'decompressobj': Counting})
  monkeypatch.setattr(card_png, 'zlib', counted)
  return counts


@pytest.mark.parametrize('kind', KINDS)
def test_many_equal_texts_cost_no_more_than_a_few(kind, inflated):
  text = b'{"name":"Ada"}'.ljust(2**20 if 'z' in kind else 1000)
  data = png.png(*[text_chunk(kind, b'chara', text)] * 7000)
  with pytest.raises(cards.CardError) as caught:
    cards.read(data)
  assert caught.value.fault == 'inflated'
  assert sum(inflated) <= card_png.TEXTS + card_png.TEXT


def test_whatever_the_chunks_are_their_sum_is_bounded(inflated):
  rng = random.Random(0)
  results = set()
  for _ in range(60):
    size = rng.choice([100, 1000, 2**16, 2**20 - 1, 2**20, 2**20 + 1])
    texts = [
      (
        rng.choice(KINDS),
        rng.choice([b'chara', b'ccv3', b'CCV3', b'Comment']),
        b'{"name":"Ada"}'.ljust(size),
      )
      for _ in range(rng.choice([1, 2, 3, 5, 6]))
    ]
    inflated.clear()
    data = png.png(*(text_chunk(*one) for one in texts))
    try:
      cards.read(data)
      fault = None
    except cards.CardError as error:
      fault = error.fault
    results.add(fault)
    assert sum(inflated) <= card_png.TEXTS + card_png.TEXT
    wanted = [one for one in texts if one[1] != b'Comment']
    if fault is None:
      assert sum(len(text) for _, _, text in wanted) <= card_png.TEXTS
    if fault == 'inflated' and size <= card_png.TEXT:
      assert sum(len(text) for _, _, text in wanted) > card_png.TEXTS
  assert results >= {None, 'inflated', 'missing'}


def test_texts_of_both_keywords_may_be_as_large_as_one_may_be(inflated):
  text = b'{"name":"Ada"}'.ljust(card_png.TEXT)
  chunks = [
    text_chunk(kind, keyword, text)
    for kind in ('tEXt', 'zTXt')
    for keyword in (b'chara', b'ccv3')
  ]
  assert cards.read(png.png(*chunks)).fields.name == 'Ada'
  assert sum(inflated) == 2 * card_png.TEXT
  with pytest.raises(cards.CardError, match='together'):
    cards.read(png.png(*chunks, text_chunk('tEXt', b'chara', text)))
