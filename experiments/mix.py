"""Weighs whole sources so that their mix is most similar to a target.

    python -m experiments.mix --target=exam.jsonl \\
        --sources=prose=texts/prose,code=texts/code --out=runs/mixes/exam

reads the target and each source (a file, folder or glob of text), embeds every
document (--embedder), and finds the shares of the tokens whose mean is nearest
to the target's (`data/curation/mixing.py` has the two objectives). It writes a
new folder with

    mix.json    the sources and their weights; training reads it by
                --config.data.mix=runs/mixes/exam/mix.json
    report.md   weights with 95 % intervals, distances, two figures

No source is read more than --epochs times in a run of --tokens tokens. The
embedders are

    ngrams          hashed words and pairs of words; needs no model
    lsa             their 64 strongest directions
    npy:FILE        rows of a .npy, the target's first, then each source's
    model:WORKDIR   the mean hidden state of a run's model
    t5:FOLDER       the mean output of a T5 encoder; needs the extra t5
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.reporting import report
from kaiju_jax.runs import command

_TARGET = flags.DEFINE_string(
  'target', None, 'File, folder or glob of text that the mix should resemble.'
)
_SOURCES = flags.DEFINE_list('sources', None, 'NAME=PATH of each source.')
_MEASURED = flags.DEFINE_list(
  'measured',
  [],
  'NAME=PATH of texts that training does not read and whose held-out loss it'
  ' reports, such as the target: sources of weight 0.',
)
_ANNEAL = flags.DEFINE_string(
  'anneal',
  '',
  'mix.json over the same sources, whose weights hold in the annealing stage'
  " (data.anneal_at) near a run's end; '' for none.",
)
_OUT = flags.DEFINE_string('out', None, 'A new folder.')
_EMBEDDER = flags.DEFINE_string(
  'embedder',
  'ngrams',
  'What texts are compared by: ngrams, lsa, npy:FILE, model:WORKDIR or'
  ' t5:FOLDER.',
)
_METHOD = flags.DEFINE_string(
  'method',
  '',
  'em, least_squares, or proportional for all text as it is; by default em for'
  ' ngrams, and least_squares for other embedders.',
)
_TOKENIZER = flags.DEFINE_string(
  'tokenizer', '', 'tokenizer.json that tokens are counted with; or bytes.'
)
_TOKENS = flags.DEFINE_integer(
  'tokens', 0, 'Tokens of the run; 0 for not known, which bounds no weight.'
)
_EPOCHS = flags.DEFINE_float(
  'epochs', 4.0, 'How often a source may be read, at most.'
)
_RESAMPLES = flags.DEFINE_integer(
  'resamples', 200, 'Resamples of the documents for the intervals.'
)
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of the resamples.', lower_bound=0)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _TARGET, _SOURCES, _OUT)
  from kaiju_jax.data.curation import mixes
  from kaiju_jax.runs import embedders
  from kaiju_jax.storage import folders
  from kaiju_jax.training import progress

  settings = mixes.MixSettings(
    target=_TARGET.value,
    sources=[_source('sources', text) for text in _SOURCES.value],
    measured=[_source('measured', text) for text in _MEASURED.value],
    embedder=_EMBEDDER.value,
    method=_METHOD.value,
    tokenizer=_TOKENIZER.value,
    tokens=_TOKENS.value,
    epochs=_EPOCHS.value,
    resamples=_RESAMPLES.value,
    seed=_SEED.value,
    anneal=_ANNEAL.value,
  )
  folders.refuse_existing(_OUT.value)
  mixes.check(settings)
  embedder = embedders.parse(settings.embedder)
  result = mixes.find(settings, embedder, progress.track)
  mixes.write(settings, result, _OUT.value)
  _show(result)


def _source(flag: str, text: str) -> tuple[str, str]:
  name, equals, path = text.partition('=')
  if not equals or not name or not path:
    raise ValueError(f'--{flag}: {text!r} is not NAME=PATH.')
  return name, path


def _show(result) -> None:
  mix = result.mix
  rows = [
    (
      name,
      f'{mix.weights[row]:.3f}',
      f'{mix.low[row]:.3f} … {mix.high[row]:.3f}',
      f'{result.sizes[row]:,}',
      f'{mix.distances[row]:.4f}',
    )
    for row, name in enumerate(result.names)
  ]
  rows.append(('the mix', 1, '', '', f'{mix.distance:.4f}'))
  rows.append(('all text as it is', '', '', '', f'{mix.pooled:.4f}'))
  columns = 'source', 'weight', '95 % interval', 'tokens', 'distance'
  written = f'{_OUT.value}/mix.json', f'{_OUT.value}/report.md'
  report.Report().table(rows, columns).show(written)


if __name__ == '__main__':
  command.run(main)
