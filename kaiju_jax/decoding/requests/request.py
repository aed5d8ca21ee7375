"""The engine's interface: requests, the events and results that answer them."""

from collections.abc import Hashable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import numbers
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.requests import alternatives as alternatives_lib
from kaiju_jax.decoding.requests import sampling as sampling_lib
from kaiju_jax.decoding.requests import stop

# Tokens that might stand in a place, and their log-probabilities.
Alternatives = tuple[tuple[int, float], ...]


class BadLogits(ArithmeticError):
  """An error: no token can be drawn from the model's logits."""


class Late(TimeoutError):
  """An error: no row became free before the request's deadline."""


class Busy(RuntimeError):
  """An error: no more requests now; ask again in `seconds`, None for never."""

  def __init__(self, message: str, seconds: float | None):
    super().__init__(message)
    self.seconds = seconds

  def __reduce__(self) -> tuple[Any, ...]:
    # It may come from a replica of another process.
    return Busy, (str(self), self.seconds)


@dataclasses.dataclass(frozen=True, eq=False)
class Guide:
  """Settings for a beam search for the continuation, in place of draws.

  Results rank by the sum of their tokens' log-probabilities and the score that
  the engine's token-level head gives the whole text (`token_head.reweigh`),
  divided by the penalty of length. Other attributes are `beam.search.Search`'s.
  """

  width: int
  candidates: int | None = None
  # By name of the head's dimensions: positive for what is wanted, negative for
  # what is to be avoided; 0 for those not named.
  weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
  length_penalty: float = 0.0

  @property
  def queries(self) -> int:
    """Candidates of a step."""
    return self.width if self.candidates is None else self.candidates

  def extra(self, max_tokens: int) -> int:
    """Returns the slots that it takes beyond its text (`Decoder`'s `extra`)."""
    return self.width * max_tokens + self.queries - self.width


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
  """One sequence to continue."""

  # The prompt, at least one token; a document opens with the tokenizer's
  # `bos_id`.
  tokens: Sequence[int] | np.ndarray
  # Most tokens of the continuation.
  max_tokens: int
  # How tokens are drawn; ignored with `guided`.
  sampling: sampling_lib.Sampling = dataclasses.field(
    default_factory=sampling_lib.Sampling
  )
  # These end the sequence; strings need a tokenizer.
  stop_tokens: Sequence[int] = ()
  stop_strings: Sequence[str] = ()
  # Whether to return the prompt's log-probabilities; all of its tokens then
  # run, and the output head on each.
  scores_prompt: bool = False
  # The API token's user. Owners share the engine by the tokens that they
  # reserve, prompt and `max_tokens`; an owner's texts in the cache serve no
  # other owner.
  owner: str = ''
  # How many of the first tokens, such as a character's, serve all owners.
  shared: int = 0
  # Requests of different salts share nothing in the cache, not even one
  # owner's, so that no guess can find out what a prompt holds.
  cache_salt: str = ''
  # A key, None for none; points of its earlier turns make room for those of
  # later ones.
  conversation: Hashable | None = None
  # Higher goes first.
  priority: int = 0
  # Seconds within which it must begin; None for no limit.
  deadline: float | None = None
  # The search for its continuation; None to draw. The result comes at once,
  # when the search is done, cut at a stop string.
  guided: Guide | None = None
  # How many of the prompt's last tokens are text that is continued: the drawn
  # tokens read as they do behind it, such as with a space before them.
  begun: int = 0
  # How many of the likeliest tokens come with each drawn one, and with each
  # scored one of the prompt; at most as many as the engine was made for.
  alternatives: int = 0
  # The first tokens of the continuation, where another engine drew them and
  # gave them out. They are neither drawn nor given out again, and `max_tokens`
  # counts them; what follows is what would have followed there.
  drawn: Sequence[int] | np.ndarray = ()


class Event(NamedTuple):
  """One drawn token."""

  # Its number.
  token: int
  # What can be shown with it; '' if all is held back (`stop.py`), or without a
  # tokenizer.
  text: str
  # The model's own, before filters (`sampling.py`).
  log_probability: float
  # None, or why this token is the last: 'length', 'stop_token' or
  # 'stop_string'.
  reason: str | None
  # By dimension the token-level head's probability for the text up to and with
  # this token. A stop token, which shows nothing, has the scores of the token
  # before it, None if there is none. None without a head.
  scores: tuple[float, ...] | None = None
  # Characters of the text so far that can be shown only later.
  held: int = 0
  # The likeliest tokens in its place, as many as requested, and their
  # log-probabilities, the likeliest first.
  alternatives: Alternatives = ()


class Result(NamedTuple):
  """A sequence's continuation so far, behind `Request.drawn`."""

  # int32, the drawn ones, including the one that stopped it.
  tokens: np.ndarray
  # The drawn tokens' text, up to the stop.
  text: str
  # float32, one per drawn token.
  log_probabilities: np.ndarray
  # float32, one per token of the prompt, or of a turn's part of it, but the
  # first; fewer if it was cut off; None unless requested.
  prompt_log_probabilities: np.ndarray | None
  # See `Event`; 'cancelled' if the stream was closed or not read in time,
  # 'drained' if the engine stopped, 'error' if `error` says why.
  reason: str | None
  # A `BadLogits`, a `Late`, or None; of a search also a `search.Vetoed`, a
  # `slots.Exhausted` or a `pages.Full`.
  error: Exception | None
  # Tokens of the prompt that were in the cache and did not run.
  reused: int = 0
  # The highest probability of each of the head's dimensions over the prompt's
  # tokens, run or resumed; None without a head, or before any ran.
  prompt_scores: tuple[float, ...] | None = None
  # The likeliest tokens in the places that `prompt_log_probabilities` scores,
  # at least as many as requested; None unless requested.
  prompt_alternatives: alternatives_lib.Alternatives | None = None


def check(
  request: Request,
  vocab_size: int,
  length: int,
  name: str = 'request',
  alternatives: int = 0,
) -> np.ndarray:
  """Returns the prompt as int32 [L], if the request is valid.

  `length` is the room of its row, prompt and continuation; `name` stands for
  the request in messages; `alternatives` are the most that the engine gives.
  Raises TypeError, ValueError: names the field, its
  value and what is right.
  """
  if not isinstance(request, Request):
    raise TypeError(f'{name}={request!r}: must be a Request.')
  tokens_L = check_tokens(request.tokens, vocab_size, f'{name}.tokens')
  count = request.max_tokens
  check_integer(f'{name}.max_tokens', count)
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
  biased = [token for token, _ in request.sampling.logit_bias]
  check_tokens([0, *biased], vocab_size, f'{name}.sampling.logit_bias')
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
  for field, least in (('shared', 0), ('begun', 0), ('priority', None)):
    value = getattr(request, field)
    check_integer(f'{name}.{field}', value)
    if least is not None and not least <= value <= len(tokens_L):
      raise ValueError(
        f'{name}.{field}={value}: must be {least}…{len(tokens_L)}, tokens of'
        ' the prompt.'
      )
  if not isinstance(request.scores_prompt, bool):
    raise TypeError(
      f'{name}.scores_prompt={request.scores_prompt!r}: must be True or False.'
    )
  if (deadline := request.deadline) is not None:
    sampling_lib.check_type(
      f'{name}.deadline', deadline, numbers.Real, 'seconds, or None'
    )
    if not deadline > 0:
      raise ValueError(
        f'{name}.deadline={deadline!r}: must be seconds above 0, or None.'
      )
  if not isinstance(request.guided, Guide | None):
    raise TypeError(f'{name}.guided={request.guided!r}: must be a Guide.')
  _check_alternatives(request, alternatives, name)
  if len(request.drawn):
    _check_drawn(request, vocab_size, name)
  return tokens_L


def _check_alternatives(request: Request, most: int, name: str) -> None:
  count = request.alternatives
  check_integer(f'{name}.alternatives', count)
  if count and request.guided:
    raise ValueError(
      f'{name}.alternatives={count}: must be 0 with guided, which draws none.'
    )
  if not 0 <= count <= most:
    raise ValueError(
      f'{name}.alternatives={count}: must be 0…{most}, what the engine was made'
      ' for.'
    )


def _check_drawn(request: Request, vocab_size: int, name: str) -> None:
  if request.guided is not None:
    raise ValueError(
      f'{name}.drawn has {len(request.drawn)} tokens: it must be empty with'
      ' guided, whose result comes at once.'
    )
  drawn_L = check_tokens(request.drawn, vocab_size, f'{name}.drawn')
  if len(drawn_L) >= request.max_tokens:
    raise ValueError(
      f'{name}.drawn has {len(drawn_L)} tokens: it must have fewer than'
      f' max_tokens={request.max_tokens}, or nothing is left to draw.'
    )
  ends = [x for x in drawn_L.tolist() if x in request.stop_tokens]
  if ends:
    raise ValueError(
      f'{name}.drawn holds {ends[0]}: it must hold no stop token, behind which'
      ' nothing is drawn.'
    )


def check_integer(name: str, value: Any) -> None:
  """Raises TypeError if a value is no integer."""
  sampling_lib.check_type(name, value, numbers.Integral, 'an integer')


def check_tokens(tokens: Any, vocab_size: int, name: str) -> np.ndarray:
  """Returns tokens as int32 [L], if all are in the vocabulary.

  Raises TypeError, ValueError: names the argument, its value and what is right.
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
