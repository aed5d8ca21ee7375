"""Text as it streams: never taken back, and all of it shown in the end."""

import random

import numpy as np
import pytest
import tokenizers

from kaiju_jax.data import tokenizer
from kaiju_jax.decoding.requests import stop

BYTES = tokenizer.Bytes()


def pieces(characters, tokens):
  return [characters.push(token) for token in tokens] + [characters.finish()]


def shown(text, tokens):
  out = []
  for count, token in enumerate(tokens, 1):
    out.append(text.push(token))
    if text.reason is not None:
      return ''.join(out), count
  return ''.join([*out, text.finish()]), count


@pytest.fixture(scope='module')
def fallback(tmp_path_factory):
  """Words with a marked space, and bytes for everything else, as in Llama 2."""
  names = ['<unk>', '<s>', '▁the', '▁cat', 's', '▁', 'é']
  names += [f'<0x{byte:02X}>' for byte in range(256)]
  made = tokenizers.Tokenizer(
    tokenizers.models.BPE(
      {name: i for i, name in enumerate(names)},
      [],
      unk_token='<unk>',
      byte_fallback=True,
    )
  )
  made.add_special_tokens(['<s>'])
  made.decoder = tokenizers.decoders.Sequence(
    [
      tokenizers.decoders.Replace('▁', ' '),
      tokenizers.decoders.ByteFallback(),
      tokenizers.decoders.Fuse(),
      tokenizers.decoders.Strip(' ', 1, 0),
    ]
  )
  path = tmp_path_factory.mktemp('tokenizer') / 'tokenizer.json'
  made.save(str(path))
  return tokenizer.HuggingFace(str(path)), names.index


def test_whole_characters_come_at_once_and_parts_wait():
  characters = stop.Characters(BYTES)
  assert pieces(characters, 'aé€😀b'.encode()) == (
    ['a', '', 'é', '', '', '€', '', '', '', '😀', 'b', '']
  )


def test_an_unfinished_end_is_shown_when_no_more_comes():
  assert pieces(stop.Characters(BYTES), b'a\xe2\x82') == ['a', '', '', '\ufffd']


def test_an_invalid_byte_is_shown_once_later_bytes_settle_it():
  characters = stop.Characters(BYTES)
  assert pieces(characters, b'\xe2ab') == ['', '\ufffda', 'b', '']


@pytest.mark.parametrize('alphabet', [b'ab', b'a\xe2\x82\xac\xff', b'\xff\xe2'])
def test_pieces_of_any_bytes_join_to_their_text(alphabet):
  generator = np.random.default_rng(len(alphabet))
  for _ in range(30):
    tokens = generator.choice(list(alphabet), 100)
    assert ''.join(pieces(stop.Characters(BYTES), tokens)) == (
      bytes(tokens.tolist()).decode(errors='replace')
    )


def test_spaces_of_words_survive_piecewise_decoding(fallback):
  words, index = fallback
  names = ['▁the', '▁cat', 's', '<s>', '▁the', '▁', 'é']
  tokens = [index(name) for name in names]
  assert pieces(stop.Characters(words), tokens) == (
    ['the', ' cat', 's', '', ' the', ' ', 'é', '']
  )


def test_characters_of_byte_tokens_stream_for_long(fallback):
  words, index = fallback
  text = '日本語のテキスト' * 8
  tokens = [index(f'<0x{byte:02X}>') for byte in text.encode()]
  found = pieces(stop.Characters(words), tokens)
  assert found[2::3] == list(text)
  assert ''.join(found) == text


def test_undecided_tokens_are_not_decoded_again_and_again(monkeypatch):
  longest = 0

  def decode(tokens):
    nonlocal longest
    longest = max(longest, len(tokens))
    return tokenizer.Bytes.decode(BYTES, tokens)

  counted = tokenizer.Bytes()
  monkeypatch.setattr(counted, 'decode', decode)
  for token in 0xFF, 0:  # Unreadable, and without text.
    pieces(stop.Characters(counted), [token] * 500)
  assert longest < 40


def test_tokens_beyond_the_tokenizer_are_unreadable():
  assert ''.join(pieces(stop.Characters(BYTES), [97, 300, 98])) == 'a\ufffdb'


@pytest.mark.parametrize(
  ('strings', 'text', 'shown_text', 'used'),
  [
    (['END'], 'one END two', 'one ', 7),
    (['END'], 'one EN', 'one EN', 6),
    (['\n\n'], 'a\nb\n\nc', 'a\nb', 5),
    (['aab'], 'aaaab', 'aa', 5),
    (['abab'], 'abaabab', 'aba', 7),
    (['abc', 'b'], 'xabc', 'xa', 3),  # 'b' is complete first.
    (['bc', 'abc'], 'xabc', 'x', 4),  # Both at once: the longest.
    ([], 'all', 'all', 3),
  ],
)
def test_stop_strings_drawn_out(strings, text, shown_text, used):
  found = shown(stop.Text(BYTES, (), strings), text.encode())
  assert found == (shown_text, used)
  # In one piece as letter by letter.
  whole = stop.Strings(strings)
  joined = whole.push(text)
  assert joined + whole.finish() == shown_text


def test_what_is_shown_and_held_against_an_oracle():
  """As soon as it cannot be cut any more, and not before."""
  rng = random.Random(1)
  for _ in range(3000):
    strings = [
      ''.join(rng.choices('abc', (5, 3, 1), k=rng.randint(1, 5)))
      for _ in range(rng.randint(1, 3))
    ]
    watched, text, found = stop.Strings(strings), '', ''
    while watched.found is None and len(text) < 15:
      piece = ''.join(rng.choices('abc', (5, 3, 1), k=rng.randint(0, 3)))
      found += watched.push(piece)
      whole = [
        (end, -len(one), one)
        for one in strings
        for end in range(1, len(text + piece) + 1)
        if (text + piece)[:end].endswith(one)
      ]
      text += piece
      if whole:
        end, size, one = min(whole)
        assert (watched.found, found) == (one, text[: end + size])
      else:
        held = max(
          size
          for one in strings
          for size in range(len(one))
          if text.endswith(one[:size])
        )
        assert (watched.found, found) == (None, text[: len(text) - held])
    assert found + watched.finish() == (found if watched.found else text)


def test_a_stop_token_ends_and_shows_what_was_held():
  text = stop.Text(BYTES, {10}, ['END'])
  assert shown(text, b'an EN\nmore') == ('an EN', 6)
  assert text.reason == 'stop_token'
  with pytest.raises(ValueError, match=r'token=65: .* ended before'):
    text.push(65)
  assert text.finish() == ''


def test_reasons():
  text = stop.Text(BYTES, (), ['b'])
  assert (text.push(97), text.reason) == ('a', None)
  assert (text.push(98), text.reason) == ('', 'stop_string')
  assert text.finish() == ''
  without = stop.Text(None, {3})
  assert (without.push(300), without.reason) == ('', None)
  assert (without.push(3), without.reason) == ('', 'stop_token')


@pytest.mark.parametrize(
  ('tokens', 'strings', 'error', 'named'),
  [
    ((), 'END', TypeError, "strings='END'"),
    ((), [''], ValueError, "strings holds ''"),
    ((), [b'x'], TypeError, "strings holds b'x'"),
    ([-1], (), ValueError, 'tokens holds -1'),
    (['a'], (), TypeError, "tokens holds 'a'"),
  ],
)
def test_what_cannot_stop_is_refused(tokens, strings, error, named):
  with pytest.raises(error, match=named):
    stop.Text(BYTES, tokens, strings)
  with pytest.raises(ValueError, match='need a tokenizer'):
    stop.Text(None, (), ['END'])
