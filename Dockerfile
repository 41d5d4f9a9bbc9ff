# A container with everything in /opt/fairseq_linformer/.venv, which comes first in PATH.
#
#   docker build --tag fairseq_linformer .
#   docker build --tag fairseq_linformer --build-arg BASE=nvidia/cuda:13.0.1-base-ubuntu24.04 --build-arg PIP_EXTRA_INDEX_URL= .
#   docker run --rm --interactive --tty [--gpus all] --volume "$PWD:/work" fairseq_linformer
#
# The second is for GPUs: PyTorch's own packages bring CUDA's libraries, so that the base image need not. Where the machine's
# driver is older, name an image of its CUDA version, and TORCH as well.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}

# The compiler, the headers and venv are what fairseq is built with. Versions are those of the base image's distribution.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends g++ make python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

ARG TORCH=2.13.0
ARG EXTRAS=tables,hf,analysis
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
WORKDIR /opt/fairseq_linformer
COPY . .
RUN PIP_NO_CACHE_DIR=1 make install TORCH="${TORCH}" EXTRAS="${EXTRAS}"

ENV PATH=/opt/fairseq_linformer/.venv/bin:${PATH}
WORKDIR /work
CMD ["bash"]
