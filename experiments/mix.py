"""Weigh whole sources so that their mix is most similar to a target.

    python -m experiments.mix --target=exam.jsonl \\
        --sources=prose=texts/prose,code=texts/code --out=runs/mixes/exam

Embeds the documents of the target and of each source, and finds the shares of
the tokens whose mean is nearest to the target's. It writes a new folder with

    mix.json    the sources and their weights; training reads it by
                --config.data.mix=runs/mixes/exam/mix.json
    report.md   weights with 95 % intervals, distances, two figures

Embedders are

    ngrams, lsa     hashed words and pairs, or their 64 strongest directions
    npy:FILE        rows of a .npy, the target's first, then each source's
    model:WORKDIR   the mean hidden state of a run's model; t5:FOLDER a T5's
"""

from collections.abc import Sequence
import dataclasses

from kaiju_jax.data.curation import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(settings_lib.MixSettings):
  # NAME=PATH of each source.
  sources: tuple[str, ...]
  # NAME=PATH of texts whose held-out loss training only reports.
  measured: tuple[str, ...] = ()
  # Seed of the resamples.
  seed: flags.NonNegative = 0
  # A new folder.
  out: str


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.data.curation import mixes
  from kaiju_jax.runs import embedders
  from kaiju_jax.storage import folders
  from kaiju_jax.training import progress

  asked = dataclasses.replace(
    settings,
    sources=[mixes.parse_source('sources', x) for x in settings.sources],
    measured=[mixes.parse_source('measured', x) for x in settings.measured],
  )
  folders.refuse_existing(settings.out)
  mixes.check(asked)
  embedder = embedders.parse(asked.embedder)
  result = mixes.find(asked, embedder, progress.track)
  mixes.write(asked, result, settings.out)
  written = f'{settings.out}/mix.json', f'{settings.out}/report.md'
  mixes.tabulate(result).show(written)


if __name__ == '__main__':
  command.run(main)
