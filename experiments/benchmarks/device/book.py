"""A slice's file: its device, its cases and what came of each.

    {"slice": …, "device": {…}, "running": null, "trial": null,
     "problem": null, "names": [NAME, …], "ended": {TRIAL: {NAME: PROBLEM}},
     "cases": {NAME: {"status": "done", "seconds": …, "estimate": …,
                      "record": {…}, "versions": {…}}}}

The status of a case is `done`, `failed` (with "problem") or `skipped` (with
"why"). A case that stands under "running" while no run is under way was cut
off, and runs again. Under "trial" stands which of the running case's
contenders is being tried; one that ended its process or lost the device stands
under "ended". Every change replaces the whole file in one step.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import math
import pathlib
from typing import Any

from kaiju_jax.storage import files

DONE, FAILED, SKIPPED = 'done', 'failed', 'skipped'
# A contender that ended processes of so many cases is left out of the others.
_ENDS = 2


class Book:
  """The file of one slice; one process writes it at a time."""

  def __init__(self, folder: str | pathlib.Path, name: str):
    """Reads the file, if there is one.

    A file that is not such JSON costs its slice alone: it is renamed, and
    "problem" says so.
    """
    self.path: pathlib.Path = pathlib.Path(folder) / f'{name}.json'
    self.data: dict[str, Any] = {
      'slice': name,
      'device': None,
      'running': None,
      'trial': None,
      'problem': None,
      'names': None,
      'ended': {},
      'cases': {},
    }
    if not self.path.exists():
      return
    try:
      self.data |= _read(self.path)
    except ValueError as error:
      aside = self.path.with_suffix('.unreadable')
      self.path.replace(aside)
      self.note_problem(f'its file was not readable ({error}); now {aside}')

  @property
  def cases(self) -> dict[str, dict[str, Any]]:
    return self.data['cases']

  def bind(self, device: Mapping[str, Any]) -> None:
    """Notes the device; refuses a file whose figures are another's.

    Raises:
      ValueError: names both.
    """
    before = self.data['device']
    if before is not None and before != dict(device):
      raise ValueError(
        f'{self.path} holds figures of {_tell(before)}; this is'
        f' {_tell(device)}. Name another --out.'
      )
    self.data['device'] = dict(device)

  def has(self, case: str) -> bool:
    """Returns whether a case is finished: done or failed."""
    return self.cases.get(case, {}).get('status') in (DONE, FAILED)

  def begin(self, case: str) -> None:
    """Notes that a case runs."""
    self.data |= {'running': case, 'trial': None, 'problem': None}
    self._write()

  def note_trial(self, trial: str | None) -> None:
    """Notes which contender of the running case is being tried."""
    self.data['trial'] = trial
    self._write()

  def refusals(self, case: str) -> dict[str, str]:
    """Returns {trial: why} of those that a case shall not begin."""
    return {
      trial: '; '.join(f'at {name}, {why}' for name, why in ends.items())
      for trial, ends in self.data['ended'].items()
      if case in ends or len(ends) >= _ENDS
    }

  def forget_failures(self) -> None:
    """Lets what failed run again, every contender too."""
    done = {n: x for n, x in self.cases.items() if x['status'] != FAILED}
    self.data |= {'cases': done, 'ended': {}, 'problem': None}
    self._write()

  def end(self, case: str, status: str, **fields: Any) -> None:
    """Notes what came of a case."""
    self.cases[case] = _plain({'status': status, **fields})
    self.data |= {'running': None, 'trial': None}
    self._write()

  def fail_running(self, problem: str) -> str | None:
    """Marks the running trial or case as failed; returns the case's name.

    Where a trial ran, the case is not finished: it runs again without that
    contender. Returns None where no case ran.
    """
    case, trial = self.data['running'], self.data['trial']
    if case is not None and trial is not None:
      self.data['ended'].setdefault(trial, {})[case] = problem
      self.data |= {'running': None, 'trial': None}
      self._write()
    elif case is not None:
      self.end(case, FAILED, problem=problem)
    return case

  def note_cases(self, names: Sequence[str]) -> None:
    """Notes the cases that there are."""
    self.data |= {'names': list(names), 'problem': None}
    self._write()

  def records(self) -> dict[str, dict[str, Any]]:
    """Returns the records of the cases that are done, in the cases' order."""
    # A file holds its cases by the alphabet.
    order = dict.fromkeys([*(self.data['names'] or ()), *self.cases])
    return {
      name: self.cases[name]['record']
      for name in order
      if self.cases.get(name, {}).get('status') == DONE
    }

  def count_left(self) -> int | None:
    """Returns how many cases are not finished; None before any was listed."""
    if self.data['names'] is None:
      return None
    return sum(not self.has(name) for name in self.data['names'])

  def note_problem(self, problem: str) -> None:
    """Notes why a slice has no cases."""
    self.data['problem'] = problem
    self._write()

  def pace(self) -> float:
    """Returns how many times their estimates the finished cases took."""
    pairs = [
      (each['seconds'], each['estimate'])
      for each in self.cases.values()
      if each['status'] == DONE and each.get('estimate')
    ]
    if not pairs:
      return 1.0
    taken, guessed = map(sum, zip(*pairs))
    return taken / guessed

  def _write(self) -> None:
    files.write_json(self.path, self.data)


def _read(path: pathlib.Path) -> dict[str, Any]:
  data = files.read_json(path)
  if not isinstance(data, dict) or not isinstance(data.get('cases'), dict):
    raise ValueError(f'{path}: has no "cases".')
  return data


def _tell(device: Mapping[str, Any]) -> str:
  dry = ', a rehearsal' * bool(device.get('dry'))
  plays = f' playing a {device["plays"]}' if device.get('plays') else ''
  return f'{device.get("device")}{plays}{dry}'


def _plain(value: Any) -> Any:
  """Returns a value that JSON holds; NaN and infinities become their names."""
  if isinstance(value, Mapping):
    return {str(name): _plain(each) for name, each in value.items()}
  if isinstance(value, tuple) and hasattr(value, '_asdict'):
    return _plain(value._asdict())
  if isinstance(value, list | tuple):
    return [_plain(each) for each in value]
  if isinstance(value, float) and not math.isfinite(value):
    return str(value)
  return value
