"""Convert a run to a Hugging Face folder, or such a folder to our own format.

    python -m experiments.convert --model=runs/tiny --out=exports/tiny
    python -m experiments.convert --model=exports/tiny --out=imports/a
    python -m experiments.convert --check=FOLDER [--text=FILE] [--tokens=20480]

A run's workdir is written for `transformers`' ArceeForCausalLM, the class with
the nearest mathematics; with --like=FOLDER as a folder of the model's own
family. What that cannot say (`kaiju_jax/interchange/losses.py`) is an error,
unless --accept names all that is lost, as lost.json then does; but without
--like, --format=auto writes our own format. Adapters are merged into their
base; the KL divergence of that is printed. A Hugging Face folder of a family in
docs/hugging_face.md is read into our own format; any other is refused.

--check compares logits with transformers', and a text's int8 forms with floats.
"""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Annotated
from typing import Literal

from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  # The workdir of a run, or a Hugging Face folder.
  model: str | None = None
  # A new folder.
  out: str | None = None
  # Format of an exported run.
  format: Literal['auto', 'arcee', 'kaiju'] = 'auto'
  # What a folder of transformers may lose.
  accept: tuple[str, ...] = ()
  # A Hugging Face folder, or GGUF file, of an exported run's family and shapes.
  like: str = ''
  # Take a Hugging Face folder's tokenizer.json along, if it has one.
  tokenizer: bool = True
  # Keep a Hugging Face folder's int8 codes, as they are served, not floats.
  codes: bool = False
  # A Hugging Face folder to compare, instead.
  check: str = ''
  # With --check: file of the text; Python's documentation by default.
  text: str = ''
  # With --check: most tokens of the text.
  tokens: Annotated[int, flags.Bounds(2)] = 2048


_OF_A_RUN, _OF_A_FOLDER = ('format', 'accept', 'like'), ('tokenizer', 'codes')
FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  if not settings.check:
    flags.need(model=settings.model, out=settings.out)
  FLAGS.refuse_beside('check', 'model', 'out', *_OF_A_RUN, *_OF_A_FOLDER)
  from kaiju_jax.experiments.studies import check_folder  # Imports jax.
  from kaiju_jax.runs import exchange
  from kaiju_jax.runs import load

  if settings.check:
    text = pathlib.Path(settings.text).read_text() if settings.text else None
    print(check_folder.check(settings.check, text, settings.tokens))
  elif load.is_hugging_face(settings.model):
    FLAGS.refuse_beside('model', *_OF_A_RUN)
    out, kept = settings.out, settings.tokenizer
    print(exchange.read(settings.model, out, kept, codes=settings.codes))
  else:
    FLAGS.refuse_beside('model', *_OF_A_FOLDER)
    FLAGS.refuse_beside('like', 'format')
    how = settings.format, settings.accept, settings.like
    print(exchange.export(settings.model, settings.out, *how))


if __name__ == '__main__':
  command.run(main)
