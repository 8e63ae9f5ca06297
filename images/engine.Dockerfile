# The emulated engine: vLLM's API and load report without a GPU, for demonstrations and tests. From the repository's root:
#   docker build -f images/engine.Dockerfile --build-arg VERSION=$(cat VERSION) -t halffull-engine:$(cat VERSION) .
ARG PYTHON=docker.io/library/python:3.11-slim

FROM ${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# A virtual environment for the tools that build our wheels, and one that becomes the image.
RUN python3 -m venv /opt/build && python3 -m venv --without-pip /opt/halffull
COPY requirements/build.txt requirements/lab.txt requirements/
RUN /opt/build/bin/pip install --require-hashes --no-deps -r requirements/build.txt \
 && /opt/build/bin/pip --python /opt/halffull/bin/python install --require-hashes --no-deps -r requirements/lab.txt
COPY LICENSE VERSION ./
COPY larry larry
COPY extproc extproc
COPY lab lab
RUN /opt/build/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /dist ./larry ./extproc ./lab \
 && /opt/build/bin/pip --python /opt/halffull/bin/python install --no-deps --no-index /dist/*.whl \
 && /opt/build/bin/pip --python /opt/halffull/bin/python check

FROM ${PYTHON}
ARG VERSION=unknown
LABEL org.opencontainers.image.title="halffull-engine" \
      org.opencontainers.image.description="An emulated vLLM engine: API, metrics and load report on a virtual GPU" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /src/LICENSE /licenses/halffull/LICENSE
COPY --from=build /opt/halffull /opt/halffull
# `vllm serve` as the operator calls it: an LLMServing with this as `engine.image` needs no GPU and no model.
COPY --chmod=755 images/engine-vllm /usr/local/bin/vllm
# Nothing is written at run time: any user will do, and a read-only root file system.
ENV PATH=/opt/halffull/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
# API and metrics; load report
EXPOSE 8000 9400
# A --host among the container's own arguments comes later, and wins.
ENTRYPOINT ["halffull", "engine", "--host", "0.0.0.0", "--port", "8000"]
