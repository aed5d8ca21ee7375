"""What an engine is asked, and what it answers."""

from collections.abc import Hashable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import numbers
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.requests import sampling as sampling_lib
from kaiju_jax.decoding.requests import stop


class BadLogits(ArithmeticError):
  """The model gave logits from which no token can be drawn."""


class Late(TimeoutError):
  """No row became free before the request's deadline."""


class Busy(RuntimeError):
  """The engine takes no more requests at the moment.

  Attributes:
    seconds: the wait to expect, after which to ask again; None where it takes
      none at all any more.
  """

  def __init__(self, message: str, seconds: float | None):
    super().__init__(message)
    self.seconds = seconds


@dataclasses.dataclass(frozen=True, eq=False)
class Guide:
  """A search for the best continuation, instead of draws (`beam.py`).

  It is ranked by the sum of its tokens' log-probabilities and by what the
  engine's token-level head says of the whole text (`token_head.reweigh`), over
  the penalty of its length.

  Attributes:
    width: beams that stay after each step.
    candidates: expansions that run and are judged at each step, at least
      `width`; None for `width` of them.
    weights: by name of the head's dimensions: positive for what is wanted,
      negative for what is to be avoided; 0 for those without a name here.
    length_penalty: exponent of the penalty, at least 0; see `beam.Search`.
  """

  width: int
  candidates: int | None = None
  weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
  length_penalty: float = 0.0

  @property
  def queries(self) -> int:
    """Candidates of a step."""
    return self.width if self.candidates is None else self.candidates

  def extra(self, max_tokens: int) -> int:
    """Returns the slots that it takes beyond its text: a `Decoder`'s `extra`.

    Args:
      max_tokens: of its request.
    """
    return self.width * max_tokens + self.queries - self.width


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
  """One sequence to continue.

  Attributes:
    tokens: the prompt, at least one token; a document opens with the
      tokenizer's `bos_id`.
    max_tokens: how many are drawn at most.
    sampling: how they are drawn; says nothing where they are searched for.
    stop_tokens: tokens that end the sequence.
    stop_strings: strings that end the sequence; they need a tokenizer.
    scores_prompt: whether to return the prompt's log-probabilities, for which
      all of its tokens run, and the output head on each.
    owner: who asks. Owners share an engine by the tokens that they reserve,
      prompt and `max_tokens`, and what one's texts left in the cache serves no
      other's.
    shared: how many of the first tokens serve all owners: those of a
      character, say.
    cache_salt: whom they serve: requests of different salts share nothing in
      the cache, not even an owner's own, so that nobody can find out by guesses
      what the prompt holds.
    conversation: what the text is a turn of; None for none. The points of a
      conversation's earlier turns make room for those of the later.
    priority: higher goes first.
    deadline: seconds after which it is too late to begin; None for never.
    guided: how its continuation is searched for; None where it is drawn. What
      is found comes at once, when the search is done, cut at a stop string.
  """

  tokens: Sequence[int] | np.ndarray
  max_tokens: int
  sampling: sampling_lib.Sampling = dataclasses.field(
    default_factory=sampling_lib.Sampling
  )
  stop_tokens: Sequence[int] = ()
  stop_strings: Sequence[str] = ()
  scores_prompt: bool = False
  owner: str = ''
  shared: int = 0
  cache_salt: str = ''
  conversation: Hashable | None = None
  priority: int = 0
  deadline: float | None = None
  guided: Guide | None = None


class Event(NamedTuple):
  """One drawn token.

  Attributes:
    token: its number.
    text: what can be shown with it: '' where all of it is held back
      (`stop.py`), or where there is no tokenizer.
    log_probability: the model's own, before filters (`sampling.py`).
    reason: None, or why this token is the last: 'length', 'stop_token' or
      'stop_string'.
    scores: what the engine's token-level head gives the text up to and with
      this token, the probability of each dimension; those of the token before
      it for a stop token, which shows nothing of its own, and None where that
      is the first. None without a head.
  """

  token: int
  text: str
  log_probability: float
  reason: str | None
  scores: tuple[float, ...] | None = None


class Result(NamedTuple):
  """A sequence's continuation, as far as it came.

  Attributes:
    tokens: int32, the drawn ones, including the one that stopped it.
    text: the drawn tokens' text, up to the stop.
    log_probabilities: float32, one per drawn token.
    prompt_log_probabilities: float32, one per token of the prompt but the
      first, in every turn of a conversation too; None where the request did
      not ask. Fewer where the prompt was cut off.
    reason: see `Event`; 'cancelled' where the stream was closed or not read in
      time, 'drained' where the engine stopped, 'error' where `error` says why.
    error: a `BadLogits`, a `Late`, or None; of a search also a
      `beam.Vetoed`, a `beam_slots.Exhausted` or a `pages.Full`.
    reused: tokens of the prompt that were in the cache and did not run.
    prompt_scores: the highest probability of each of the head's dimensions over
      the prompt's tokens, whether they ran or were in the cache. None without a
      head, and as long as none has run.
  """

  tokens: np.ndarray
  text: str
  log_probabilities: np.ndarray
  prompt_log_probabilities: np.ndarray | None
  reason: str | None
  error: Exception | None
  reused: int = 0
  prompt_scores: tuple[float, ...] | None = None


def check(
  request: Request, vocab_size: int, length: int, name: str = 'request'
) -> np.ndarray:
  """Returns the prompt as int32 [L].

  Args:
    request: what is asked.
    vocab_size: V, the model's vocabulary size.
    length: tokens that its row has room for, prompt and continuation.
    name: the request's name in messages.

  Raises:
    TypeError, ValueError: names the field, its value and what is right.
  """
  if not isinstance(request, Request):
    raise TypeError(f'{name}={request!r}: must be a Request.')
  tokens_L = check_tokens(request.tokens, vocab_size, f'{name}.tokens')
  count = request.max_tokens
  if isinstance(count, bool) or not isinstance(count, numbers.Integral):
    raise TypeError(f'{name}.max_tokens={count!r}: must be an integer.')
  if count < 1:
    raise ValueError(f'{name}.max_tokens={count}: must be at least 1.')
  if len(tokens_L) + count > length:
    raise ValueError(
      f'{name}: a prompt of {len(tokens_L)} tokens and max_tokens={count} are'
      f' {len(tokens_L) + count}, and its row of the cache holds {length}.'
    )
  if not isinstance(request.sampling, sampling_lib.Sampling):
    raise TypeError(
      f'{name}.sampling={request.sampling!r}: must be a sampling.Sampling.'
    )
  stop.check_tokens(request.stop_tokens, f'{name}.stop_tokens')
  for token in request.stop_tokens:
    if token >= vocab_size:
      raise ValueError(
        f'{name}.stop_tokens holds {token}: a token is 0…{vocab_size - 1}.'
      )
  stop.check_strings(request.stop_strings)
  for field in 'owner', 'cache_salt':
    value = getattr(request, field)
    if not isinstance(value, str):
      raise TypeError(f'{name}.{field}={value!r}: must be a string.')
    if any('\ud800' <= x <= '\udfff' for x in value):
      raise ValueError(f'{name}.{field}={value!r}: holds a surrogate.')
  if not isinstance(request.conversation, Hashable):
    raise TypeError(
      f'{name}.conversation={request.conversation!r}: must be hashable.'
    )
  for field, least in (('shared', 0), ('priority', None)):
    value = getattr(request, field)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
      raise TypeError(f'{name}.{field}={value!r}: must be an integer.')
    if least is not None and not least <= value <= len(tokens_L):
      raise ValueError(
        f'{name}.{field}={value}: must be {least}…{len(tokens_L)}, tokens of'
        ' the prompt.'
      )
  if not isinstance(request.scores_prompt, bool):
    raise TypeError(
      f'{name}.scores_prompt={request.scores_prompt!r}: must be True or False.'
    )
  deadline = request.deadline
  is_number = isinstance(deadline, numbers.Real)
  if isinstance(deadline, bool) or not (is_number or deadline is None):
    raise TypeError(f'{name}.deadline={deadline!r}: must be seconds, or None.')
  if deadline is not None and not deadline > 0:
    raise ValueError(
      f'{name}.deadline={deadline!r}: must be seconds above 0, or None.'
    )
  if not isinstance(request.guided, Guide | None):
    raise TypeError(f'{name}.guided={request.guided!r}: must be a Guide.')
  return tokens_L


def check_tokens(tokens: Any, vocab_size: int, name: str) -> np.ndarray:
  """Returns tokens as int32 [L], once they are of the vocabulary.

  Raises:
    TypeError, ValueError: names the argument, its value and what is right.
  """
  tokens_L = np.asarray(tokens)
  if tokens_L.size == 0:
    raise ValueError(
      f'{name} is empty: there must be a token to go on from, as the'
      " tokenizer's bos_id."
    )
  if tokens_L.ndim != 1 or not np.issubdtype(tokens_L.dtype, np.integer):
    raise TypeError(
      f'{name} is {tokens_L.dtype}{list(tokens_L.shape)}: expected integers,'
      ' one after another.'
    )
  outside_L = (tokens_L < 0) | (tokens_L >= vocab_size)
  if outside_L.any():
    at = int(outside_L.argmax())
    raise ValueError(
      f'{name}[{at}]={tokens_L[at]}: a token is 0…{vocab_size - 1}.'
    )
  return tokens_L.astype(np.int32)
