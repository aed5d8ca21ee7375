"""What those that wait would need now, and which others they should wait for.

Looked up in each round anew, because points come and go. A sequence follows
another whose prompt runs, or is to run before its own, where that will record
at least a page more of its text than there is yet: so what several prompts
begin with is prefilled once, though they came at the same moment.
"""

from collections.abc import Mapping
from collections.abc import Sequence

from kaiju_jax.decoding import prefix_tree
from kaiju_jax.decoding import recording
from kaiju_jax.decoding import rows as rows_lib
from kaiju_jax.decoding import schedule
from kaiju_jax.decoding import sequence as sequence_lib


def looked_up(
  waiting: Sequence[schedule.Waiting],
  sequences: Mapping[int, sequence_lib.Sequence],
  running: Mapping[int, sequence_lib.Sequence],
  account: rows_lib.Rows,
  reuses: bool,
) -> list[schedule.Waiting]:
  """Returns `waiting` with what each needs, has left and follows.

  Args:
    waiting: in the order in which they should join.
    sequences: these and others that wait, by number.
    running: those that have rows, by number.
    account: of the rows and points.
    reuses: whether texts are recorded and resumed.
  """
  found = []
  # What will be recorded, by number: texts, and the lengths of their points.
  soon: dict[int, tuple[prefix_tree.Text, Sequence[int]]] = {
    number: (one.text(), one.points.stops)
    for number, one in running.items()
    if reuses and not one.is_drawing
  }
  for one in waiting:
    sequence, follows = sequences[one.number], ()
    text = sequence.resumable() if reuses else None
    needs, resumed = account.needs(sequence.room, text)
    if text is not None:
      least = resumed + account.page
      follows = [
        number
        for number, (other, stops) in soon.items()
        if recording.soon(other, stops, text, least) >= least
      ]
      whole = sequence.text()
      stops = recording.stops(resumed, sequence.prompt, whole.shared)
      soon[one.number] = whole, stops
    left = sequence.length - resumed
    found.append(one._replace(needs=needs, left=left, follows=follows))
  return found
