"""Expressions of tokenizers that would stop a server."""

import json
import signal
import subprocess

import pytest

from kaiju_jax.interchange import regexes
from tests.interchange.templates import shapes

# Those of two families of today; the time of each is in proportion.
QWEN = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
  r'| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)


def tokenizer(pattern):
  """Returns a tokenizer.json's content with an expression."""
  split = {'type': 'Split', 'pattern': {'Regex': pattern}}
  byte_level = {'type': 'ByteLevel', 'use_regex': False}
  parts = {'type': 'Sequence', 'pretokenizers': [split, byte_level]}
  return json.loads(shapes.byte_tokenizer()) | {'pre_tokenizer': parts}


def test_an_expression_that_tries_all_ways_is_refused():
  with pytest.raises(ValueError, match=r"'\(a\+a\+\)\+b': .* repeats 'a'"):
    regexes.refuse_slow(tokenizer('(a+a+)+b'))


@pytest.mark.slow
def test_a_time_that_grows_with_the_square_is_refused():
  with pytest.raises(ValueError, match=r'more than 1 s .* repeats'):
    regexes.refuse_slow(tokenizer(r'[ \n]+$'))
  regexes.refuse_slow(tokenizer(QWEN))


def test_a_replacement_counts_as_well():
  content = json.loads(shapes.byte_tokenizer())
  content['normalizer'] = {
    'type': 'Replace',
    'pattern': {'Regex': '(a+a+)+c'},
    'content': '',
  }
  with pytest.raises(ValueError, match=r"'\(a\+a\+\)\+c'"):
    regexes.refuse_slow(content)


def test_a_limit_ends_the_trial(monkeypatch):
  seconds = []
  monkeypatch.setattr(signal, 'setitimer', lambda _, x: seconds.append(x))
  sizes = []
  spent = [0.002, 0.016, 0.002, 0.1, 0.9, 0.012, 0.13, 0.9]
  times = iter([time for one in spent for time in (0, one)])
  monkeypatch.setattr(regexes.time, 'process_time', lambda: next(times))
  regexes._try(lambda text: sizes.append(len(text)), 'a')
  assert sizes == [2**14 + 1, 2**17 + 1]  # In proportion.
  for _ in range(2):  # One grows faster, one is slow from the beginning.
    regexes._try(lambda text: sizes.append(len(text)), 'a')
  assert sizes[2:] == [2**14 + 1, 2**17 + 1, 2**20 + 1] * 2
  assert seconds == [regexes.SECONDS, 0] * 8


@pytest.mark.parametrize('is_slow', [False, True])
def test_only_what_is_slow_twice_is_refused(monkeypatch, is_slow):
  asked = []
  ends = iter([3, 0, 0] if is_slow else [3, 2, 1, None])

  def try_all(trials):
    asked.append(trials)
    return next(ends)

  monkeypatch.setattr(regexes, '_try_all', try_all)
  content = tokenizer('[xy]+')
  if is_slow:
    with pytest.raises(ValueError, match=r"'\[xy\]\+': .* repeats '1'"):
      regexes.refuse_slow(content)
    assert len(asked) == 2
    return
  regexes.refuse_slow(content)
  units = [*regexes._UNITS, 'x', 'y']
  assert [[unit for _, unit in one] for one in asked] == [
    units[skipped:] for skipped in (0, 3, 5, 6)
  ]


def test_too_many_expressions_are_refused(monkeypatch):
  ended = subprocess.CompletedProcess((), -signal.SIGXCPU, b'')
  monkeypatch.setattr(regexes.subprocess, 'run', lambda *_, **__: ended)
  with pytest.raises(ValueError, match=r'1 expressions: .* more than 300 s'):
    regexes.refuse_slow(tokenizer('a'))
