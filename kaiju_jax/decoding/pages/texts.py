"""Data kept with a text's tokens: scores, and the last lookup."""

from typing import Any
from typing import NamedTuple

import numpy as np


class Scores(NamedTuple):
  """A token-level head's scores, by the head's digest `version`.

  `score_LC` is float32, for at least all of a text's tokens; NaN where not read
  back yet.
  """

  version: bytes
  score_LC: np.ndarray


class Memo:
  """A memo for repeated lookups of a growing text.

  It keeps its full pages, as tokens and salt, and the last lookup with its
  match.
  """

  def __init__(self):
    self.pages: list[tuple[bytes, bytes]] = []
    self.found: tuple[Any, Any] | None = None
