# vLLM with LARRY baked in. From the repository's root:
#   docker build -f images/vllm-larry.Dockerfile --build-arg VERSION=$(cat VERSION) -t vllm-larry:$(cat VERSION) .
# On vLLM's own CPU image (which schedules synchronously):
#   --build-arg VLLM=docker.io/vllm/vllm-openai-cpu:v0.32.0 --build-arg SCHEDULER=SyncScheduler
# The newest vLLM that the plugin is tested with (larry/src/halffull_larry/config.py).
ARG VLLM=docker.io/vllm/vllm-openai:v0.32.0
ARG PYTHON=docker.io/library/python:3.11-slim

FROM ${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements/build.txt requirements/
RUN python3 -m venv /opt/build && /opt/build/bin/pip install --require-hashes --no-deps -r requirements/build.txt
COPY LICENSE VERSION ./
COPY larry larry
RUN /opt/build/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /dist ./larry

FROM ${VLLM}
ARG SCHEDULER=Scheduler
ARG VERSION=unknown
LABEL org.opencontainers.image.title="vllm-larry" \
      org.opencontainers.image.description="vLLM whose waiting queue is in LARRY's order, with a load report" \
      org.opencontainers.image.version="${VERSION}"
USER 0:0
COPY --from=build /src/LICENSE /licenses/halffull/LICENSE
COPY --from=build /dist /tmp/dist
COPY --chmod=755 images/vllm-larry-serve /usr/local/bin/
# A wheel of Python files alone needs no installer, and vLLM's images differ in which they have. The check fails the build
# when this Python is not the one that has vLLM.
RUN python3 -m zipfile -e /tmp/dist/*.whl "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
 && rm -r /tmp/dist \
 && python3 -c 'from importlib.metadata import entry_points, version; version("vllm"); \
entry_points(group="vllm.general_plugins")["halffull_larry"].load()'
# Any user will do, and a read-only root file system with a volume at /tmp: every cache of vLLM's (XDG, Triton, Inductor,
# Hugging Face) is below HOME or in /tmp, and USER spares a look into /etc/passwd.
ENV HOME=/tmp/vllm USER=vllm LOGNAME=vllm
# What `vllm serve` gets before the container's own arguments, which win. Empty: vLLM as it is.
ENV LARRY_DEFAULTS="--scheduler-cls halffull_larry.${SCHEDULER} --long-prefill-token-threshold 2048"
USER 65532:65532
WORKDIR /
# API and metrics; load report
EXPOSE 8000 9400
ENTRYPOINT ["vllm-larry-serve"]
