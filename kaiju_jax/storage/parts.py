"""The table of parts of one's own, which a config file or a package brings.

    OBJECTIVES    objective.name      experiment → `objectives.Objective`
    TASKS         data.task           a `tasks.registry.Task`
    ACTIVATIONS   model.feedforward   f in f(x·W_in)·W_out
    GATES         model.feedforward   f in (f(x·W_gate) · (x·W_in))·W_out

`runs/own_parts.py` fills it, in commands that train or are given a config file.
Where a name is looked up, ours come first; a part of the same name is refused.
"""

from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

# {kind of part: the field of the experiment that names one}.
FIELDS = {
  'OBJECTIVES': 'objective.name',
  'TASKS': 'data.task',
  'ACTIVATIONS': 'model.feedforward',
  'GATES': 'model.feedforward',
}
_HELD: dict[str, dict[str, Any]] = {kind: {} for kind in FIELDS}


def hold(kind: str, brought: Mapping[str, Any]) -> None:
  """Puts parts into the table, in place of earlier ones of their names."""
  _HELD[kind].update(brought)


def find(kind: str, name: str) -> Any:
  """Returns a part, None for none of that name."""
  return _HELD[kind].get(name)


def check(field: str, name: str, ours: Collection[str]) -> None:
  """Refuses a name that is neither ours nor in the table.

  Args:
    field: one of `FIELDS`' values, which holds the name.
    name: the name.
    ours: the names of our own parts.

  Raises:
    ValueError: lists those there are.
  """
  kinds = [kind for kind, named in FIELDS.items() if named == field]
  known = *ours, *(one for kind in kinds for one in _HELD[kind])
  if name not in known:
    raise ValueError(
      f'{field}={name!r}: must be one of {", ".join(map(repr, known))}, or come'
      ' from a config file or a package (parts.source) in a command that'
      ' trains.'
    )
