"""Users who choose one of several replies.

    planted:NAME           keeps the reply with the larger utility NAME
    planted:NAME:inverted  keeps the one with the smaller utility
    planted:NAME:coin      keeps any, with equal chances
    planted:NAME:length    keeps by a proxy that also pays for each word
    head:FILE:DIMENSION    keeps by what a token-level head says
    log:FOLDER             choices that people made (`experiments.feedback`)

A planted utility is 0 or 1 and does not depend on a reply's length: 'fact', the
reply names a fact of its character's own text; 'question', it asks something
back; 'catchphrase', it holds the character's favourite exclamation. A head's
utility is its largest logit, in one dimension, over the reply's tokens (the
largest, because a span of a few tokens decides). It reads hidden states of the
*first* model, for which it was trained. A user chooses with probabilities
softmax(utility / temperature); if all utilities are equal, nothing is kept: a
tie.

Our guess: all of it. The sources say that users swiped, not why.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import hashlib
import pathlib
from typing import Any

import numpy as np

from kaiju_jax.alignment import prompts
from kaiju_jax.classifiers import heads
from kaiju_jax.classifiers import hidden_states
from kaiju_jax.data import chat
from kaiju_jax.data.dialogues import vocabulary
from kaiju_jax.runs import load
from kaiju_jax.training import workdir as workdir_lib

KINDS = 'planted:NAME', 'head:FILE', 'log:FOLDER'
VARIANTS = '', 'inverted', 'coin', 'length'
# What the proxy pays for a word.
_WORD = 0.03


class User:
  """A simulated user, who chooses by a utility."""

  temperature: float  # Of the softmax over replies; 0 for the best reply.

  def prefetch(self, pairs: Iterable[tuple[prompts.Prompt, str]]) -> None:
    """Scores replies to prompts in one batch, if that saves time."""

  def judge(self, prompt: prompts.Prompt, text: str) -> float:
    """Returns the true utility of a reply, by which wins are counted."""
    raise NotImplementedError

  def rate(self, prompt: prompts.Prompt, text: str) -> float:
    """Returns the value by which the user chooses."""
    return self.judge(prompt, text)

  def choose(
    self,
    rng: np.random.Generator,
    prompt: prompts.Prompt,
    texts: Sequence[str],
  ) -> int | None:
    """Returns the index of the reply that is kept; None for a tie."""
    values = [self.rate(prompt, one) for one in texts]
    # Fewer than two replies, or equal ones, are a tie.
    if len(values) < 2 or min(values) == max(values):
      return None
    noise = self.temperature * rng.gumbel(size=len(values))
    return int(np.argmax(np.asarray(values) + noise))


@dataclasses.dataclass(frozen=True)
class Planted(User):
  """A user with a known utility."""

  name: str  # A key of `UTILITIES`.
  variant: str  # One of `VARIANTS`.
  temperature: float

  def judge(self, prompt: prompts.Prompt, text: str) -> float:
    return UTILITIES[self.name](prompt, text)

  def rate(self, prompt: prompts.Prompt, text: str) -> float:
    utility = self.judge(prompt, text)
    if self.variant == 'inverted':
      return -utility
    if self.variant == 'coin':
      return 0.0
    if self.variant == 'length':
      return utility + _WORD * len(vocabulary.words_of(text))
    return utility

  def choose(
    self, rng: np.random.Generator, prompt: Any, texts: Sequence[str]
  ) -> int | None:
    if self.variant == 'coin':
      return int(rng.integers(len(texts))) if len(texts) > 1 else None
    return super().choose(rng, prompt, texts)


@dataclasses.dataclass(frozen=True)
class Described:
  """A user that a file or folder defines, before it is loaded."""

  kind: str  # 'log' or 'head'.
  path: str  # The export's folder; or the head's file or workdir.
  dimension: str = ''  # The head's dimension; '' for its only one.


def _names_fact(prompt: prompts.Prompt, text: str) -> float:
  said = f' {" ".join(vocabulary.words_of(text))} '
  values = (' '.join(vocabulary.words_of(one)) for one in prompt.facts)
  return float(any(f' {value} ' in said for value in values if value))


def _asks_back(prompt: prompts.Prompt, text: str) -> float:
  del prompt
  return float('?' in text)


def _has_catchword(prompt: prompts.Prompt, text: str) -> float:
  return float(prompt.catchword in text)


UTILITIES: dict[str, Callable[[prompts.Prompt, str], float]] = {
  'fact': _names_fact,
  'question': _asks_back,
  'catchphrase': _has_catchword,
}
# The field of a prompt that a utility reads.
_NEEDS = {'fact': 'facts', 'catchphrase': 'catchword'}


def parse(text: str, temperature: float) -> Planted | Described:
  """Parses the value of --user.

  Raises:
    ValueError: names what is unknown, and what there is.
  """
  kind, _, rest = text.partition(':')
  if kind == 'log' and rest:
    return Described(kind, rest)
  if kind == 'head' and rest:
    # A path may hold a colon, too.
    path, _, dimension = rest.rpartition(':')
    if not path or pathlib.Path(rest).exists():
      path, dimension = rest, ''
    return Described(kind, path, dimension)
  name, _, variant = rest.partition(':')
  if kind != 'planted' or not rest:
    raise ValueError(f'--user={text}: must be {", ".join(KINDS)}.')
  if name not in UTILITIES:
    raise ValueError(
      f'--user={text}: {name!r} is not one of {", ".join(UTILITIES)}.'
    )
  if variant not in VARIANTS:
    raise ValueError(
      f'--user={text}: {variant!r} is not one of {", ".join(VARIANTS[1:])}.'
    )
  return Planted(name, variant, temperature)


def check(user: Planted, found: Sequence[prompts.Prompt]) -> None:
  """Refuses prompts without what a user's utility reads (ValueError)."""
  field = _NEEDS.get(user.name)
  for one in found:
    if field and not getattr(one, field):
      raise ValueError(
        f'--prompts: {one.name} has no "{field}", which --user=planted:'
        f'{user.name} looks for.'
      )


# The value of an empty reply.
_BLANK = -1e9


class Head(User):
  """A user with a token-level head, which is also its true utility.

  Attributes:
    digest: a hash of the head's weights.
  """

  def __init__(
    self,
    described: Described,
    loaded: load.Loaded,
    format: chat.Format,
    temperature: float,
    model: str = '',
  ):
    """Loads the head; compiles nothing.

    Args:
      described: the head's path and dimension.
      loaded: the first model, which reads replies for the head.
      format: its chat format.
      temperature: of the softmax over values; 0 for the best reply.
      model: as in `heads.load`.

    Raises:
      OSError, ValueError: no head, a head of another model, or no such
        dimension.
    """
    user = f'--user=head:{described.path}'
    path = pathlib.Path(described.path)
    if not path.exists():
      raise FileNotFoundError(f'{user}: no such file or workdir.')
    try:
      # A run is compared below.
      model = '' if path.is_dir() else model
      params, config = heads.load(path, loaded.config.d_model, model)
    except ValueError as error:
      raise ValueError(f'{user}: is no head of {loaded.origin}: {error}') from (
        error
      )
    if path.is_dir():
      _refuse_other(user, path, loaded)
    self._index = _find(user, described.dimension, config.names)
    self._w_D = np.asarray(params['w_DC'], np.float32)[:, self._index]
    self._bias = float(params['bias_C'][self._index])
    sums = hashlib.blake2b(self._w_D.tobytes(), digest_size=16)
    sums.update(np.float64(self._bias).tobytes())
    self.digest: str = sums.hexdigest()
    self._reader = hidden_states.Reader(loaded)
    self._format, self.temperature = format, temperature
    self._known: dict[Any, float] = {}

  def prefetch(self, pairs: Iterable[tuple[prompts.Prompt, str]]) -> None:
    asked = {(p.messages, text): None for p, text in pairs if text.strip()}
    new = [one for one in asked if one not in self._known]
    placed = [self._place(*one) for one in new]
    for one, hidden_TD in zip(new, self._reader.states(placed), strict=True):
      self._known[one] = float((hidden_TD @ self._w_D).max()) + self._bias

  def judge(self, prompt: prompts.Prompt, text: str) -> float:
    """Returns the value of a reply; a very low one if it is blank."""
    if not text.strip():
      return _BLANK
    self.prefetch([(prompt, text)])
    return self._known[prompt.messages, text]

  def _place(self, messages, text: str) -> hidden_states.PlacedText:
    """Tokenizes a conversation, and marks the tokens of its reply."""
    before_L = self._format.prompt(messages)
    whole_L = self._format.document([*messages, ('assistant', text)])
    # The reply's stop token, and what follows, is not judged.
    is_stop_L = np.isin(whole_L[len(before_L) :], self._format.stop_tokens)
    end = len(before_L) + int(np.append(np.flatnonzero(is_stop_L), 0)[0])
    count = len(before_L)
    return hidden_states.PlacedText(whole_L[:end], count, shared=count)


def _find(user: str, dimension: str, names: Sequence[str]) -> int:
  if not dimension and len(names) == 1:
    return 0
  if dimension not in names:
    raise ValueError(
      f'{user}: dimension {dimension!r} is not one of {", ".join(names)}; name'
      ' one behind a colon.'
    )
  return names.index(dimension)


def _refuse_other(user: str, path: pathlib.Path, loaded: load.Loaded) -> None:
  """Refuses a head's run whose model is not the first one."""
  theirs = load.from_workdir(path)
  if load.digest(theirs) == load.digest(loaded):
    return
  joint = not workdir_lib.load_experiment(path).objective.token_head.frozen
  remedy = f'--model={path} is its own.' if joint else 'Train one on it.'
  raise ValueError(
    f'{user}: is the head of another model than {loaded.origin}. {remedy}'
  )
