# Three images from one file:
#   docker build --target core .   everything but an engine: scheduler, topics, feeds (and workers with --engine sim)
#   docker build --target cpu .    with vLLM on the CPU and the small model
#   docker build --target gpu .    with vLLM on a GPU; the host needs the NVIDIA container toolkit

ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS base
RUN groupadd --gid 10001 tapewire \
    && useradd --uid 10001 --gid tapewire --create-home tapewire \
    && install -d -o tapewire -g tapewire /home/tapewire/.cache /etc/tapewire
ENV PATH=/opt/tapewire/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TAPEWIRE_CONFIG=/etc/tapewire/tapewire.toml

# vLLM's CPU build links to libnuma, which no wheel brings.
FROM base AS base-cpu
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libnuma1 \
    && rm -rf /var/lib/apt/lists/*

# Triton compiles its launchers at run time.
FROM base AS base-gpu
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

FROM base AS build-core
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip python -m ops.install --engine sim --production --venv /opt/tapewire

FROM base-cpu AS build-cpu
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip python -m ops.install --engine cpu --production --venv /opt/tapewire

FROM base-gpu AS build-gpu
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip python -m ops.install --engine gpu --production --venv /opt/tapewire

FROM base AS core
COPY --from=build-core /opt/tapewire /opt/tapewire
COPY ops/profiles/compose.toml /etc/tapewire/tapewire.toml
USER tapewire
WORKDIR /home/tapewire
ENTRYPOINT ["tapewire"]
CMD ["--help"]

FROM base-gpu AS gpu
COPY --from=build-gpu /opt/tapewire /opt/tapewire
COPY ops/profiles/compose_gpu.toml /etc/tapewire/tapewire.toml
USER tapewire
WORKDIR /home/tapewire
ENTRYPOINT ["tapewire"]
CMD ["--help"]

# Last, so that a build without --target makes the image that runs everywhere.
FROM base-cpu AS cpu
COPY --from=build-cpu /opt/tapewire /opt/tapewire
COPY ops/profiles/compose.toml /etc/tapewire/tapewire.toml
USER tapewire
WORKDIR /home/tapewire
ENTRYPOINT ["tapewire"]
CMD ["--help"]
