"""Rows of dialogues: a model reads what a server will ask it."""

import numpy as np
import pytest

from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import chat
from kaiju_jax.data import packing
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.tasks.dialogues import rows as rows_lib

FORMAT = chat.format_of(tokenizer_lib.Bytes())
ROWS = rows_lib.Rows(FORMAT, 100, has_repetitions=False)


def paths(piece):
  """Yields the tokens from the root to each leaf, beside their weights."""
  parents = np.asarray(piece.parents)
  for leaf in sorted({*range(len(parents))} - {*parents.tolist()}):
    path = []
    while leaf >= 0:
      path.append(leaf)
      leaf = parents[leaf]
    path = path[::-1]
    yield piece.tokens[path], piece.weights[path]


def messages(tokens_L):
  """Returns (role, text) of each message, bos aside."""
  text = bytes(tokens_L[1:].tolist()).decode()
  assert text.endswith(chat.ETX)
  said = []
  for one in text[:-1].split(chat.ETX):
    role, text = one.removeprefix(chat.SOH).split(chat.STX)
    said.append((role, text))
  return said


@pytest.mark.parametrize('number', range(12))
def test_every_path_of_a_document_is_what_a_server_prompts(number):
  rng = np.random.default_rng(number)
  piece = rows_lib.document(rng, FORMAT, 1024)
  seen = 0
  for tokens_L, _ in paths(piece):
    (_, persona), *said = messages(tokens_L)
    prefix_L = np.concatenate(
      [[FORMAT.tokenizer.bos_id], FORMAT.message('system', persona)]
    )
    user = ''
    if said[0][0] == 'system':
      user = said.pop(0)[1].removeprefix("User's name is ").rstrip('.')
    *before, (role, reply) = said
    assert role == 'assistant'
    turns = [prompt.Turn(*one) for one in before]
    conversation = prompt.conversation(prefix_L, turns, FORMAT, 4096, user)
    wanted_L = [*conversation.tokens, *reply.encode(), FORMAT.stop_tokens[0]]
    assert tokens_L.tolist() == wanted_L
    seen += 1
  assert seen


def test_a_persona_is_its_own_prefix():
  rng = np.random.default_rng(0)
  piece = rows_lib.document(rng, FORMAT, 1024)
  text = FORMAT.tokenizer.decode(piece.tokens)
  name = text.split('You are ')[1].split('.')[0]
  assert text.startswith(
    f'\x01system\x02You are {name}. You talk with User.\n\n{name}'
  )
  assert '\n\nPersonality: ' in text


def test_weights_say_who_speaks():
  piece = rows_lib.document(np.random.default_rng(1), FORMAT, 1024)
  for tokens_L, weights_L in paths(piece):
    text = bytes(tokens_L[1:].tolist())
    at = 1
    for one in text.split(b'\3')[:-1]:
      role = one[1:].split(b'\2')[0].decode()
      own = weights_L[at : at + len(one) + 1]
      if at == 1:
        own = own[1:]
      np.testing.assert_allclose(own, rows_lib.WEIGHTS[role])
      at += len(one) + 1


def test_rows_are_full_pure_and_without_end():
  drawn = [ROWS[index] for index in (0, 1, 2, 3, 4, 5, 99, 100, 10**6)]
  packing.stack(drawn)  # Refuses ranges outside of a row.
  assert len({row.tokens.tobytes() for row in drawn}) == len(drawn)
  again = rows_lib.Rows(FORMAT, 100, has_repetitions=False)
  assert np.array_equal(drawn[3].tokens, again[3].tokens)
  assert not np.array_equal(drawn[3].tokens, ROWS.unseen()[3].tokens)
  padding = np.mean([row.source < 0 for row in drawn])
  assert padding < 0.15
  assert len({*(row.source.max() for row in drawn)}) == 2  # Whole, and halves.


def test_a_short_row_is_one_document():
  drawn = rows_lib.Rows(FORMAT, 100, 800, has_repetitions=False)
  short = [drawn[index] for index in range(9)]
  packing.stack(short)  # Refuses ranges outside of a row.
  assert {int(row.source.max()) for row in short} == {0}


def test_rows_that_are_too_short_are_refused():
  with pytest.raises(
    ValueError, match=r'data.length=512: must be at least 7\d\d,'
  ):
    rows_lib.Rows(FORMAT, 5, length=512)
  with pytest.raises(IndexError):
    ROWS[-1]
