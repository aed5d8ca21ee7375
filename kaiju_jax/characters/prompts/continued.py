"""Makes the prompt of a reply that continues one which has begun."""

from collections.abc import Sequence

import numpy as np

from kaiju_jax.characters.prompts import lore as lore_lib
from kaiju_jax.characters.prompts import prompt as prompt_lib
from kaiju_jax.data import begun as begun_lib
from kaiju_jax.data import chat


def continuation(
  prefix_L: np.ndarray,
  messages: Sequence[prompt_lib.TurnLike],
  begun: prompt_lib.TurnLike,
  format: chat.Format,
  room: int,
  book: lore_lib.Book | None = None,
  seed: str = '',
) -> tuple[prompt_lib.Prompt, begun_lib.Begun]:
  """Returns the prompt of a reply's continuation, and the reply's beginning.

  The messages are those that the reply's own prompt had, so that the cache
  holds them, unless they leave no room for its beginning.

  Args:
    prefix_L, messages, format, room, book, seed: as `prompt.conversation` takes
      them; the messages before the reply.
    begun: the reply so far, of which there is some text.

  Raises:
    TooLong, TypeError, ValueError: see `prompt.conversation`.
  """
  least = prompt_lib.count_least(begun, format.tokenizer)
  if least > room:
    raise prompt_lib.TooLong(
      f'the reply so far has {least:,} tokens at least, and there is room for'
      f' {room:,}.',
      least,
      room,
    )

  def make(room: int) -> prompt_lib.Prompt:
    return prompt_lib.conversation(
      prefix_L, messages, format, room, book=book, seed=seed
    )

  made = make(room)
  whole, found = _continue(made, begun, format)
  more = len(whole.tokens) - len(made.tokens)
  if len(whole.tokens) > room:
    made = make(room - more)
    whole, found = _continue(made, begun, format)
  return whole, found


def _continue(
  made: prompt_lib.Prompt, begun: prompt_lib.TurnLike, format: chat.Format
) -> tuple[prompt_lib.Prompt, begun_lib.Begun]:
  """Returns a prompt with a reply's beginning in place of its opening."""
  opening_L = format.opening('assistant', made.place)
  found = begun_lib.begin(format, begun.text, begun.tokens, made.place)
  before_L = made.tokens[: len(made.tokens) - len(opening_L)]
  tokens_L = np.concatenate([before_L, found.tokens], dtype=np.int32)
  return made._replace(tokens=tokens_L), found
