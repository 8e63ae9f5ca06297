# The operator. From the repository's root:
#   docker build -f images/operator.Dockerfile --build-arg VERSION=$(cat VERSION) -t halffull-operator:$(cat VERSION) .
ARG PYTHON=docker.io/library/python:3.11-slim

FROM ${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# A virtual environment for the tools that build our wheels, and one that becomes the image.
RUN python3 -m venv /opt/build && python3 -m venv --without-pip /opt/halffull
COPY requirements/build.txt requirements/operator.txt requirements/
RUN /opt/build/bin/pip install --require-hashes --no-deps -r requirements/build.txt \
 && /opt/build/bin/pip --python /opt/halffull/bin/python install --require-hashes --no-deps -r requirements/operator.txt
COPY LICENSE VERSION ./
COPY operator operator
RUN /opt/build/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /dist ./operator \
 && /opt/build/bin/pip --python /opt/halffull/bin/python install --no-deps --no-index /dist/*.whl \
 && /opt/build/bin/pip --python /opt/halffull/bin/python check

FROM ${PYTHON}
ARG VERSION=unknown
LABEL org.opencontainers.image.title="halffull-operator" \
      org.opencontainers.image.description="The operator of LLMServing: vLLM engines with LARRY and a gateway with SAL" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /src/LICENSE /licenses/halffull/LICENSE
COPY --from=build /opt/halffull /opt/halffull
# Nothing is written at run time: any user will do, and a read-only root file system.
ENV PATH=/opt/halffull/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    HOME=/ USER=halffull
USER 65532:65532
WORKDIR /
# Metrics, health and readiness
EXPOSE 8080
ENTRYPOINT ["halffull-operator"]
CMD ["run", "--config", "/etc/halffull/operator.yaml"]
