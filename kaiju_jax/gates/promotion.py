"""Promotes a model: runs the gates of a policy, and binds their decisions.

A policy is a JSON file, by which an operator says what a model must pass:

    {"format": "kaiju_jax policy 1", "days": 31, "gates": {
      "persona": ["persona", "--model={candidate}", "--judge=rules",
                  "--generated=200", "--out={out}"]}}

Each gate is a command that ends in a decision (`reporting/decision.py`), with
its flags; `{candidate}` stands for the model, `{out}` for the folder of the
decision. A model is promoted if all gates pass. The promotion is a decision,
too. It holds digests of the policy and of the model's weights, and the day, so
that a server can refuse any other (`check`).
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import datetime
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any
from typing import NamedTuple

from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.reporting import report
from kaiju_jax.storage import files

NAME, FORMAT = 'promotion', 'kaiju_jax policy 1'
# The commands that end in a decision.
_COMMANDS = 'persona', 'judge', 'gate', 'refusal'

Call = Callable[[Sequence[str]], int]


class Policy(NamedTuple):
  """What a model must pass."""

  days: int  # For how many days a promotion holds.
  gates: Mapping[str, Sequence[str]]  # By name, a command and its flags.
  digest: str  # SHA-256 of the policy's file.


def load_policy(path: str | os.PathLike[str]) -> Policy:
  """Reads a policy.

  Raises:
    OSError: the file is missing or cannot be read.
    ValueError: names the field, its value and what would be right.
  """
  path = pathlib.Path(path)
  data = files.read_json(path)
  if not isinstance(data, dict) or data.get('format') != FORMAT:
    found = data.get('format') if isinstance(data, dict) else data
    raise ValueError(f'{path}: format={found!r}: must be {FORMAT!r}.')
  if wrong := sorted(data.keys() ^ {'format', 'days', 'gates'}):
    raise ValueError(f'{path}: {wrong[0]}: must be format, days, gates.')
  days, gates = data['days'], data['gates']
  if type(days) is not int or days < 1:
    raise ValueError(f'{path}: days={days!r}: must be an integer from 1 on.')
  if not isinstance(gates, dict) or not gates:
    raise ValueError(f'{path}: gates={gates!r}: must name one gate or more.')
  for name, words in gates.items():
    _check_gate(f'{path}: gates.{name}', words)
  if not any('{candidate}' in word for one in gates.values() for word in one):
    raise ValueError(f'{path}: gates: one must read {{candidate}}.')
  return Policy(days, gates, decision_lib.digest(path))


def _check_gate(name: str, words: Any) -> None:
  is_list = isinstance(words, list) and words
  if not is_list or not all(isinstance(word, str) for word in words):
    raise ValueError(f'{name}={words!r}: must be a command and its flags.')
  if words[0] not in _COMMANDS:
    raise ValueError(
      f'{name}: {words[0]!r}: must be one of {", ".join(_COMMANDS)}.'
    )
  if not any('{out}' in word for word in words):
    raise ValueError(f'{name}: must write its decision: --out={{out}}.')


def call_command(words: Sequence[str]) -> int:
  """Runs one of our commands in a process, and returns its exit status."""
  command = [sys.executable, '-m', 'kaiju_jax.experiments', *words]
  return subprocess.run(command, check=False).returncode


def find_day() -> datetime.date:
  """Returns today in UTC."""
  return datetime.datetime.now(datetime.UTC).date()


def run(
  candidate: str,
  policy: Policy,
  weights: str,
  today: datetime.date,
  call: Call = call_command,
) -> decision_lib.Decision:
  """Runs a policy's gates on a model, and decides on its promotion.

  Args:
    candidate: the model: a workdir, an export or a Hugging Face folder.
    policy: what it must pass.
    weights: its digest as a server loads it (`load.digest`).
    today: the day of the promotion.
    call: runs a command.

  Raises:
    OSError: the model's files cannot be read.
  """
  before = decision_lib.digest(pathlib.Path(candidate))
  checks, found = [], {}
  with tempfile.TemporaryDirectory() as folder:
    for number, (name, words) in enumerate(policy.gates.items()):
      out = os.path.join(folder, f'{number}')
      filled = [
        word.replace('{candidate}', candidate).replace('{out}', out)
        for word in words
      ]
      check, decision = _run_gate(name, filled, pathlib.Path(out), call)
      checks.append(check)
      found[name] = {
        'command': filled,
        'status': check.status,
        'decision': decision,
      }
  if decision_lib.digest(pathlib.Path(candidate)) != before:
    reason = f'{candidate} has changed while its gates ran.'
    checks.append(decision_lib.abstain(reason))
  return decision_lib.decide(
    NAME,
    checks,
    {'date': today.isoformat(), 'candidate': candidate, 'gates': found},
    {'policy': policy.digest, 'candidate': before, 'weights': weights},
  )


def _run_gate(
  name: str, words: Sequence[str], out: pathlib.Path, call: Call
) -> tuple[decision_lib.Check, dict[str, Any] | None]:
  """Returns a gate's check and decision; without one it is not evaluated."""
  status = call(words)
  try:
    found = decision_lib.load(out / decision_lib.FILE)
  except (OSError, ValueError):
    reason = f'{name}: ended with status {status}, and has no decision.'
    return decision_lib.abstain(reason), None
  if found.exit_status != status:
    reason = f'{name}: ended with status {status}, and says {found.status}.'
    return decision_lib.abstain(reason), None
  reason = '' if found.status == decision_lib.PASSED else f'{name}: {found}'
  plain = {
    field: getattr(found, field) for field in ('figures', 'inputs', 'reasons')
  }
  return decision_lib.Check(found.status, reason), plain


def page(decision: decision_lib.Decision) -> report.Report:
  """Returns the page of a promotion."""
  figures = decision.figures
  return (
    report.Report(f'Promotion of {figures["candidate"]}')
    .say(f'{figures["date"]}: {decision.status}.')
    .table(
      [
        (name, one['status'], f'`{" ".join(one["command"])}`')
        for name, one in figures['gates'].items()
      ],
      ('gate', 'decision', 'command'),
    )
    .table(sorted(decision.inputs.items()), ('input', 'hash'))
    .decide(decision)
  )


def check(
  policy: str | os.PathLike[str],
  promotion: str | os.PathLike[str],
  weights: str,
  today: datetime.date | None = None,
) -> None:
  """Refuses a model without a valid promotion under a policy.

  Args:
    policy: the policy's file.
    promotion: the folder of the promotion, or its decision.json; '' for none.
    weights: digest of the loaded model (`load.digest`).
    today: None for today in UTC.

  Raises:
    OSError: a file is missing or cannot be read.
    ValueError: there is no promotion, it did not pass, is stale, or is of
      another policy or of other weights.
  """
  wanted, today = load_policy(policy), today or find_day()
  if not promotion:
    raise ValueError(
      f'policy={policy}: demands a promotion, and none is given'
      ' (--promotion; experiments.promote makes it).'
    )
  file = pathlib.Path(promotion)
  file = file / decision_lib.FILE if file.is_dir() else file
  found, name = decision_lib.load(file), f'promotion={promotion}'
  if (found.name, found.status) != (NAME, decision_lib.PASSED):
    raise ValueError(
      f'{name}: {found.name}: {found.status}: must be a promotion that passed.'
    )
  gates = found.figures.get('gates', {})
  passed = {
    gate for gate, one in gates.items() if one['status'] == decision_lib.PASSED
  }
  if found.inputs.get('policy') != wanted.digest or passed != {*wanted.gates}:
    raise ValueError(f'{name}: is of another policy than {policy}.')
  if found.inputs.get('weights') != weights:
    raise ValueError(f'{name}: is of other weights than those that are loaded.')
  age = (today - datetime.date.fromisoformat(found.figures['date'])).days
  if not 0 <= age <= wanted.days:
    raise ValueError(
      f'{name}: is {age} days old: must be 0…{wanted.days}; promote it again.'
    )
