# Images of the package, its commands and its server, one for each accelerator:
#
#     docker build --target=cuda --tag=REGISTRY/kaiju_jax:cuda .
#     docker run --network=host --volume=$PWD/runs:/runs \
#       REGISTRY/kaiju_jax:cpu serve --model=runs/chat
#
# The launchers of Google Kubernetes Engine (tpu_gpu_configs/launch) name them.
# CUDA's libraries come with jax, its driver with the node. Commands run as user
# 1000, who must own the folder that is mounted as /runs. With --publish in place
# of --network=host the server needs --host, and so tokens and a gate.
FROM python:3.11-slim AS source
RUN useradd --uid=1000 --create-home kaiju
WORKDIR /kaiju_jax
COPY setup.cfg pyproject.toml constraints.txt README.md LICENSE ./
COPY kernels kernels
COPY experiments experiments
COPY tpu_gpu_configs tpu_gpu_configs
COPY kaiju_jax kaiju_jax
# What commands name runs/… is in the volume.
RUN ln -s /runs runs && mkdir /runs && chown 1000 /runs
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_CONSTRAINT=constraints.txt
EXPOSE 8000
ENTRYPOINT ["kaiju"]

FROM source AS cuda
RUN pip install --editable '.[serve,cuda,triton,k8s]'
USER 1000

FROM source AS tpu
RUN pip install --editable '.[serve,tpu]'
USER 1000

# Where no target is named.
FROM source AS cpu
RUN pip install --editable '.[serve,cpu]'
USER 1000
