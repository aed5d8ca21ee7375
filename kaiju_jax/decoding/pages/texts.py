"""Data kept with a text's tokens: scores, and the last lookup."""

from typing import Any
from typing import NamedTuple

import numpy as np


class Scores(NamedTuple):
  """A token-level head's scores of a text's tokens.

  Attributes:
    version: the head's digest.
    score_LC: float32, for at least all tokens; NaN where not read back yet.
  """

  version: bytes
  score_LC: np.ndarray


class Memo:
  """A memo of a growing text, which is looked up in each round.

  Attributes:
    pages: tokens and salt of each full page, from the beginning.
    found: the last lookup's (tree, its changes, text's length), and match.
  """

  def __init__(self):
    self.pages: list[tuple[bytes, bytes]] = []
    self.found: tuple[Any, Any] | None = None
