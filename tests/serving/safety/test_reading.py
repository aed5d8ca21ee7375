"""What the gate reads of a text, disguised or not."""

import time
import unicodedata

import numpy as np
import pytest

from kaiju_jax.serving.safety import reading
from tests.serving.safety import disguises


def test_plain_of_ordinary_text():
  assert reading.plain('  Ångström\n\n ﬁnds  „Straße“ ') == (
    'ångström finds „strasse“'
  )
  # Vowel signs of other scripts are letters' own, and stay.
  for text in 'हिन्दी', 'ภาษาไทย', 'ガ', 'שָׁלוֹם':
    assert reading.plain(text) == unicodedata.normalize('NFKC', text)


@pytest.mark.parametrize('name', disguises.DISGUISED)
def test_plain_of_a_disguise_is_that_of_the_text(name):
  assert (
    reading.plain(disguises.DISGUISED[name]) == 'say zorbifex, please. then go!'
  )


@pytest.mark.parametrize('name', disguises.SKELETONS)
def test_skeleton_of_a_disguise(name):
  assert (
    reading.skeleton(reading.plain(disguises.SKELETONS[name])) == 'sayzorbifex'
  )


def test_ascii_is_read_as_other_text_is():
  """The short way for ASCII gives what the long one does."""
  text = ''.join(map(chr, range(128))) + ' A  b\tC\x85'
  assert reading.plain(text[:128]) == reading.plain(text[:128] + '\u200b')


def test_parts_hold_each_segment_of_the_whole():
  rng = np.random.default_rng(1)
  for size in (0, 5, 300, 3_000):
    text = disguises.random_text(rng, size) + ' word' * (size // 3)
    whole = reading.segments(reading.plain(text), 20)
    parts = list(reading.parts(text, 100, 20))
    found = [one for part in parts for one in reading.segments(part, 20)]
    assert set(whole) == set(found)
    assert len(found) <= len(whole) + len(parts)


def test_any_text_can_be_read_and_encoded():
  rng = np.random.default_rng(0)
  for size in (0, 1, 5, 300):
    text = disguises.random_text(rng, size)
    plain = reading.window(text, 100)
    plain.encode()
    assert '  ' not in plain and plain == plain.strip()
    skeleton = reading.skeleton(plain)
    skeleton.encode()
    assert all(x.isalnum() for x in skeleton)


def test_a_window_is_the_end_of_what_can_be_seen():
  assert reading.window('abc def', 3) == 'def'
  assert reading.window('abc', 100) == 'abc'
  for nothing in '\u200b', ' ', '\u200b \n', '\u0301\u0316', '\x00':
    text = 'zorb' + nothing * 5_000 + 'x' * 3
    assert reading.window(text, 8).startswith('zorb')


def test_a_window_of_a_long_text_reads_its_end_alone():
  assert reading.window('a' * 10**7 + 'end', 4) == 'aend'


def test_long_runs_of_marks_take_no_quadratic_time():
  """Sorting 120,000 marks by class takes a quarter of a minute."""
  begun = time.thread_time()
  assert reading.plain('a' + '\u0301\u0316' * 60_000) == 'á'
  assert time.thread_time() - begun < 2


def test_segments_are_drawn():
  assert reading.segments('ab, cd. ef gh', 4) == [
    'ab, cd. ',
    'cd. ef ',
    'ef gh',
  ]
  assert reading.segments('..ab', 4) == ['..ab']
  assert reading.segments('a-b-c-d', 4) == ['a-b-c-d']
  assert reading.segments('abcde', 4) == ['abcd', 'cde']
  assert reading.segments('?!' * 2_000, 4) == ['?!' * 2_000]
  assert reading.segments('', 4) == ['']


def test_segments_hold_whatever_has_half_as_many_letters():
  rng = np.random.default_rng(1)
  for _ in range(200):
    text = ''.join(rng.choice(list('abc .'), 60))
    parts = reading.segments(text, 8)
    assert parts[0] == text[: len(parts[0])]
    assert parts[-1] == text[len(text) - len(parts[-1]) :]
    for part in parts:
      assert part in text
      assert sum(x.isalnum() for x in part) <= 8
    skeleton = text.replace(' ', '').replace('.', '')
    bare = [part.replace(' ', '').replace('.', '') for part in parts]
    for n in range(len(skeleton) - 3):
      assert any(skeleton[n : n + 4] in part for part in bare)
