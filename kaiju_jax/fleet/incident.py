"""Prices source 003's three incidents by the minutes until they are noticed.

    affinity      the router's table is lost, caches are cold
    classifier    a tenth of harmless messages are refused
    calibration   one shard's int8 scales drift

By the source's book a cost grows from the ledger's entry as the source says it
does. By another book the users who are there are counted:

    users(t) = sessions now + messages/s · 60 t / messages of a session
    $(t)     = users affected · share that leaves · $ of a user

with sessions now = messages/s · seconds between a session's messages (Little).
All its $ are an upper bound, because every user who leaves counts as one who
pays. A fixed fleet burns nothing extra: it queues.
"""

import re

from kaiju_jax.fleet import book as book_lib
from kaiju_jax.fleet import economics

NAMES = 'affinity', 'classifier', 'calibration'
MINUTES = 5, 10, 15, 30, 60, 120
_REFUSED = '003, ledger row 2: 500 of 3.6 M refused'
_DRIFTED = '003, ledger: 200 of 2 M users / 100 shards'
_UNITS = {'s': 1 / 60, 'm': 1.0, 'h': 60.0}
# Users, as all books take them.
USERS: book_lib.Book = {
  name: book_lib.Cell(*cell)
  for name, cell in {
    'between': (55.0, 's', 'guess', "between a session's messages"),
    'turns': (8.0, '', 'quoted', '003, persona: 8 turns'),
    'grace': (5.0, 'min', 'quoted', '003, ledger row 1'),
    'leaves': (0.001, '', 'quoted', '003, ledger row 1'),
    'leaves_refused': (500 / 3.6e6, '', 'recomputed', _REFUSED),
    'leaves_drifted': (0.01, '', 'recomputed', _DRIFTED),
    'refused': (0.1, '', 'quoted', '003, ledger row 2'),
    'worth': (120.0, '$', 'quoted', '003, ledger row 2: $10 × 12 months'),
    'shards': (100.0, '', 'quoted', '003, ledger row 3'),
    'recovery': (30.0, 'min', 'quoted', '003, ledger row 3: drain and warm-up'),
  }.items()
}


def minutes(text: str) -> float:
  """Returns the minutes of a duration such as '15m', '900s' or '1h'.

  Raises:
    ValueError: it is no positive duration.
  """
  match = re.fullmatch(r'(\d+(?:\.\d+)?)([smh])', text)
  if not match or not float(match[1]):
    raise ValueError(f'detect={text!r}: must be a duration, such as 15m or 1h.')
  return float(match[1]) * _UNITS[match[2]]


def source_cost(book: book_lib.Book, detection: float) -> dict[str, float]:
  """Returns {incident: $} as source 003 has them grow.

  Args:
    book: the source's book.
    detection: minutes until the incident is noticed.

  Raises:
    ValueError: a negative time.
  """
  _check(detection)
  b = book_lib.values(book)
  burn = b.row1_gross * detection / b.row1_minutes
  # The source gives two points: 1 at 15 minutes, 1.5 at 30.
  churn = b.row1_churn * (0.5 + 0.5 * detection / b.row1_minutes)
  drained = b.row3_gpu * (detection + USERS['recovery'].value) / 60
  return {
    'affinity': burn + churn,
    'classifier': b.row2_total * detection / b.row2_minutes,
    'calibration': drained + b.row3_churn * detection / 30,
  }


def cost(book: book_lib.Book, detection: float) -> dict[str, float]:
  """Returns {incident: $} of a fleet whose size is fixed.

  Args:
    book: any book.
    detection: minutes until the incident is noticed.

  Raises:
    ValueError: a negative time, or impossible inputs.
  """
  _check(detection)
  given = book_lib.inputs(book)
  users = book_lib.values(USERS)
  rate = given.message_rate * given.peak_to_mean

  def present(time: float) -> float:
    return rate * (users.between + 60 * time / users.turns)

  late = max(detection - users.grace, 0.0)
  overload = 1 - 1 / max(lost_load(given), 1.0)
  affinity = present(late) * overload * users.leaves if late else 0.0
  refused = rate * users.refused * 60 * detection * users.leaves_refused
  drifted = present(detection) / users.shards * users.leaves_drifted
  return {
    'affinity': affinity * users.worth,
    'classifier': refused * users.worth,
    'calibration': drifted * users.worth
    + given.gpu_price * (detection + users.recovery) / 60 * given.pooled,
  }


def lost_load(given: economics.Inputs) -> float:
  """Returns the peak's load on the same fleet when nothing is cached."""
  return economics.cost(given).load * economics.work_ratio(given, 0.0)


def _check(detection: float) -> None:
  if not detection >= 0:
    raise ValueError(f'detection={detection:g}: must be at least 0 minutes.')
