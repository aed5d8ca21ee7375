"""Conversations with choices between replies."""

from kaiju_jax.data import chat
from kaiju_jax.data import conversations
from kaiju_jax.data import tokenizer as tokenizer_lib

Message = conversations.WeightedMessage


FORMAT = chat.format_of(tokenizer_lib.Bytes())


def message(*texts, kept=(-1,), weight=1.0):
  """Returns an assistant message with a choice."""
  kept = {index % len(texts) for index in kept}
  replies = tuple(
    conversations.Candidate(one, n in kept) for n, one in enumerate(texts)
  )
  return Message('assistant', texts[min(kept)], weight, replies)


def talk(*replies, name='a#1'):
  """Returns a conversation: a user's message before each reply."""
  said = []
  for number, one in enumerate(replies):
    said += [Message('user', f'{number}?'), one]
  return conversations.Conversation(name, tuple(said))


TALKS = (
  talk(message('no', 'yes!', kept=(0,)), message('b', 'c', 'a')),
  talk(message('x', 'y', weight=0.5), Message('assistant', 'z'), name='a#2'),
)
