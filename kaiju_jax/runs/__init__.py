"""Complete runs: training, loading, exporting, generating and serving.

Scripts and users of the installed package call these modules, among them:

    train       trains an experiment in a workdir, or resumes it there
    load        loads the model of a workdir or of an export
    exchange    writes a run in Hugging Face's format or in our own
    complete    continues texts with a model
    serve       serves a model to chat clients
    ablation/   trains arms × seeds and writes their report
    embedders   turns texts into vectors
    corpora/    mixes, selects and cleans text before training
    safety/     trains a gate and a token-level head from labelled texts

Only the commands of `experiments/` import these; `command` and `devices` define
flags when they are imported:

    command     flags, quiet libraries, Ctrl-C, the compilation cache
    devices     the flags of a run's hardware
    talk        generation at a terminal
"""
