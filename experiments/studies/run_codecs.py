"""Measures codecs on the gradients of a run that it trains."""

import dataclasses
import pathlib

from kaiju_jax.experiments.studies import codecs
from kaiju_jax.experiments.studies import gradients
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.runs import train
from kaiju_jax.storage import files
from kaiju_jax.wire import codecs as wire_codecs


def run(settings: settings_lib.Codecs) -> None:
  """Trains, captures, and prints and writes what the codecs do.

  Raises:
    OSError, ValueError: something cannot be read or written, or is wrong.
  """
  experiment = settings.config
  experiment.seed = settings.seed
  train.check(experiment)
  figures.require_figures()

  bits = {codec.name: codec.bits for codec in wire_codecs.CODECS}
  captured = codecs.capture(
    experiment, settings.steps, settings.workers, settings.dtype
  )
  found, curves = codecs.measure(
    gradients.join(captured, settings.across), settings.seed
  )
  written = pathlib.Path(settings.json), pathlib.Path(settings.figure)
  for path in written:
    path.parent.mkdir(parents=True, exist_ok=True)
  setting = {
    'config': dataclasses.asdict(experiment),
    'steps': settings.steps,
    'workers': settings.workers,
    'gradient_dtype': settings.dtype,
    'across': settings.across,
  }
  qualities = {
    name: {'bits': bits[name], 'quality': kinds}
    for name, kinds in found.items()
  }
  files.write_json(
    written[0], report.plain({'setting': setting, 'codecs': qualities})
  )
  of = f'{settings.workers} workers after {settings.steps} steps'
  figures.save(
    codecs.draw(
      curves, f'Gradients of {of}: what arrives (y) of what was sent (x)'
    ),
    written[1],
  )
  table = codecs.qualities(
    f'Codecs on the gradients of {settings.workers} workers, step'
    f' {settings.steps}',
    {name: kinds['all'] for name, kinds in found.items()},
    bits,
  )
  report.Report().add(table).show(written)
