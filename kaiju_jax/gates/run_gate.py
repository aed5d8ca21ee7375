"""Runs the quantization gate: opens both models, examines, and decides."""

import datetime
import pathlib

from kaiju_jax.gates import calibration_diff
from kaiju_jax.gates import persona_judge
from kaiju_jax.gates import quantization_gate as gate
from kaiju_jax.gates import settings as settings_lib
from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.reporting import report
from kaiju_jax.runs import play
from kaiju_jax.storage import folders


def run(settings: settings_lib.Gate) -> report.Report:
  """Examines both models, and returns the report with its decision.

  Raises:
    ImportError, OSError, RuntimeError, ValueError: something cannot be read, or
      is refused.
  """
  if settings.out:
    folders.refuse_existing(settings.out)
  conversations, source = settings.conversations.read()
  diff = (
    calibration_diff.measure(*settings.calibration_diff)
    if settings.calibration_diff
    else None
  )
  prose = pathlib.Path(settings.text).read_text() if settings.text else ''
  calibration = settings_lib.load_decision(settings.judge.calibration)
  played = settings.player
  pair = gate.Pair(
    baseline=persona_judge.open_model(
      settings.baseline,
      settings.rows,
      play.Player(
        **vars(settings.arm), cache=played.cache, length=played.length
      ),
    ),
    candidate=persona_judge.open_model(
      settings.candidate, settings.rows, played
    ),
  )
  judge, needle, checks, name = None, None, [], ''
  if settings.persona:
    judge = settings.judge.read(played)
    name = judge.identity
    checks += persona_judge.calibration_checks(
      name, calibration, datetime.date.today()
    )
    if settings.needle:
      needle = settings.needle, settings.needles, settings.needle_length
  found = gate.examine(pair, conversations, prose, judge, needle)
  figures = {
    **found.figures,
    'calibration_diff': diff.figures if diff else None,
  }
  decision = decision_lib.decide(
    gate.NAME,
    [*found.checks, *checks],
    figures,
    {
      'golden': source,
      'baseline': pair.baseline.digest,
      'candidate': pair.candidate.digest,
      'judge': name,
    },
  )
  title = f'{pair.candidate.origin} against {pair.baseline.origin}'
  page = gate.page(title, figures, name, found.needle)
  page.add(*(diff.parts if diff else ()))
  return page.decide(decision)
