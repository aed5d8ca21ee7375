"""Complete runs: folder → model, config → run, and grids of runs.

A library: it raises and returns, and commands print. The main entries are

    train       trains an experiment in a workdir, or resumes it there
    grid        trains arms × seeds, what is missing of them
    load        loads the model of a workdir or of an export
    exchange    writes a run in Hugging Face's format or in our own
    embedders   turns texts into vectors
"""
