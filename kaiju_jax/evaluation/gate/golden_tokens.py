"""Golden conversations as tokens, each of which belongs to a class.

A quantization that is fitted to prose may lose the character, so that tokens
of its card (`prefix`), of the user and of its replies are counted apart. The
replies are the references, so that every model reads the same tokens.
"""

from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

import numpy as np

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.prompts import prompt as prompt_lib
from kaiju_jax.data import chat
from kaiju_jax.evaluation.persona import golden

CLASSES = 'prefix', 'user', 'character'
_CLASS = {'user': 'user', 'assistant': 'character'}


class GoldenTokens(NamedTuple):
  """A conversation's tokens."""

  tokens_L: np.ndarray  # int32.
  classes_L: np.ndarray  # The class of each token, an index of `CLASSES`.
  tier: str  # The character's tier.
  language: str


def encode(
  conversation: golden.GoldenConversation, format: chat.Format
) -> GoldenTokens:
  """Returns a conversation with its reference replies as a server encodes it.

  Args:
    format: the chat format of the models' tokenizer.

  Raises:
    TooLong: the character is longer than a prefix may be.
  """
  fields = card_fields.Fields(**dataclasses.asdict(conversation.character))
  parts = [prompt_lib.prefix(fields, format)]
  classes = [np.zeros(len(parts[0]), np.int8)]
  after = format.advance('system')
  for role, text in messages(conversation):
    tokens_L = format.message(role, text, after)
    parts.append(tokens_L)
    index = CLASSES.index(_CLASS[role])
    classes.append(np.full(len(tokens_L), index, np.int8))
    after = format.advance(role, after, text)
  return GoldenTokens(
    np.concatenate(parts),
    np.concatenate(classes),
    conversation.tier,
    conversation.language,
  )


def messages(
  conversation: golden.GoldenConversation,
) -> Sequence[tuple[str, str]]:
  """Returns (role, text) of the greeting, the messages and the references."""
  greeting = conversation.character.greeting
  said = [('assistant', greeting)] if greeting else []
  for turn in conversation.turns:
    said += [('user', turn.user), ('assistant', turn.reference)]
  return said
