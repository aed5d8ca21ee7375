"""Makes rows of invented dialogues, tokenized as a server prompts.

A document is a character's prefix and a tree of messages
(`data/dialogues/talk.py`), so that a model reads a description once for all
messages below it. Each row is filled with such documents and drawn when it is
read: rows[i] is a function of the seed and of i, the rows never end, and none
is stored.

A run begins with rows of repetitions (`repetitions.py`), from which a model
learns to copy. Their share falls during the run.
"""

from collections.abc import Iterator
from collections.abc import Sequence

import numpy as np

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import chat
from kaiju_jax.data import packing
from kaiju_jax.data.dialogues import personas
from kaiju_jax.data.dialogues import talk
from kaiju_jax.tasks.dialogues import repetitions

# A row has at least this many times the tokens of a character's description:
# room for a greeting and an exchange. The longest of so many characters counts.
_TIMES, _SAMPLES = 2, 64
# The weight of a token's loss, by role: replies are what the model is for, but
# it learns words from all of the text. (Our guess.)
WEIGHTS = {'system': 0.1, 'user': 0.3, 'assistant': 1.0}
# The fraction of the rows that are one long document instead of two halves, and
# the tokens of the shortest row with halves.
_LONG, _HALVED = 0.7, 1024
# The fraction of the characters whose values are random words.
_MIXED = 0.6
# Repetitions over a run, from its beginning (0) to its end (1): their share of
# the rows, and how many tokens longer than short ones their runs may be. The
# runs are short until a model can copy.
_SHARE = ((0.1, 0.2, 0.5), (1.0, 0.2, 0.05))
_LONGEST = ((0.07, 0.12), (0, 160))
# The fraction of the documents that name the user, and of those that lack the
# greeting, as if a long history had dropped it.
_NAMED, _DROPPED = 0.3, 0.1
# Seeds of training rows are smaller (`runs/train.py`).
_UNSEEN = 2**32
_TEXTS = 2**34


def fields_of(
  persona: personas.Persona, greeting: str = ''
) -> card_fields.Fields:
  """Returns a persona as the fields of a character's card."""
  return card_fields.Fields(
    name=persona.name,
    description=persona.description,
    personality=persona.personality,
    scenario=persona.scenario,
    greeting=greeting,
  )


def document(
  rng: np.random.Generator, format: chat.Format, room: int
) -> packing.Piece:
  """Returns a character and a tree of messages, at most `room` tokens.

  Args:
    rng: the source of all draws.
    format: encodes messages.
    room: tokens; `least` of them are enough for any character.
  """
  persona = personas.draw(rng, mixed=rng.random() < _MIXED)
  user = personas.user_name(rng) if rng.random() < _NAMED else ''
  head_L = head(persona, format, user)
  encoded = {}

  def size(role: str, text: str) -> int:
    encoded[role, text] = format.message(role, text)
    return len(encoded[role, text])

  nodes = talk.dialogue(
    rng,
    persona,
    room - len(head_L),
    size,
    user=user,
    greeted=rng.random() >= _DROPPED,
  )
  below = (
    (1 + node.parent, node.role, encoded[node.role, node.text])
    for node in nodes
  )
  return _join([(-1, 'system', head_L), *below])


def head(
  persona: personas.Persona, format: chat.Format, user: str = ''
) -> np.ndarray:
  """Returns the tokens before a conversation's first message, int32 [L].

  Args:
    persona: the character.
    format: encodes messages.
    user: the user's name; '' leaves it out.
  """
  prefix_L = prompt.prefix(fields_of(persona), format)
  begun = prompt.conversation(prefix_L, (), format, prompt.PREFIX, user)
  return begun.tokens[: -len(format.opening('assistant'))]


def least(format: chat.Format) -> int:
  """Returns the tokens of the shortest rows that hold every character."""
  sizes = []
  for number in range(_SAMPLES):
    rng = np.random.default_rng((_TEXTS, number))
    sizes.append(len(head(personas.draw(rng, mixed=True), format)))
  return _TIMES * max(sizes)


def texts(count: int, room: int = 3000) -> Iterator[str]:
  """Yields dialogues as text, to train a tokenizer on.

  Args:
    count: number of dialogues.
    room: bytes of each dialogue's messages.
  """
  for number in range(count):
    rng = np.random.default_rng((_TEXTS, number))
    persona = personas.draw(rng)
    nodes = talk.dialogue(
      rng, persona, room, lambda role, text: len(text.encode())
    )
    described = ('system', prompt.persona(fields_of(persona)))
    yield chat.text_of([described, *((one.role, one.text) for one in nodes)])


class Rows:
  """Dialogues as a row source."""

  def __init__(
    self,
    format: chat.Format,
    count: int,
    length: int = 1024,
    seed: int = 0,
    has_repetitions: bool = True,
  ):
    """Makes the source; draws no row.

    Args:
      format: encodes messages.
      count: rows of a whole run; later rows are new, and drawn as its last ones
        are.
      length: tokens per row, at least `least`.
      seed: the seed of every draw.
      has_repetitions: whether some rows are repetitions.

    Raises:
      ValueError: rows too short for a character and an exchange.
    """
    if length < least(format):
      raise ValueError(
        f'data.length={length}: must be at least {least(format)}, because'
        ' dialogues are never cut.'
      )
    self._format = format
    self._count = count
    self._length = length
    self._seed = seed
    self._has_repetitions = has_repetitions
    # The tokens of text, from which runs of random tokens are drawn.
    self._text = np.setdiff1d(
      np.arange(format.tokenizer.vocab_size), format.stop_tokens
    )

  def __len__(self) -> int:
    return self._count

  def unseen(self) -> 'Rows':
    """Returns rows of dialogues from a seed with which no run trains."""
    return Rows(
      self._format, self._count, self._length, _UNSEEN + self._seed, False
    )

  def __getitem__(self, index: int) -> packing.Row:
    if index < 0:
      raise IndexError(f'row {index}: must be at least 0.')
    rng = np.random.default_rng((self._seed, index))
    if self._has_repetitions:
      part = index / max(1, self._count)
      if rng.random() < np.interp(part, *_SHARE):
        return repetitions.row(
          rng,
          self._text,
          self._format.tokenizer.bos_id,
          self._length,
          int(np.interp(part, *_LONGEST)),
        )
    is_whole = rng.random() < _LONG or self._length < _HALVED
    count = 1 if is_whole else 2
    left, pieces = self._length, []
    for number in range(count):
      piece = document(rng, self._format, left // (count - number))
      pieces.append(piece._replace(source=number))
      left -= len(piece.tokens)
    return packing.row(pieces, self._length)


def _join(
  parts: Sequence[tuple[int, str, np.ndarray]],
) -> packing.Piece:
  """Returns messages below each other as one tree.

  Args:
    parts: (index of the message above, role, tokens) of each message.
  """
  parents, weights, ends, size = [], [], {-1: -1}, 0
  for index, (parent, role, tokens_L) in enumerate(parts):
    chain = np.arange(size - 1, size - 1 + len(tokens_L))
    chain[0] = ends[parent]
    parents.append(chain)
    weights.append(np.full(len(tokens_L), WEIGHTS[role], np.float32))
    size += len(tokens_L)
    ends[index] = size - 1
  return packing.Piece(
    np.concatenate([tokens_L for *_, tokens_L in parts]),
    np.concatenate(parents),
    np.concatenate(weights),
  )
