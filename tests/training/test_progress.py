"""A line that stays on a terminal, plain lines elsewhere."""

import io

import rich.console

from kaiju_jax.training import progress as progress_lib


def _run(terminal):
  file = io.StringIO()
  console = rich.console.Console(
    file=file, force_terminal=terminal, width=100, color_system=None
  )
  with progress_lib.Progress(200, console) as progress:
    progress.say('going on from [step] 10')
    progress.update(11, 2.5, None, None)
    progress.update(12, 2.25, 45_120.0, 3671.0)
    progress.end('stopped')
  return file.getvalue()


def test_plain_lines_where_there_is_no_terminal():
  assert _run(terminal=False).splitlines() == [
    'going on from [step] 10',
    'step 11/200  loss 2.5000',
    'step 12/200  loss 2.2500  45.1k tokens/s  1:01:11 left',
    'stopped',
  ]


def test_a_line_that_stays_on_a_terminal():
  text = _run(terminal=True)
  assert 'going on from [step] 10' in text
  last = text[text.rindex('12/200') :]
  for part in ('loss 2.2500', '45.1k tokens/s', '1:01:11 left'):
    assert part in last
  assert text.index('stopped') > text.rindex('12/200')
  assert text.rindex('\x1b[?25h') > text.rindex('\x1b[?25l'), 'cursor hidden'
