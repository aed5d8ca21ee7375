"""Lets a model, an endpoint or the references answer golden conversations.

References    the author's own replies
Model         a model in this process, with the prompts that a server makes
Continuation  the same without chat, for a single message
Endpoint      any server with OpenAI's chat completions
Swapped       a responder that plays another character
"""

from collections.abc import Sequence
import dataclasses
from typing import Any
import zlib

import numpy as np

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.prompts import prompt as prompt_lib
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling as sampling_lib
from kaiju_jax.evaluation.persona import chat_completions
from kaiju_jax.evaluation.persona import dialogue
from kaiju_jax.evaluation.persona import golden

# The most tokens of a reply.
REPLY = 200
# Tokens of a continuation; nothing else ends it.
_CONTINUED = 48


class References:
  """The author's own replies."""

  def answer(self, messages: Sequence[dialogue.Asked]) -> list[str]:
    return [
      one.conversation.turns[len(one.before)].reference for one in messages
    ]


class Swapped:
  """A responder that plays the next conversation's character instead."""

  def __init__(
    self,
    responder: dialogue.Responder,
    conversations: Sequence[golden.GoldenConversation],
  ):
    """Pairs each conversation with the next one's character.

    Raises:
      ValueError: fewer than two have different characters.
    """
    others = [*conversations[1:], *conversations[:1]]
    self._responder = responder
    self._other = {}
    for one, other in zip(conversations, others):
      if one.character == other.character:
        raise ValueError(
          f'{one.id}: the next conversation has the same character: there is'
          ' none to play instead.'
        )
      self._other[one.id] = dataclasses.replace(other, id=one.id)

  def answer(self, messages: Sequence[dialogue.Asked]) -> list[str]:
    return self._responder.answer(
      [
        one._replace(conversation=self._other[one.conversation.id])
        for one in messages
      ]
    )


class Model:
  """A model in this process."""

  def __init__(
    self,
    generator: generator_lib.Generator,
    format: chat.Format,
    temperature: float = 0.0,
    seed: int = 0,
  ):
    """Takes a generator with room for the longest prompt and `REPLY` tokens.

    Args:
      format: the chat format of its tokenizer.
      temperature: temperature of sampling; 0 for the likeliest tokens.
      seed: seed of the replies.
    """
    self._generator = generator
    self._format = format
    self._temperature = temperature
    self._seed = seed

  def answer(self, messages: Sequence[dialogue.Asked]) -> list[str]:
    if not any(one.before for one in messages):
      # Conversations that ended would crowd those that begin out of the cache.
      self._generator.forget()
    requests = [
      request_lib.Request(
        self._prompt(one),
        REPLY,
        sampling_lib.Sampling(
          temperature=self._temperature, seed=self._draw_seed(one)
        ),
        stop_tokens=self._format.stop_tokens,
      )
      for one in messages
    ]
    return [one.text for one in self._generator.generate(requests)]

  def _draw_seed(self, message: dialogue.Asked) -> int:
    """Returns a seed that depends on no other message."""
    turn = message.conversation.id, len(message.before), message.user
    return zlib.crc32(repr((self._seed, *turn)).encode())

  def _prompt(self, message: dialogue.Asked):
    return prompt_lib.conversation(
      prompt_lib.prefix(_fields(message), self._format),
      [prompt_lib.Turn(*one) for one in _said(message)],
      self._format,
      prompt_lib.PREFIX,
    ).tokens


class Continuation:
  """A model in this process that only continues text, and plays nobody."""

  def __init__(
    self,
    generator: generator_lib.Generator,
    tokenizer: tokenizer_lib.Tokenizer,
  ):
    """Takes a generator with room for the longest message and a reply."""
    self._generator = generator
    self._tokenizer = tokenizer

  def answer(self, messages: Sequence[dialogue.Asked]) -> list[str]:
    """Returns what follows each message and the word 'Answer:'."""
    prompts = [
      self._tokenizer.encode(f'{one.user}\nAnswer:') for one in messages
    ]
    greedy = sampling_lib.Sampling(temperature=0.0)
    requests = [
      request_lib.Request(
        np.insert(tokens_L, 0, self._tokenizer.bos_id), _CONTINUED, greedy
      )
      for tokens_L in prompts
    ]
    return [one.text for one in self._generator.generate(requests)]


class Endpoint:
  """A server with OpenAI's chat completions."""

  def __init__(self, client: Any, model: str, temperature: float = 0.0):
    """Takes an `openai.OpenAI` client and the name of its model."""
    self._client = client
    self._model = model
    self._temperature = temperature

  def answer(self, messages: Sequence[dialogue.Asked]) -> list[str]:
    """Returns a reply to each message.

    Raises:
      chat_completions.Refused: the server did not answer.
    """
    return [self._answer(one) for one in messages]

  def _answer(self, message: dialogue.Asked) -> str:
    said = [('system', prompt_lib.persona(_fields(message))), *_said(message)]
    return chat_completions.ask(
      self._client,
      model=self._model,
      messages=[{'role': role, 'content': text} for role, text in said],
      max_tokens=REPLY,
      temperature=self._temperature,
    )


def _fields(message: dialogue.Asked) -> card_fields.Fields:
  character = message.conversation.character
  return card_fields.Fields(**dataclasses.asdict(character))


def _said(message: dialogue.Asked) -> list[tuple[str, str]]:
  """Returns (role, text) of the greeting, what was said, and the message."""
  greeting = message.conversation.character.greeting
  said = [('assistant', greeting)] if greeting else []
  for one in message.before:
    said += [('user', one.user), ('assistant', one.reply)]
  return [*said, ('user', message.user)]
