"""Plays golden conversations with a responder, turn by turn.

In a free run the responder reads its own earlier replies; in a forced run the
references, so that one bad reply does not spoil what follows.
"""

from collections.abc import Sequence
from typing import NamedTuple
from typing import Protocol

from kaiju_jax.evaluation.persona import golden

TOGETHER = 16


class Exchange(NamedTuple):
  """A user's message and the reply to it."""

  user: str
  reply: str


class Asked(NamedTuple):
  """A message to answer, with everything that was said before."""

  conversation: golden.GoldenConversation
  before: tuple[Exchange, ...]  # The exchanges before, oldest first.
  user: str  # The message.


class Responder(Protocol):
  """What answers in a conversation."""

  def answer(self, messages: Sequence[Asked]) -> list[str]:
    """Returns a reply to each message."""


def play(
  responder: Responder,
  conversations: Sequence[golden.GoldenConversation],
  is_forced: bool = False,
  together: int = TOGETHER,
) -> list[list[str]]:
  """Returns the replies of each conversation, one per turn.

  Args:
    is_forced: whether the references become the history.
    together: conversations that are played side by side. A model with as many
      rows keeps them in its cache.
  """
  replies: list[list[str]] = []
  for begin in range(0, len(conversations), together):
    some = conversations[begin : begin + together]
    replies += _play_together(responder, some, is_forced)
  return replies


def _play_together(
  responder: Responder,
  conversations: Sequence[golden.GoldenConversation],
  is_forced: bool,
) -> list[list[str]]:
  replies: list[list[str]] = [[] for _ in conversations]
  for turn in range(len(conversations[0].turns)):
    messages = [
      Asked(one, _before(one, own, turn, is_forced), one.turns[turn].user)
      for one, own in zip(conversations, replies)
    ]
    answers = responder.answer(messages)
    for own, reply in zip(replies, answers, strict=True):
      own.append(reply)
  return replies


def _before(conversation, replies, turn, is_forced) -> tuple[Exchange, ...]:
  turns = conversation.turns[:turn]
  if is_forced:
    return tuple(Exchange(one.user, one.reference) for one in turns)
  return tuple(Exchange(one.user, said) for one, said in zip(turns, replies))
