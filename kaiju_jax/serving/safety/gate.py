"""The gate: a linear classifier that reads a user's text before the model does.

Source 003 says: a fast classifier on a CPU, in less than 10 ms, keeps plainly
violating texts from the model. scikit-learn trains ours (`classifiers/`), and
numpy runs it:

    P(dimension) = max_segments σ(bias + Σ_views Σ_features value · weight)

A view is a HashingVectorizer over one reading of a segment (`reading.py`); its
features are runs of characters or words (`hashed.py`). The result equals that
of scikit-learn's HashingVectorizers and LogisticRegression for the segment, to
rounding.

Our guess: the views; that a feature counts once, so that repeating a word has
no effect; and the segments. Without segments, ordinary text around a violation
would dilute it, and a long ordinary text would sum up to a violation.

The gate reads all of a text, in parts of about `window` characters, each of
which takes about a millisecond. A server accepts at most `MOST` characters.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import hashlib
import json
import os

import numpy as np

from kaiju_jax.serving.safety import hashed
from kaiju_jax.serving.safety import reading
from kaiju_jax.storage import strict
from kaiju_jax.storage import strict_json
from kaiju_jax.storage import tensor_file

# The longest text, in characters, that a server lets the gate read: our guess;
# it takes some 0.2 s.
MOST = 2**18
_FORMAT = 'kaiju_jax gate 1'
_NORMS = 'none', 'l2'


@dataclasses.dataclass(frozen=True)
class View:
  """One HashingVectorizer, with the names of its arguments."""

  # The reading of the text that it sees, one of `reading.READINGS`.
  reading: str
  analyzer: str  # 'char' or 'word'.
  low: int  # The length of the shortest runs, in characters or words.
  high: int  # The length of the longest runs, up to 8.
  # Whether a feature counts once however often it occurs; then its value has no
  # sign.
  binary: bool = True
  # 'l2' divides a text's values by their Euclidean norm; 'none' does not.
  norm: str = 'none'


@dataclasses.dataclass(frozen=True)
class Settings:
  """The settings that decide how a gate turns text into features."""

  names: tuple[str, ...] = ()  # The C dimensions that it scores.

  views: tuple[View, ...] = (
    View('skeleton', 'char', 3, 6),
    View('plain', 'word', 1, 2),
  )
  features: int = 2**18  # Hashed features per view.
  window: int = 2000  # How many characters it reads at once, in one part.
  # The length in letters of the overlapping segments of a text. The segment
  # with the highest score counts.
  segment: int = 200


@dataclasses.dataclass(frozen=True)
class TrainingRecord:
  """A record of a gate's training."""

  rows: int  # The number of texts, not counting copies.
  # How many of these violate each dimension, in the gate's order.
  violations: tuple[int, ...]
  data: str  # SHA-256 of the texts and labels.
  date: str  # The day, as 2026-11-22.
  library: str  # The library that trained it, with its version.


class Gate:
  """A classifier that gives a text a probability per dimension."""

  def __init__(
    self,
    settings: Settings,
    weight_VC: np.ndarray,
    bias_C: np.ndarray,
    trained: TrainingRecord,
    described: Mapping[str, str] | None = None,
  ):
    """Holds a classifier's weights.

    Args:
      settings: how texts become features.
      weight_VC: float [views · features, C], the weights of all views'
        features, one view after another.
      bias_C: float [C], the biases.
      trained: the record of its training.
      described: `settings` and `trained` as JSON, by name, in the words of the
        file that holds the gate. Its version covers them, so that a field that
        is added later changes no version.

    Raises:
      ValueError: names the field, its value and what would be right.
    """
    check(settings)
    shape = len(settings.views) * settings.features, len(settings.names)
    for name, x, wanted in (
      ('weight_VC', weight_VC, shape),
      ('bias_C', bias_C, shape[1:]),
    ):
      if x.shape != wanted or x.dtype not in (np.float32, np.float64):
        raise ValueError(
          f'{name} is {x.dtype}{list(x.shape)}; {len(settings.views)} views of'
          f' {settings.features} features and {shape[1]} dimensions need'
          f' floats {list(wanted)}.'
        )
      if not np.isfinite(x).all():
        raise ValueError(f'{name}: holds values that are not finite.')
    if len(trained.violations) != shape[1]:
      raise ValueError(
        f'trained.violations={trained.violations}: must be one number for each'
        f' of {list(settings.names)}.'
      )
    self.settings = settings  # Its `Settings`.
    self.names: tuple[str, ...] = settings.names  # The C dimensions.
    self.trained = trained  # The record of its training.
    self._weight_VC = np.ascontiguousarray(weight_VC)
    self._bias_C = bias_C.astype(np.float64)
    self._described = described or {
      'settings': json.dumps(strict.dump(settings), sort_keys=True),
      'trained': json.dumps(strict.dump(trained), sort_keys=True),
    }
    # SHA-256 of everything that decides its scores, and of `trained`.
    self.version: str = _version(self._tensors(), self._described)

  def score(self, text: str) -> np.ndarray:
    """Returns float64 [C], the probability that each dimension is violated.

    Any string is valid: surrogates, control characters, the empty string.
    """
    return probability(self.logits(text))

  def logits(self, text: str) -> np.ndarray:
    """Returns float64 [C], the logits of `score`."""
    return np.max([self._logits(part) for part in self.parts(text)], axis=0)

  def parts(self, text: str) -> Iterator[str]:
    """Yields the parts of a text; its scores are the highest of its parts'."""
    settings = self.settings
    return reading.parts(text, settings.window, settings.segment)

  def _logits(self, part: str) -> np.ndarray:
    plain = reading.segments(part, self.settings.segment)
    readings = {'plain': plain, 'skeleton': list(map(reading.skeleton, plain))}
    logit_SC = np.tile(self._bias_C, (len(plain), 1))
    for number, view in enumerate(self.settings.views):
      texts = readings[view.reading]
      hash_G, text_G = hashed.runs(texts, view.analyzer, view.low, view.high)
      if len(hash_G):
        logit_SC += self._view(number, view, hash_G, text_G, len(plain))
    return logit_SC.max(axis=0)

  def save(self, path: str | os.PathLike[str]) -> None:
    """Writes the gate as a safetensors file, completely or not at all.

    Raises:
      OSError: the file cannot be written.
    """
    metadata = {'format': _FORMAT, 'version': self.version}
    tensor_file.write(path, self._tensors(), {**metadata, **self._described})

  def _view(
    self,
    number: int,
    view: View,
    hash_G: np.ndarray,
    text_G: np.ndarray,
    count: int,
  ) -> np.ndarray:
    """Returns float64 [S, C], a view's share of the logits of S segments."""
    size = self.settings.features
    feature_G, value_G = hashed.features(hash_G, size)
    key_G = text_G * size + feature_G
    # Merges the G features into U ≤ G that are unique per segment, sorted by
    # segment.
    if view.binary:
      # Faster than np.unique, which finds duplicates with a hash table.
      key_G.sort()
      key_U = key_G[np.append(True, key_G[1:] != key_G[:-1])]
      value_U = np.ones(len(key_U))
    else:
      key_U, place_G = np.unique(key_G, return_inverse=True)
      value_U = np.bincount(place_G, value_G, len(key_U))
    text_U = key_U // size
    if view.norm == 'l2':
      norm_S = np.sqrt(np.bincount(text_U, value_U**2, count))
      # The norm is 0 where the signs of all features cancel.
      value_U = value_U / np.where(norm_S == 0, 1, norm_S)[text_U]
    weight_UC = self._weight_VC[number * size + key_U % size]
    logit_SC = np.zeros((count, len(self.names)))
    first = np.flatnonzero(np.append(True, text_U[1:] != text_U[:-1]))
    present = text_U[first]
    logit_SC[present] = np.add.reduceat(weight_UC * value_U[:, None], first)
    return logit_SC

  def _tensors(self) -> dict[str, np.ndarray]:
    return {'weight_VC': self._weight_VC, 'bias_C': self._bias_C}


def probability(logit: np.ndarray) -> np.ndarray:
  """Returns 1 / (1 + exp(-logit)) for any finite logits."""
  # The exponent is never positive, so that it cannot overflow.
  small = np.exp(-np.abs(logit))
  return np.where(logit < 0, small, 1) / (1 + small)


def load(path: str | os.PathLike[str]) -> Gate:
  """Returns the gate in a file that `Gate.save` wrote.

  Raises:
    OSError: the file is missing or cannot be read.
    ValueError: the file is not a gate, is damaged, or holds invalid values.
  """
  tensors, metadata = tensor_file.read(path, _FORMAT)
  try:
    found, wanted = sorted(tensors), ['bias_C', 'weight_VC']
    if found != wanted:
      raise ValueError(f'holds the tensors {found}, expected {wanted}.')
    gate = Gate(
      strict.parse(Settings, _json(metadata, 'settings'), 'settings'),
      tensors['weight_VC'],
      tensors['bias_C'],
      strict.parse(TrainingRecord, _json(metadata, 'trained'), 'trained'),
      {name: metadata[name] for name in ('settings', 'trained')},
    )
    if metadata.get('version') != gate.version:
      raise ValueError(
        f'version={metadata.get("version")!r}, and its content is'
        f' {gate.version!r}: the file was changed or damaged.'
      )
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error
  return gate


def check(settings: Settings) -> None:
  """Raises ValueError if settings are invalid: names the field and value."""
  check_names('names', settings.names)
  if not settings.views:
    raise ValueError('views: there must be at least one.')
  for field, low, high in (
    ('features', 2, 2**24),
    ('window', 1, 100_000),
    ('segment', 2, 100_000),
  ):
    value = getattr(settings, field)
    if not low <= value <= high:
      raise ValueError(f'{field}={value}: must be {low}…{high}.')
  if settings.segment % 2:
    raise ValueError(f'segment={settings.segment}: must be even.')
  for number, view in enumerate(settings.views):
    for field, choices in (
      ('reading', reading.READINGS),
      ('analyzer', hashed.ANALYZERS),
      ('norm', _NORMS),
    ):
      value = getattr(view, field)
      if value not in choices:
        raise ValueError(
          f'views[{number}].{field}={value!r}: must be one of'
          f' {", ".join(choices)}.'
        )
    if not 1 <= view.low <= view.high <= 8:
      raise ValueError(
        f'views[{number}]: low={view.low}, high={view.high}: must be 1 ≤ low ≤'
        ' high ≤ 8.'
      )


def check_names(field: str, names: tuple[str, ...]) -> None:
  """Raises ValueError if names are missing, padded with space, or repeated."""
  if not names:
    raise ValueError(f'{field}: there must be at least one.')
  for name in names:
    if not name or name != name.strip() or names.count(name) > 1:
      raise ValueError(
        f'{field} holds {name!r}: names must differ, with no space around them.'
      )


def content(tensors: Mapping[str, np.ndarray], text: str) -> str:
  """Returns the SHA-256, in hex, of named tensors and a text about them.

  It depends neither on the tensors' order nor on the machine's byte order.
  """
  digest = hashlib.sha256(text.encode())
  for name in sorted(tensors):
    x = np.asarray(tensors[name])
    x = np.ascontiguousarray(x, x.dtype.newbyteorder('<'))
    digest.update(f'\n{name} {x.dtype.str} {x.shape}\n'.encode())
    digest.update(x.data)
  return digest.hexdigest()


def _version(tensors, metadata: dict[str, str]) -> str:
  return content(tensors, json.dumps([_FORMAT, metadata], sort_keys=True))


def _json(metadata: Mapping[str, str], field: str):
  try:
    return strict_json.parse(metadata.get(field, ''))
  except ValueError as error:
    raise ValueError(f'{field}: not valid JSON ({error}).') from error
