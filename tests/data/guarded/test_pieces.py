"""A text in pieces has the tokens of the whole text, whatever the tokenizer."""

import functools
import random
import signal
import types

import numpy as np
import pytest

from tests import random_text

tokenizers = pytest.importorskip('tokenizers')

from kaiju_jax.data.guarded import client  # noqa: E402
from kaiju_jax.data.guarded import cuts  # noqa: E402
from kaiju_jax.data.guarded import process  # noqa: E402

_LLAMA = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
  r'| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)
ADDED = ('<|im_start|>', '<s>', 'New York', '[MASK]', '\n\n\n')
SPECIAL = (
  *ADDED,
  *('the cat sat', ' ', '  ', '\n', '\n\n', '\t', "'s", "don't", '12345', '▁'),
  *('naïve', 'e\u0301', '\ufb01', '한국', '\u1112\u1161\u11ab', '東京', '👍🏽'),
  *('<|im', '_start|>', 'New', ' York', '. ', 'a' * 30, ' \u00a0', 'ＡＢ'),
)
RUNS = (
  'a',
  'b',
  ' ',
  '\n',
  '1',
  '.',
  '_',
  "'s",
  'ab',
  '\u0301',
  '\u0323',
  '한',
)
RUNS += ('\u1100', '\u1161', '\u11a8', '👍', '\u200d', '東', '`', '[MASK]', 'é')
CORPUS = [
  'aaaaaaaa aaaaaaa aaaa abab ababab aab baab ..... ____ ((( 111111 ' * 5,
  'the cat sat on the mat, naïve 12345 東京 한국 New York; ' * 4,
  "don't you've 'll __init__ x = y\n\n\tdef f(x): pass  aaaa aaab",
]


def _trained(model, trainer, normalizer=None, words=None):
  made = tokenizers.Tokenizer(model)
  if normalizer is not None:
    made.normalizer = normalizer
  if words is not None:
    made.pre_tokenizer = words
  made.train_from_iterator(CORPUS, trainer)
  return made


def _bpe(normalizer=None, words=None, alphabet=(), **options):
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=600,
    special_tokens=['<unk>'],
    initial_alphabet=list(alphabet),
    show_progress=False,
  )
  model = tokenizers.models.BPE(unk_token='<unk>', **options)
  return _trained(model, trainer, normalizer, words)


def _byte_bpe(words, normalizer=None):
  alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
  return _bpe(normalizer, words, alphabet)


def _sentence_bpe():
  """As Llama 2: no words, spaces as ▁, unknown characters as bytes."""
  n = tokenizers.normalizers
  made = _bpe(n.Sequence([n.Prepend('▁'), n.Replace(' ', '▁')]), None, 'abc▁.')
  return made


def _unigram(words=None):
  pieces = ['▁', 'the', '▁the', '▁cat', 'a', 'aa', 'n', '東京', '.', '\n', '1']
  vocab = [('<unk>', 0.0), *((x, -1.0 - len(x) / 9) for x in pieces)]
  made = tokenizers.Tokenizer(tokenizers.models.Unigram(vocab, 0, False))
  made.normalizer = tokenizers.normalizers.NFKC()
  made.pre_tokenizer = words or tokenizers.pre_tokenizers.Metaspace()
  return made


def _replaced():
  """Normalizers that read several characters, and ones that drop some."""
  n, regex = tokenizers.normalizers, tokenizers.Regex
  steps = [
    n.Replace(regex(r' {2,}'), '▁▁'),
    n.Replace('``', '"'),
    n.Replace(regex(r'[0-9]'), ''),
    n.StripAccents(),
    n.Nmt(),
  ]
  return n.Sequence(steps)


def _word_piece():
  trainer = tokenizers.trainers.WordPieceTrainer(
    vocab_size=300, special_tokens=['[UNK]'], show_progress=False
  )
  model = tokenizers.models.WordPiece(unk_token='[UNK]')
  words = tokenizers.pre_tokenizers.BertPreTokenizer()
  normalizer = tokenizers.normalizers.BertNormalizer()
  return _trained(model, trainer, normalizer, words)


def _split(pattern):
  p = tokenizers.pre_tokenizers
  regex = tokenizers.Regex(pattern)
  return p.Sequence(
    [p.Split(regex, 'isolated'), p.ByteLevel(False, use_regex=False)]
  )


def _digits():
  p = tokenizers.pre_tokenizers
  return p.Sequence([p.Digits(True), p.ByteLevel(add_prefix_space=True)])


MADE = {
  'GPT-2': lambda: _byte_bpe(tokenizers.pre_tokenizers.ByteLevel(False)),
  'GPT-2, prefix': lambda: _byte_bpe(tokenizers.pre_tokenizers.ByteLevel(True)),
  'Llama 3': lambda: _byte_bpe(_split(_LLAMA)),
  'Llama 3, NFC': lambda: _byte_bpe(
    _split(_LLAMA), tokenizers.normalizers.NFC()
  ),
  'digits': lambda: _byte_bpe(_digits()),
  'SentencePiece': _sentence_bpe,
  'characters': lambda: _bpe(
    tokenizers.normalizers.Sequence(
      [tokenizers.normalizers.Strip(), tokenizers.normalizers.NFC()]
    ),
    alphabet='ab e.1_\n\u0301\u0323éḅ',
  ),
  'Metaspace': lambda: _bpe(None, tokenizers.pre_tokenizers.Metaspace()),
  'Unigram': _unigram,
  'Unigram, punctuation': lambda: _unigram(
    tokenizers.pre_tokenizers.Punctuation('merged_with_next')
  ),
  'WordPiece': _word_piece,
  'replaced': lambda: _bpe(
    _replaced(), tokenizers.pre_tokenizers.WhitespaceSplit()
  ),
  'ends of words': lambda: _bpe(
    None,
    tokenizers.pre_tokenizers.CharDelimiterSplit(' '),
    end_of_word_suffix='</w>',
  ),
  'words': lambda: _bpe(
    tokenizers.normalizers.Sequence(
      [
        tokenizers.normalizers.NFKC(),
        tokenizers.normalizers.Lowercase(),
        tokenizers.normalizers.Strip(),
      ]
    ),
    tokenizers.pre_tokenizers.Whitespace(),
  ),
}


@functools.cache
def file_of(name, is_added):
  """Returns a tokenizer.json, maybe with added tokens of all kinds."""
  made = MADE[name]()
  if is_added:
    made.add_tokens(
      [
        tokenizers.AddedToken('New York'),
        tokenizers.AddedToken('\n\n\n', normalized=False),
        tokenizers.AddedToken('[MASK]', lstrip=True, rstrip=True),
        tokenizers.AddedToken('cat', single_word=True),
        tokenizers.AddedToken(' x', rstrip=True),
      ]
    )
    made.add_special_tokens(['<|im_start|>', '<s>'])
  return made.to_str().encode()


def opened(data):
  """Returns the library's own tokenizer, in this process."""
  made = tokenizers.Tokenizer.from_buffer(data)
  made.post_processor = None
  made.encode_special_tokens = True
  return made


def drawn(rng, least):
  """Returns a text of at least so many characters, half of it words."""
  parts, size = [], 0
  while size < least:
    kind = rng.random()
    if kind < 0.3:  # Longer than the context of a cut.
      few = rng.sample(RUNS, rng.choice([1, 1, 2, 3]))
      part = ''.join(rng.choices(few, k=rng.randrange(50, 250)))
    elif kind < 0.6:
      part = ' '.join(rng.choices(CORPUS[0].split(), k=rng.randrange(1, 40)))
    else:
      part = random_text.draw(rng, 40, SPECIAL)
    parts.append(part)
    size += len(part)
  return ''.join(parts)


def whole(data, text):
  found = opened(data).encode(text, add_special_tokens=False)
  return found.ids, [list(one) for one in found.offsets]


@pytest.fixture(autouse=True)
def no_limit_here(monkeypatch):
  """Has encoders in this process without their limit of time."""
  unlimited = types.SimpleNamespace(
    **vars(signal) | {'setitimer': lambda *_: None}
  )
  monkeypatch.setattr(process, 'signal', unlimited)


def in_pieces(text_of, parts):
  """Returns the tokens and places that an encoder answers to parts."""
  tokens, places = [], []
  for number, part in enumerate(parts):
    last = process.LAST if number == len(parts) - 1 else process.PART
    answer = text_of.encode(part, last | process.PLACES)
    count = len(answer) // 20
    tokens += np.frombuffer(answer, np.int32, count).tolist()
    places += (
      np.frombuffer(answer[4 * count :], np.int64).reshape(-1, 2).tolist()
    )
  return tokens, places


@pytest.mark.parametrize('is_added', [False, True])
@pytest.mark.parametrize('name', MADE)
def test_parts_of_any_size_have_the_tokens_of_the_whole(
  name, is_added, monkeypatch
):
  data = file_of(name, is_added)
  tokenizer, rng = opened(data), random.Random(name)
  found_cuts = cuts.Cuts(tokenizer)
  # Pieces are short here, so that a text has many borders.
  monkeypatch.setattr(process, 'PIECE', 40)
  for _ in range(12):
    text = drawn(rng, 1200)
    places = sorted(rng.sample(range(1, len(text)), 12))
    parts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)])]
    found = in_pieces(process._Text(tokenizer, found_cuts), parts)
    assert found == whole(data, text), (name, parts)


@pytest.mark.parametrize('name', MADE)
def test_a_long_text_has_the_tokens_of_the_whole_through_the_client(name):
  data, rng = file_of(name, True), random.Random(1)
  text = drawn(rng, 2 * process.PIECE + 5000)
  tokens, places = [], []
  for some, where in client.Tokenizer(data, True).encode(text, places=True):
    tokens += some.tolist()
    places += where.tolist()
  assert (tokens, places) == whole(data, text)


@pytest.mark.parametrize('name', MADE)
def test_pieces_are_of_bounded_length_and_add_up_to_little_more(name):
  """What the library gets at once, and in all, of a long ordinary text."""

  class Counting:
    def __init__(self, tokenizer):
      self.tokenizer, self.sizes = tokenizer, []

    def __getattr__(self, name):
      return getattr(self.tokenizer, name)

    def encode_batch(self, texts, **options):
      self.sizes += map(len, texts)
      return self.tokenizer.encode_batch(texts, **options)

    encode_batch_fast = encode_batch

  tokenizer = opened(file_of(name, True))
  counting = Counting(tokenizer)
  text = ' '.join(CORPUS[1:]) * 900
  parts = [
    text[at : at + process.PIECE] for at in range(0, len(text), process.PIECE)
  ]
  assert len(parts) > 8
  encoder = process._Text(counting, cuts.Cuts(tokenizer))
  in_pieces(encoder, parts)
  assert max(counting.sizes) <= 2 * process.PIECE + 1000
  assert sum(counting.sizes) <= 1.1 * len(text)


@pytest.mark.parametrize('flags', [0, process.PLACES])
def test_a_text_that_cannot_be_cut_is_refused_above_a_size(flags):
  made = tokenizers.Tokenizer.from_buffer(file_of('SentencePiece', False))
  made.pre_tokenizer = tokenizers.pre_tokenizers.UnicodeScripts()
  data = made.to_str().encode()
  text = 'the cat sat ' * (process.MOST // 12)
  guarded = client.Tokenizer(data)
  tokens = np.concatenate([some for some, _ in guarded.encode(text)])
  assert tokens.tolist() == whole(data, text)[0]
  with pytest.raises(
    client.Refused, match='UnicodeScripts reads it as a whole'
  ):
    list(guarded.encode(text * 2, places=bool(flags)))
  # It is as good as new for the next text.
  assert sum(len(some) for some, _ in guarded.encode('the cat'))
