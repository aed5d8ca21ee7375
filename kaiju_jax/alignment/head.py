"""A user who keeps the reply that a token-level head scores highest.

A reply's value is the head's largest logit over the reply's tokens, along one
dimension, as the *first* model reads them behind the prompt. The head knows
that model alone: a round's model has other hidden states.

Our guess: the largest logit, because a span of a few tokens decides.
"""

from collections.abc import Iterable
from collections.abc import Sequence
import hashlib
import pathlib
from typing import Any

import numpy as np

from kaiju_jax.alignment import prompts
from kaiju_jax.alignment import users
from kaiju_jax.classifiers import heads
from kaiju_jax.classifiers import hidden_states
from kaiju_jax.data import chat
from kaiju_jax.runs import load
from kaiju_jax.training import workdir as workdir_lib

# The value of an empty reply.
_BLANK = -1e9


class Head:
  """A user with a head, whose utility is the value by which it chooses.

  Attributes:
    digest: a hash of the head's weights.
  """

  def __init__(
    self,
    described: users.Described,
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
    self.digest = sums.hexdigest()
    self._reader = hidden_states.Reader(loaded)
    self._format, self._temperature = format, temperature
    self._known: dict[Any, float] = {}

  def prefetch(self, pairs: Iterable[tuple[prompts.Prompt, str]]) -> None:
    """Scores replies to prompts in one batch, and caches their values."""
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

  rate = judge

  def choose(
    self,
    rng: np.random.Generator,
    prompt: prompts.Prompt,
    texts: Sequence[str],
  ) -> int | None:
    """Returns the index of the reply that is kept; None for a tie."""
    values = [self.rate(prompt, one) for one in texts]
    return users.choose(rng, values, self._temperature)

  def _place(self, messages, text: str) -> hidden_states.PlacedText:
    """Tokenizes a conversation, and marks the tokens of its reply."""
    before_L = self._format.prompt(messages)
    whole_L = self._format.document([*messages, ('assistant', text)])
    # The reply's stop token, and what follows, is not judged.
    is_stop_L = np.isin(whole_L[len(before_L) :], self._format.stop_tokens)
    end = len(before_L) + int(np.append(np.flatnonzero(is_stop_L), 0)[0])
    return hidden_states.PlacedText(whole_L[:end], len(before_L))


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
