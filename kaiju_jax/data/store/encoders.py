"""Makes corpora of files: of text, of conversations, or of choices.

An encoder's settings are the fields of `DataConfig` that decide its tokens,
trees and weights. A store has them, and a run of other ones is refused by the
field. All else belongs to the run, as `data.reference` and the seed; so does
`data.length`, unless conversations are cut to it.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import sys
from typing import Any

from kaiju_jax.data import chat
from kaiju_jax.data import config as data_config
from kaiju_jax.data import conversations as conversations_lib
from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import holdout
from kaiju_jax.data import text
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.data import turns

# Settings that a store has a hash of.
HASHED = ('tokenizer', 'chat_template')


@dataclasses.dataclass(frozen=True)
class Encoder:
  """How files become a corpus."""

  # What files must hold, for errors.
  unit: str
  # {field of `DataConfig`: its value, or a hash of what it names}.
  settings: Mapping[str, Any]
  # (path, held-out fraction, path's field, column) → each item, and whether it
  # is held out, as `holdout.stream`.
  stream: Callable[..., Iterator[tuple[Any, bool]]]
  # (items, whether to measure them) → their corpus, None for an empty one, and
  # what was left out.
  encode: Callable[[Sequence[Any], bool], tuple[text.Corpus | None, Any]]
  measure: Callable[[Any], int]  # Characters of an item.
  # An item's text in a store, as `documents.record`; None for none.
  record: Callable[[Any], dict[str, Any]] | None = None
  say: Callable[[turns.Counts], None] = lambda counts: None


# Makes an encoder of a config and the model's vocabulary.
Make = Callable[..., Encoder]


def text_of(
  config: data_config.DataConfig, vocab_size: int | None = None
) -> Encoder:
  """Returns the encoder of text.

  Raises:
    OSError, ValueError: see `tokenizer.load`.
  """
  tokenizer = tokenizer_lib.load(config.tokenizer, vocab_size)

  def encode(found, measured):
    corpus = text.corpus(found, tokenizer, measured) if found else None
    return corpus, turns.Counts()

  return Encoder(
    unit='text',
    settings={'task': 'text', 'tokenizer': tokenizer_lib.digest(tokenizer)},
    stream=holdout.stream,
    encode=encode,
    measure=lambda one: sum(map(len, one.segments)),
    record=documents_lib.record,
  )


def fine_tuning(config: data_config.DataConfig, format: chat.Format) -> Encoder:
  """Returns the encoder of conversations to fine-tune on, in a chat format."""
  length, end_weight = config.length, config.end_weight

  def encode(found, measured):
    del measured
    return turns.fine_tuning(found, format, length, end_weight)

  return Encoder(
    unit=f'conversation with a reply to learn within data.length={length}',
    settings=_settings('conversations', format)
    | {'length': length, 'end_weight': end_weight},
    stream=_stream,
    encode=encode,
    measure=_measure,
    say=_say,
  )


def choices(format: chat.Format) -> Encoder:
  """Returns the encoder of choices between replies, in a chat format."""
  return Encoder(
    unit='conversation with a choice',
    settings=_settings('choices', format),
    stream=_stream,
    encode=lambda found, measured: turns.choices(found, format),
    measure=_measure,
    say=_say_choices,
  )


def _settings(task: str, format: chat.Format) -> dict[str, Any]:
  return {
    'task': task,
    'tokenizer': tokenizer_lib.digest(format.tokenizer),
    'chat_template': format.digest,
  }


def _stream(
  path: str, fraction: float, field: str, column: str
) -> Iterator[tuple[conversations_lib.Conversation, bool]]:
  del column
  return holdout.sides(
    functools.partial(conversations_lib.read, path, field),
    fraction,
    f'conversations in {field}={path!r}',
  )


def _measure(one: conversations_lib.Conversation) -> int:
  return sum(
    len(said.content)
    for message in one.messages
    for said in message.replies or (message,)
  )


def _say(counts: turns.Counts) -> None:
  print(
    f'{counts.conversations:,} conversations, {counts.replies:,} replies to'
    f' learn. Longer than a row: {counts.cut:,} lost their first'
    f' {counts.turns:,} messages. Left out: {counts.dropped:,}.',
    file=sys.stderr,
  )


def _say_choices(counts: turns.Counts) -> None:
  print(
    f'{counts.conversations:,} conversations with a choice,'
    f' {counts.replies:,} replies. Left out: {counts.ties:,} ties,'
    f' {counts.single:,} turns of one reply, {counts.repeated:,} repeated'
    f' replies, {counts.dropped:,} conversations without a choice.',
    file=sys.stderr,
  )
