# The picker. From the repository's root:
#   docker build -f images/extproc.Dockerfile --build-arg VERSION=$(cat VERSION) -t halffull-extproc:$(cat VERSION) .
ARG PYTHON=docker.io/library/python:3.11-slim

FROM ${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# A virtual environment for the tools that build our wheels, and one that becomes the image.
RUN python3 -m venv /opt/build && python3 -m venv --without-pip /opt/halffull
COPY requirements/build.txt requirements/extproc.txt requirements/
RUN /opt/build/bin/pip install --require-hashes --no-deps -r requirements/build.txt \
 && /opt/build/bin/pip --python /opt/halffull/bin/python install --require-hashes --no-deps -r requirements/extproc.txt
COPY LICENSE VERSION ./
COPY extproc extproc
RUN /opt/build/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /dist ./extproc \
 && /opt/build/bin/pip --python /opt/halffull/bin/python install --no-deps --no-index /dist/*.whl \
 && /opt/build/bin/pip --python /opt/halffull/bin/python check

FROM ${PYTHON}
ARG VERSION=unknown
LABEL org.opencontainers.image.title="halffull-extproc" \
      org.opencontainers.image.description="SAL: an Envoy external processor that picks the vLLM engine that will serve a request soonest" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /src/LICENSE /licenses/halffull/LICENSE
COPY --from=build /opt/halffull /opt/halffull
# Nothing is written at run time: any user will do, and a read-only root file system.
ENV PATH=/opt/halffull/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
# ext_proc, ADS and access log; health; metrics and status page
EXPOSE 9002 9003 9090
ENTRYPOINT ["halffull-extproc"]
CMD ["run", "--config", "/etc/halffull/picker.yaml"]
