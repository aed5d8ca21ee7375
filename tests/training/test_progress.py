"""A line that stays on a terminal, plain lines elsewhere."""

import io

import rich.console

from kaiju_jax.training import progress as progress_lib


def _run(terminal):
  file = io.StringIO()
  console = rich.console.Console(
    file=file, force_terminal=terminal, width=100, color_system=None
  )
  with progress_lib.Progress('step', 200, console, every=0) as progress:
    progress.say('going on from [step] 10')
    progress.begin(10, 'compiling')
    progress.update(11, 'loss 2.5000', '')
    progress.update(12, 'loss 2.2500', '45.1k tokens/s', left=3671.0)
    progress.end('stopped')
  return file.getvalue()


def test_plain_lines_where_there_is_no_terminal():
  assert _run(terminal=False).splitlines() == [
    'going on from [step] 10',
    'step 10/200  compiling',
    'step 11/200  loss 2.5000',
    'step 12/200  loss 2.2500  45.1k tokens/s  1:01:11 left',
    'stopped',
  ]


def test_a_line_that_stays_on_a_terminal():
  text = _run(terminal=True)
  assert 'going on from [step] 10' in text
  assert text.index('compiling') < text.index('12/200')
  last = text[text.rindex('12/200') :]
  for part in ('loss 2.2500', '45.1k tokens/s', '1:01:11 left'):
    assert part in last
  assert text.index('stopped') > text.rindex('12/200')
  assert text.rindex('\x1b[?25h') > text.rindex('\x1b[?25l'), 'cursor hidden'


def test_in_a_log_lines_are_few_and_the_last_one_is_there(monkeypatch):
  now = iter((100.0, 110.0, 119.0, 121.0, 130.0))
  monkeypatch.setattr(progress_lib.time, 'monotonic', lambda: next(now))
  file = io.StringIO()
  console = rich.console.Console(file=file, width=100)
  with progress_lib.Progress('passages', console=console) as progress:
    for done in (10, 20, 29, 31, 50):
      progress.update(done, total=50)
  assert file.getvalue().splitlines() == [
    'passages 10/50',
    'passages 31/50  0:00:19 left',
    'passages 50/50  0:00:00 left',
  ]


def test_what_is_tracked_passes_unchanged():
  assert list(progress_lib.track(range(3), 'documents')) == [0, 1, 2]


def test_quantities_are_short():
  found = [progress_lib.short(x) for x in (950, 45_120, 3.2e6, 1.2e9)]
  assert found == ['950', '45.1k', '3.2M', '1.2G']
