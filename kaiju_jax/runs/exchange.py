"""Exports runs to Hugging Face's format, and imports models from it."""

from collections.abc import Collection
import os
import pathlib

import numpy as np

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.costs import footprint
from kaiju_jax.evaluation import kl_divergence
from kaiju_jax.interchange import coded
from kaiju_jax.interchange import generation
from kaiju_jax.interchange import hugging_face
from kaiju_jax.interchange import losses as losses_lib
from kaiju_jax.interchange import own
from kaiju_jax.interchange import stream
from kaiju_jax.interchange import tokens
from kaiju_jax.interchange.families import registry
from kaiju_jax.interchange.gguf import folder as gguf_folder
from kaiju_jax.model import deployed
from kaiju_jax.model import lora
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import load
from kaiju_jax.storage import files
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.training import workdir as workdir_lib

FORMATS = ('auto', 'arcee', 'kaiju')


def export(
  workdir: str | os.PathLike[str],
  out: str | os.PathLike[str],
  format: str = 'auto',
  accepted: Collection[str] = (),
  like: str | os.PathLike[str] = '',
) -> str:
  """Writes a run's latest checkpoint as a new folder.

  Adapters are merged into their base's codes, and the message says at what
  divergence.

  Args:
    workdir: folder of the run.
    out: the new folder.
    format: one of `FORMATS`: 'arcee' for Hugging Face's Arcee model, 'kaiju'
      for our own; 'auto' for 'arcee' if it loses nothing or `accepted` names a
      loss, and 'kaiju' otherwise.
    accepted: names of `lost.NAMES`, which the folder may lose.
    like: a Hugging Face folder or GGUF file of the run's family and shapes: the
      new one is of that family instead; '' for `format`.

  Returns:
    A message for the user that names the output and the losses.

  Raises:
    ValueError, OSError: see `hugging_face.write`, `own.write` and
      `load.from_workdir`.
  """
  config = workdir_lib.load_experiment(workdir).model
  names = losses_lib.ROUNDED if like else losses_lib.REFUSED + losses_lib.NAMES
  lost = losses_lib.list_losses(config, names)
  is_theirs = bool(like) or format == 'arcee'
  if is_theirs or (format == 'auto' and (accepted or not lost)):
    is_theirs = True
    losses_lib.refuse(lost, accepted)
  found = load.from_workdir(workdir)
  merged = ''
  beside = generation.copy(pathlib.Path(found.chats)) if found.chats else {}
  if found.experiment.lora.rank:
    merged = f'{describe_merged(found)}\n'
    found = merge_adapters(found)
  if is_theirs:
    hugging_face.write(
      out,
      found.params,
      config,
      found.tokenizer,
      accepted,
      found.replica,
      beside,
      like,
    )
  else:
    own.write(
      out,
      found.params,
      config,
      found.tokenizer,
      found.replica,
      beside=beside,
    )
  named = f'transformers has no counterpart of\n{losses_lib.lines(lost)}\n'
  how = f'as {like or "an Arcee folder"}, with the same logits'
  if not is_theirs:
    how = 'in our own format, which loses nothing'
  elif lost:
    how = f'as {like or "an Arcee folder"}, without these: other logits'
  where = f'step {found.step:,} of {workdir} → {out}, {how}.'
  return f'{merged}{named}{where}' if lost else f'{merged}{where}'


def merge_adapters(found: load.Loaded) -> load.Loaded:
  """Returns a model whose adapters are added to its weights."""
  return found._replace(params=lora.merge(found.params, found.config))


def describe_merged(found: load.Loaded) -> str:
  """Returns the divergence that merging a run's adapters costs, in words.

  It is measured on as many texts of the run as its batch has rows, held out if
  it has such; no text counts twice, and no token of padding.

  Args:
    found: a run with adapters.
  """
  merged = merge_adapters(found)
  texts_BL = np.unique(
    tasks.texts(found.experiment, found.experiment.data.batch), axis=0
  )
  compute = kl_divergence.compare(
    *((one.config, load.variables(one)) for one in (found, merged))
  )
  causal = visibility_lib.causal(texts_BL.shape[1])
  # A row at a time, because two models' logits of a row are large enough.
  nats = np.concatenate(
    [
      compute(row_L[None], causal)[0][: len(np.trim_zeros(row_L, 'b'))]
      for row_L in texts_BL  # Rows are padded with 0.
    ]
  )
  form = 'codes' if deployed.is_deployed(merged.params) else 'float32 weights'
  return (
    f'Merged into {form}: KL(beside ‖ merged) {nats.mean():.2e} nats a token'
    f' (largest {nats.max():.2e}) over {nats.size:,} tokens.'
  )


def read(
  folder: str | os.PathLike[str],
  out: str | os.PathLike[str],
  with_tokenizer: bool = True,
  accepted: Collection[str] = (),
  codes: bool = False,
) -> str:
  """Writes a Hugging Face folder's model as a new folder in our own format.

  Args:
    folder: the Hugging Face folder.
    out: the new folder.
    with_tokenizer: whether to copy its tokenizer, if it has one; not every
      tokenizer can open a document (`data/tokenizer.py`).
    accepted: unknown fields of its config.json that may pass.
    codes: whether to keep the int8 codes that a server uses (`coded.py`)
      instead of float32 weights.

  Returns:
    A message for the user that describes the model.

  Raises:
    ValueError, OSError: see `hugging_face.read` and `own.write`.
  """
  form, quantization, source = stream.MASTERS, None, ''
  if codes:
    form, quantization = stream.DEPLOYED, quantization_config.for_serving()
  params, config = hugging_face.read(
    folder, accepted, form, quantization, rotated=codes
  )
  if codes:
    source = coded.hash_source(pathlib.Path(folder))
  held = gguf_folder.small_files(folder)
  file = held / tokens.FILE
  tokenizer = str(file) if with_tokenizer and file.exists() else None
  fields = files.read_json(held / generation.CONFIG)
  is_ours = registry.read(fields, accepted).is_ours
  beside = {}
  if tokenizer and not is_ours:
    beside = generation.copy(pathlib.Path(folder))
  own.write(out, params, config, tokenizer, beside=beside, source=source)
  count = footprint.count(footprint.parameters(config))
  made_of = f' int8 codes, made of sha256 {source};' if source else ''
  return (
    f'{folder} → {out}:{made_of} {config.num_layers} layers of width'
    f' {config.d_model}, {count:,} parameters,'
    f' {"a" if tokenizer else "no"} tokenizer.'
  )


def list_digests(
  path: str | os.PathLike[str], loaded: load.Loaded
) -> list[str]:
  """Returns the digests of the forms of a model: as loaded, and as its codes.

  An export of a workdir has one of them, if the same device made its codes.

  Args:
    path: where the model was loaded from; of a run with adapters, the base's
      codes are meant.
    loaded: the result of `load.from_anywhere`.

  Raises:
    FileNotFoundError, ValueError, OSError: as `load.base`.
  """
  coded = load.base(workdir_lib.find_base(str(path)), loaded.config.dtype)
  # An export has the config of its run, ternary updates included.
  forms = loaded, coded, coded._replace(config=loaded.config)
  return list(dict.fromkeys(map(load.digest, forms)))
